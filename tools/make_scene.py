"""Write a large synthetic scene of shapes as a GeoTIFF, and the places of the shapes as a GeoJSON.

    python tools/make_scene.py scene.tif [--side 40000] [--mosaics 20]

The scene has mosaics of the images of tools/make_shapes.py, 640 x 640 pixels, at random places. The other pixels are
nodata and take no space on the disk. The scene is north up in UTM zone 33, with pixels of half a metre. scene.geojson
beside it has a point with a class at the centre of each shape's box. Needs rasterio.
"""

import argparse
import json
import sys
from pathlib import Path

import cv2
import numpy as np
from make_shapes import CLASSES, check_seed, draw_image

from xcit_mm.rasters.gdal import open_raster, require_rasterio
from xcit_mm.utils.atomic import atomic_path
from xcit_mm.utils.cli import cli_main

CORNER, PIXEL = (400_000, 5_600_000), 0.5  # easting and northing of the upper left corner, side of a pixel; in metres
BLOCK, ROWS = 160, 4  # side of an image in a mosaic, images per row
SIDE = BLOCK * ROWS


def draw_mosaic(seed: int) -> tuple[np.ndarray, list[tuple[float, float, int]]]:
    """Draw a mosaic (SIDE, SIDE, 3), BGR, and return the centre (x, y) and class of each shape's box."""
    image, shapes = np.empty((SIDE, SIDE, 3), np.uint8), []
    for row, column in np.ndindex(ROWS, ROWS):
        block, instances, labels = draw_image(np.random.default_rng((seed, row, column)), BLOCK)
        image[row * BLOCK :, column * BLOCK :][:BLOCK, :BLOCK] = block
        for number, label in enumerate(labels, start=1):
            x, y, width, height = cv2.boundingRect((instances == number).astype(np.uint8))
            shapes.append((column * BLOCK + x + width / 2, row * BLOCK + y + height / 2, label))
    return np.maximum(image, 1), shapes  # 0 is nodata


def choose_corners(rng: np.random.Generator, side: int, count: int) -> list[tuple[int, int]]:
    """Choose corners (row, column) of mosaics that do not touch.

    Raises:
        ValueError: If the mosaics do not fit.
    """
    if side < SIDE:
        raise ValueError(f"--side {side}: a mosaic has {SIDE} pixels, take that or more")
    corners: list[tuple[int, int]] = []
    for _ in range(100 * count):
        row, column = map(int, rng.integers(0, side - SIDE + 1, 2))
        if all(max(abs(row - r), abs(column - c)) > SIDE for r, c in corners):
            corners.append((row, column))
        if len(corners) == count:
            return corners
    raise ValueError(f"{count} mosaics of {SIDE} pixels do not fit into {side}: take fewer, or a larger side")


def write_scene(path: Path, side: int, mosaics: int, seed: int = 0) -> None:
    """Write the scene and the places of its shapes, both files or neither.

    Raises:
        ValueError: If the mosaics do not fit, or the seed is negative.
        FileNotFoundError: If the folder does not exist.
        ModuleNotFoundError: If rasterio is not installed.
    """
    require_rasterio("a scene")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent}: make it first")
    check_seed(seed)
    from rasterio.transform import from_origin

    transform = from_origin(*CORNER, PIXEL, PIXEL)
    corners = choose_corners(np.random.default_rng(seed), side, mosaics)
    profile = dict(driver="GTiff", height=side, width=side, count=3, dtype="uint8", crs="EPSG:32633", nodata=0)
    profile |= dict(transform=transform, tiled=True, blockxsize=512, blockysize=512, compress="deflate")
    features = []
    with atomic_path(path.with_suffix(".geojson")) as points, atomic_path(path) as scene:
        with open_raster(scene, "w", SPARSE_OK=True, BIGTIFF="IF_SAFER", **profile) as file:
            for number, (row, column) in enumerate(corners):
                image, shapes = draw_mosaic(seed * 100_000 + number)
                file.write(np.moveaxis(image[..., ::-1], -1, 0), window=((row, row + SIDE), (column, column + SIDE)))
                for x, y, label in shapes:
                    point = dict(type="Point", coordinates=transform * (column + x, row + y))
                    features.append(dict(type="Feature", geometry=point, properties={"class": CLASSES[label]}))
        crs = dict(type="name", properties=dict(name="urn:ogc:def:crs:EPSG::32633"))
        points.write_text(json.dumps(dict(type="FeatureCollection", crs=crs, features=features)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="GeoTIFF to write")
    parser.add_argument("--side", type=int, default=40_000, help="side of the scene in pixels (default: %(default)s)")
    parser.add_argument("--mosaics", type=int, default=20, help="number of mosaics (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the shapes (default: %(default)s)")
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
