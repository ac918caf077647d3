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
STEP = 80  # side of a cell, which has a shape


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

    The last tenth of the polygons has no class. A fifth of the others is drawn again outside, and
    every 20th crosses itself.
    """
    rng = np.random.default_rng(0)
    turned = Affine.rotation(20) @ Affine.scale(0.5, -0.5)
    transform = Affine.translation(500_000, 5_400_000) @ turned
    shapes = []
    numbers = []
    for top, left in itertools.product(*(range(0, side - STEP + 1, STEP) for side in size)):
        radius = rng.uniform(0.16, 0.36) * STEP
        x, y = np.array([left, top]) + rng.uniform(1.2 * radius, STEP - 1.2 * radius, 2)
        numbers.append(rng.integers(len(CLASSES)))
        shapes.append(shapely.Point(x, y).buffer(radius, quad_segs=SEGMENTS[numbers[-1]]))
    polygons = [_with_spike(shape) if i % 20 == 0 else shape for i, shape in enumerate(shapes)]
    drawn = len(shapes) - max(len(shapes) // 10, 1)
    names = [CLASSES[number] for number in numbers[:drawn]]
    table = in_pixels(polygons, transform, **{"class": names + [None] * (len(shapes) - drawn)})
    moved = table[:drawn:4].set_geometry(table[:drawn:4].translate(50_000))
    pandas.concat([table, moved]).to_crs("EPSG:4326").to_file(folder / "labels.gpkg")
    values = rng.normal(100, 6, (bands, *size))
    for number, shape in zip(numbers[:drawn], shapes[:drawn], strict=True):
        values[bands - 1 - number][rasterize([shape], size) > 0] += 60  # brighter in one band
    place = dict(crs="EPSG:32633", transform=transform, tiled=True, photometric="minisblack")
    return LabelledScene(
        save(folder / "scene.tif", values.astype(np.uint8), **place),
        folder / "labels.gpkg",
        np.array(shapes[:drawn], object),
        np.array(numbers[:drawn]),
        np.array(shapes[drawn:], object),
        transform,
        len(moved),
    )


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
