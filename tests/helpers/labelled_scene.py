"""Rasters of three kinds of shapes with their polygons, as a user draws them in a GIS."""

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas
import shapely
from rasterio.features import rasterize
from rasterio.transform import Affine

from helpers.raster_files import in_pixels, save

CLASSES = ("disc", "octagon", "square")
SEGMENTS = (16, 2, 1)  # of a quarter of each


class LabelledScene(NamedTuple):
    """Rasters and polygons.

    Attributes:
        shapes: The shapes of each raster in pixels.
        numbers: Their numbers in CLASSES.
        ignored: The shapes of each raster without a class, in pixels.
        outside: How many polygons lie outside of the rasters.
    """

    rasters: list[Path]
    labels: Path
    shapes: list[np.ndarray]
    numbers: list[np.ndarray]
    ignored: list[np.ndarray]
    transforms: list[Affine]
    outside: int


def make_scene(
    folder: Path,
    size: tuple[int, int] = (600, 900),
    count: int = 2,
    bands: int = 3,
    step: int = 100,
) -> LabelledScene:
    """Write rasters of 16 bits in UTM, rotated, and polygons in WGS 84.

    Each raster has a shape in nine of ten cells of `step` pixels, and in the last cells polygons
    without a class. A fifth of the polygons lie outside, and every 20th crosses itself.
    """
    rng = np.random.default_rng(0)
    (folder / "rasters").mkdir(parents=True)
    scene = LabelledScene([], folder / "labels.gpkg", [], [], [], [], 0)
    tables = []
    for index in range(count):
        corner = Affine.translation(500_000 + 6000 * index, 5_400_000)
        transform = corner * Affine.rotation(20) * Affine.scale(0.5, -0.5)
        shapes, numbers = _draw_shapes(rng, size, step)
        polygons = [_with_spike(shape) if i % 20 == 0 else shape for i, shape in enumerate(shapes)]
        drawn = len(shapes) - max(len(shapes) // 10, 1)
        names = [CLASSES[number] for number in numbers[:drawn]] + [None] * (len(shapes) - drawn)
        tables.append(in_pixels(polygons, transform, Class=names))
        scene.shapes.append(shapes[:drawn])
        scene.numbers.append(numbers[:drawn])
        scene.ignored.append(shapes[drawn:])
        scene.transforms.append(transform)
        place = dict(crs=tables[-1].crs, transform=transform, tiled=True)
        values = rng.normal(3000, 150, (bands, *size))
        for number in range(len(CLASSES)):  # each class is brighter in one band
            values[bands - 1 - number][rasterized(scene, index, size) == number + 1] += 1500
        path = folder / "rasters" / f"scene{index}.tif"
        scene.rasters.append(save(path, values.astype(np.uint16), **place))
    table = pandas.concat(tables)
    moved = table[table["Class"].notna()].iloc[::4]
    moved = moved.set_geometry(moved.translate(50_000))
    pandas.concat([table, moved]).to_crs("EPSG:4326").to_file(scene.labels)
    return scene._replace(outside=len(moved))


def _draw_shapes(
    rng: np.random.Generator, size: tuple[int, int], step: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return a shape in each cell, and their numbers."""
    shapes = []
    numbers = []
    cells = (range(0, side - step + 1, step) for side in size)
    for top, left in itertools.product(*cells):
        radius = rng.uniform(0.16, 0.36) * step
        x, y = np.array([left, top]) + rng.uniform(1.2 * radius, step - 1.2 * radius, 2)
        numbers.append(rng.integers(len(CLASSES)))
        shapes.append(shapely.Point(x, y).buffer(radius, quad_segs=SEGMENTS[numbers[-1]]))
    return np.array(shapes, object), np.array(numbers)


def _with_spike(shape: shapely.Polygon) -> shapely.Polygon:
    """Return a shape with a spike of no width, which makes it invalid."""
    ring = np.array(shape.exterior.coords)
    return shapely.Polygon([ring[0], 1.4 * ring[0] - 0.4 * ring.mean(axis=0), *ring])


def rasterized(scene: LabelledScene, index: int, size: tuple[int, int]) -> np.ndarray:
    """Return the class numbers of a raster's pixels, 0 for background, 255 in shapes without a
    class, (h, w), uint8.
    """
    pairs = [*zip(scene.shapes[index], scene.numbers[index] + 1, strict=True)]
    return rasterize(pairs + [(shape, 255) for shape in scene.ignored[index]], size, dtype="uint8")
