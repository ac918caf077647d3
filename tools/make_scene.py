"""Write a large scene with shapes at known places on a map, as GeoTIFF, and what was planted, as GeoJSON.

    python tools/make_scene.py scene.tif [--side 40000] [--mosaics 20]

The shapes are those of tools/make_shapes.py, in mosaics of 640 x 640 pixels spread over the scene at random; the rest
holds nothing (nodata) and takes no room on the disk. The scene is in UTM zone 33, with pixels of half a metre, seen
from the north. scene.geojson beside it has a point at the middle of each shape's box, with its class. Needs rasterio.
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import cv2
import numpy as np
from make_shapes import CLASSES, draw_image

from xcit_mm.utils.atomic import atomic_path
from xcit_mm.utils.cli import cli_main

CORNER, PIXEL = (400_000, 5_600_000), 0.5  # metres east and north of the upper left one, and of a side
BLOCK, ROWS = 160, 4  # of a mosaic: images of this side, so many a side
SIDE = BLOCK * ROWS


def draw_mosaic(seed: int) -> tuple[np.ndarray, list[tuple[float, float, int]]]:
    """A mosaic (SIDE, SIDE, 3), BGR, and of each shape the middle of its box (x, y) and its class."""
    image, planted = np.empty((SIDE, SIDE, 3), np.uint8), []
    for row in range(ROWS):
        for column in range(ROWS):
            block, instances, kinds = draw_image(np.random.default_rng((seed, row, column)), BLOCK)
            image[row * BLOCK :, column * BLOCK :][:BLOCK, :BLOCK] = block
            for number, kind in enumerate(kinds, start=1):
                x, y, width, height = cv2.boundingRect((instances == number).astype(np.uint8))
                planted.append((column * BLOCK + x + width / 2, row * BLOCK + y + height / 2, kind))
    return np.maximum(image, 1), planted  # 0 is nodata


def places(rng: np.random.Generator, side: int, count: int) -> list[tuple[int, int]]:
    """Corners (row, column) of mosaics that do not touch.

    Raises:
        ValueError: If they do not fit.
    """
    if side < SIDE:
        raise ValueError(f"--side {side}: a mosaic has {SIDE} pixels, take that or more")
    found: list[tuple[int, int]] = []
    for _ in range(100 * count):
        row, column = map(int, rng.integers(0, side - SIDE + 1, 2))
        if all(max(abs(row - r), abs(column - c)) > SIDE for r, c in found):
            found.append((row, column))
        if len(found) == count:
            return found
    raise ValueError(f"{count} mosaics of {SIDE} pixels do not fit into {side}: take fewer, or a larger side")


def write_scene(path: Path, side: int, mosaics: int, seed: int = 0) -> None:
    """Write the scene and what is in it, both files whole or neither.

    Raises:
        ValueError: If the mosaics do not fit into it, or the seed is negative.
        FileNotFoundError: If there is no such folder.
        ModuleNotFoundError: If rasterio is not installed.
    """
    if importlib.util.find_spec("rasterio") is None:
        raise ModuleNotFoundError("a scene needs rasterio: pip install xcit_mm[raster]")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent}: make it first")
    if seed < 0:
        raise ValueError(f"--seed {seed}: must be 0 or more")
    import rasterio
    from rasterio.transform import from_origin

    transform = from_origin(*CORNER, PIXEL, PIXEL)
    corners = places(np.random.default_rng(seed), side, mosaics)
    profile = dict(driver="GTiff", height=side, width=side, count=3, dtype="uint8", crs="EPSG:32633", nodata=0)
    profile |= dict(transform=transform, tiled=True, blockxsize=512, blockysize=512, compress="deflate")
    features = []
    with atomic_path(path.with_suffix(".geojson")) as points, atomic_path(path) as scene:
        with rasterio.open(scene, "w", SPARSE_OK=True, BIGTIFF="IF_SAFER", **profile) as file:
            for number, (row, column) in enumerate(corners):
                image, planted = draw_mosaic(seed * 100_000 + number)
                file.write(np.moveaxis(image[..., ::-1], -1, 0), window=((row, row + SIDE), (column, column + SIDE)))
                for x, y, kind in planted:
                    point = dict(type="Point", coordinates=transform * (column + x, row + y))
                    features.append(dict(type="Feature", geometry=point, properties={"class": CLASSES[kind]}))
        crs = dict(type="name", properties=dict(name="urn:ogc:def:crs:EPSG::32633"))
        points.write_text(json.dumps(dict(type="FeatureCollection", crs=crs, features=features)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="file to write")
    parser.add_argument("--side", type=int, default=40_000, help="in pixels (default: %(default)s)")
    parser.add_argument("--mosaics", type=int, default=20, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    args = parser.parse_args()
    return cli_main(
        lambda: write_scene(args.path, args.side, args.mosaics, args.seed),
        f"{args.path} is not written",
        ValueError,
        OSError,
        ModuleNotFoundError,
    )


if __name__ == "__main__":
    sys.exit(main())
