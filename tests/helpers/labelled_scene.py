"""A raster of three kinds of shapes with their polygons, as a user draws them in a GIS."""

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
SIZE = (400, 600)


class LabelledScene(NamedTuple):
    """A raster and polygons.

    Attributes:
        shapes: The shapes in pixels.
        numbers: Their numbers in CLASSES.
        ignored: The shapes without a class, in pixels.
        outside: How many polygons lie outside of the raster.
    """

    raster: Path
    labels: Path
    shapes: np.ndarray
    numbers: np.ndarray
    ignored: np.ndarray
    transform: Affine
    outside: int


def make_scene(folder: Path, size: tuple[int, int] = SIZE, bands: int = 3) -> LabelledScene:
    """Write a raster of 8 bits in UTM, rotated, and polygons in WGS 84.

    It has a shape in nine of ten cells of 80 pixels, and in the last cells polygons without a
    class. A fifth of the polygons lie outside, and every 20th crosses itself.
    """
    rng = np.random.default_rng(0)
    turned = Affine.rotation(20) * Affine.scale(0.5, -0.5)
    transform = Affine.translation(500_000, 5_400_000) * turned
    shapes, numbers = _draw_shapes(rng, size, step=80)
    polygons = [_with_spike(shape) if i % 20 == 0 else shape for i, shape in enumerate(shapes)]
    drawn = len(shapes) - max(len(shapes) // 10, 1)
    names = [CLASSES[number] for number in numbers[:drawn]] + [None] * (len(shapes) - drawn)
    table = in_pixels(polygons, transform, **{"class": names})
    moved = table[table["class"].notna()].iloc[::4]
    moved = moved.set_geometry(moved.translate(50_000))
    pandas.concat([table, moved]).to_crs("EPSG:4326").to_file(folder / "labels.gpkg")
    values = rng.normal(100, 6, (bands, *size))
    for number, shape in zip(numbers[:drawn], shapes[:drawn], strict=True):
        inside = rasterize([shape], size).astype(bool)
        values[bands - 1 - number][inside] += 60  # each class is brighter in one band
    place = dict(crs="EPSG:32633", transform=transform, tiled=True, photometric="minisblack")
    raster = save(folder / "scene.tif", values.astype(np.uint8), **place)
    drawn_shapes = shapes[:drawn], numbers[:drawn], shapes[drawn:]
    return LabelledScene(raster, folder / "labels.gpkg", *drawn_shapes, transform, len(moved))


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


def rasterized(scene: LabelledScene, size: tuple[int, int] = SIZE) -> np.ndarray:
    """Return the class numbers of a raster's pixels, 0 for background, 255 in shapes without a
    class, (h, w), uint8.
    """
    pairs = [*zip(scene.shapes, scene.numbers + 1, strict=True)]
    return rasterize(pairs + [(shape, 255) for shape in scene.ignored], size, dtype="uint8")
