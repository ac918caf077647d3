"""Write a small synthetic data set of shapes, with COCO instances and ADE-style segmentation maps.

    python tools/make_shapes.py data/shapes
    python tools/make_shapes.py data/shapes-4band --rasters

The same arguments give the same files. Layout, for each of `training` and `validation`:

    images/SPLIT/00000.jpg              RGB images of textured shapes, overlapping, on textured
                                        ground
    annotations/SPLIT/00000.png         segmentation maps: 0 unlabelled (unused), 1 background,
                                        2 circle, ...
    annotations/instances_SPLIT.json    COCO instances with polygons; categories 1 circle,
                                        2 square, ...
    rasters/SPLIT/00000.tif             with --rasters: the same images as GeoTIFFs of 16 bits,
                                        bands red, green, blue and near infrared; needs rasterio
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from tqdm import tqdm

from xcit_mm.rasters.gdal import open_raster
from xcit_mm.utils.atomic import atomic_path
from xcit_mm.utils.cli import cli_main

CLASSES = ("circle", "square", "triangle", "star")
# Number of corners, and radius of every second corner in radii of the other corners, per class.
CORNERS = ((48, 1.0), (4, 1.0), (3, 1.0), (10, 0.45))
HUES = (0, 45, 90, 135)  # per class, of OpenCV's 180; the hue of a shape differs by up to 20
# Brightness per class; that of a shape differs by up to 0.1, that of the ground is free.
INFRARED = (0.9, 0.3, 0.7, 0.5)


def texture(rng: np.random.Generator, size: int, hue: float, saturation: float) -> np.ndarray:
    """Draw a colored texture of two scales and stripes, (size, size, 3), BGR, uint8."""
    coarse = cv2.resize(rng.random((6, 6), np.float32), (size, size), interpolation=cv2.INTER_CUBIC)
    fine = cv2.resize(rng.random((size // 4, size // 4), np.float32), (size, size))
    angle = rng.uniform(0, np.pi)
    period = rng.uniform(6, 24)
    y, x = np.mgrid[:size, :size]
    stripes = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / period)
    brightness = rng.uniform(90, 170) + 70 * (coarse - 0.5) + 50 * (fine - 0.5) + 25 * stripes
    hsv = np.empty((size, size, 3), np.uint8)
    hsv[..., 0] = (hue + 10 * (coarse - 0.5)) % 180
    hsv[..., 1] = saturation
    hsv[..., 2] = np.clip(brightness, 0, 255)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)


def draw_outline(rng: np.random.Generator, label: int, size: int) -> np.ndarray:
    """Draw the corners of a shape of random size, place and rotation, (K, 2), int32, in pixels."""
    radius = size * rng.uniform(0.09, 0.24)
    centre = rng.uniform(0.6 * radius, size - 0.6 * radius, 2)
    corners, inner = CORNERS[label]
    angles = rng.uniform(0, 2 * np.pi) + np.arange(corners) * 2 * np.pi / corners
    radii = np.where(np.arange(corners) % 2, inner, 1.0) * radius
    offsets = radii[:, None] * np.stack((np.cos(angles), np.sin(angles)), 1)
    return np.round(centre + offsets).astype(np.int32)


def visible_polygon(mask: np.ndarray, min_area: int) -> list[float] | None:
    """Return the polygon (x, y, x, y, ...) of a mask, or None if small or not in one piece."""
    contours, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    if len(contours) != 1 or len(contours[0]) < 3 or mask.sum() < min_area:
        return None
    return contours[0].flatten().astype(float).tolist()


def draw_image(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Draw an image (size, size, 3), BGR, its map of instances, 0 for none, and their labels."""
    image = texture(rng, size, rng.uniform(0, 180), rng.uniform(20, 70))
    instances = np.zeros((size, size), np.uint8)
    labels = []
    for _ in range(rng.integers(3, 8)):
        label = int(rng.integers(len(CLASSES)))
        outline = draw_outline(rng, label, size)
        mask = cv2.fillPoly(np.zeros((size, size), np.uint8), [outline], 1).astype(bool)
        drawn = np.where(mask, len(labels) + 1, instances)
        # A shape may hide parts of other shapes, but each must stay in one piece and half visible.
        if not all(
            visible_polygon(drawn == number, (instances == number).sum() // 2)
            for number in range(1, len(labels) + 1)
        ):
            continue
        hue = HUES[label] + rng.uniform(-20, 20)
        image[mask] = texture(rng, size, hue, rng.uniform(150, 230))[mask]
        instances = drawn.astype(np.uint8)
        labels.append(label)
    return cv2.GaussianBlur(image, (3, 3), 0), instances, labels


def draw_infrared(rng: np.random.Generator, instances: np.ndarray, labels: list[int]) -> np.ndarray:
    """Draw the near infrared band (size, size), uint16, in which classes differ in brightness."""
    size = len(instances)
    ground = rng.uniform(0.2, 1.0)
    brightness = [ground, *(INFRARED[label] + rng.uniform(-0.1, 0.1) for label in labels)]
    # Without saturation, blue, green and red are equal.
    layers = [level * texture(rng, size, 0, 0)[..., 0].astype(np.float32) for level in brightness]
    drawn = np.take_along_axis(np.stack(layers), instances[None].astype(np.int64), axis=0)[0]
    return np.round(257 * np.clip(cv2.GaussianBlur(drawn, (3, 3), 0), 0, 255)).astype(np.uint16)


def write_image(path: Path, image: np.ndarray) -> None:
    """Write an image in the format of its suffix. `cv2.imwrite` does not raise on a full disk."""
    path.write_bytes(cv2.imencode(path.suffix, image)[1].tobytes())


def write_raster(path: Path, bands: np.ndarray, number: int) -> None:
    """Write bands (4, size, size) as a GeoTIFF with pixels of one metre.

    The images of a split lie side by side from west to east.
    """
    from rasterio.transform import from_origin

    count, height, width = bands.shape
    size = dict(count=count, height=height, width=width, dtype=bands.dtype)
    # Viewers show bands that are named red, green and blue. The fourth is not an alpha channel.
    options = dict(driver="GTiff", photometric="RGB", alpha="NO", compress="LZW")
    place = dict(crs="EPSG:32632", transform=from_origin(500000 + number * width, 5300000, 1, 1))
    with open_raster(path, "w", **options, **size, **place) as file:
        file.write(bands)


def describe_mask(mask: np.ndarray) -> dict[str, object]:
    """Return the box, the area and the polygon of a mask as in COCO."""
    x, y, width, height = cv2.boundingRect(mask.astype(np.uint8))
    return dict(
        bbox=[x, y, width, height],
        area=int(mask.sum()),
        segmentation=[visible_polygon(mask, 1)],
        iscrowd=0,
    )


def write_split(root: Path, split: str, count: int, size: int, seed: int, rasters: bool) -> None:
    """Write the images, segmentation maps and COCO json of a split, and optionally the rasters."""
    images = root / "images" / split
    maps = root / "annotations" / split
    tiffs = root / "rasters" / split
    for folder in (images, maps, tiffs) if rasters else (images, maps):
        folder.mkdir(parents=True)
    categories = [dict(id=i, name=name) for i, name in enumerate(CLASSES, start=1)]
    coco = dict(images=[], annotations=[], categories=categories)
    bar = tqdm(range(count), desc=split, unit="image", leave=False, disable=None)
    for number in bar:  # in a terminal only
        image_seed = (seed, split == "validation", number)
        image, instances, labels = draw_image(np.random.default_rng(image_seed), size)
        write_image(images / f"{number:05}.jpg", image)
        if rasters:
            # A separate generator, so that the images do not depend on --rasters.
            fourth = draw_infrared(np.random.default_rng((*image_seed, 1)), instances, labels)
            bands = [257 * image[..., channel].astype(np.uint16) for channel in (2, 1, 0)]
            write_raster(tiffs / f"{number:05}.tif", np.stack([*bands, fourth]), number)
        classes = np.array([1, *(label + 2 for label in labels)], np.uint8)
        write_image(maps / f"{number:05}.png", classes[instances])
        coco["images"].append(
            dict(id=number, file_name=f"{number:05}.jpg", height=size, width=size)
        )
        for instance, label in enumerate(labels, start=1):
            ids = dict(id=len(coco["annotations"]) + 1, image_id=number, category_id=label + 1)
            coco["annotations"].append(dict(**ids, **describe_mask(instances == instance)))
    (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(coco))


def write_dataset(
    root: Path,
    train: int = 240,
    val: int = 40,
    size: int = 160,
    seed: int = 0,
    rasters: bool = False,
) -> None:
    """Write both splits to `root`, which appears when complete.

    Raises:
        FileExistsError: If `root` exists.
        ValueError: If images are too small for shapes, or the seed is negative.
    """
    if size < 16:
        raise ValueError(f"--size {size}: must be 16 or more")
    if root.exists():
        raise FileExistsError(f"{root} exists: remove it first")
    with atomic_path(root) as unfinished:
        write_split(unfinished, "training", train, size, seed, rasters)
        write_split(unfinished, "validation", val, size, seed, rasters)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="folder to write")
    parser.add_argument(
        "--train", type=int, default=240, help="number of training images (default: %(default)s)"
    )
    parser.add_argument(
        "--val", type=int, default=40, help="number of validation images (default: %(default)s)"
    )
    parser.add_argument(
        "--size", type=int, default=160, help="side of an image in pixels (default: %(default)s)"
    )
    parser.add_argument(
        "--rasters", action="store_true", help="also write 16-bit TIFFs of four bands"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the images (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    end = f"{args.root} is not written"
    return cli_main(lambda: write_dataset(**vars(args)), end)


if __name__ == "__main__":
    sys.exit(main())
