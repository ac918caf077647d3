"""Rasters of three kinds of shapes with their polygons, as a user draws them in a GIS."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely
from rasterio.features import rasterize
from rasterio.transform import Affine
from shapely.affinity import rotate, scale, translate

from helpers.raster_files import save

CLASSES = ("disc", "square", "triangle")
CRS = "EPSG:32633"
_DISC = shapely.Point(0, 0).buffer(1)
_SQUARE = shapely.box(-0.9, -0.9, 0.9, 0.9)
_TRIANGLE = shapely.Polygon([(-1.1, 1), (1.1, 1), (0, -1.1)])


class LabelledScene(NamedTuple):
    """Rasters and polygons.

    Attributes:
        shapes: The shapes of each raster in pixels.
        numbers: Their numbers in CLASSES.
        outside, invalid, blank: How many polygons lie outside of the rasters, cross themselves, and
            have no class.
    """

    rasters: list[Path]
    labels: Path
    shapes: list[np.ndarray]
    numbers: list[np.ndarray]
    transforms: list[Affine]
    outside: int
    invalid: int
    blank: int


def make_scene(
    folder: Path,
    size: tuple[int, int] = (600, 900),
    count: int = 2,
    bands: int = 3,
    step: int = 100,
    seed: int = 0,
) -> LabelledScene:
    """Write rasters of 16 bits in UTM, rotated, and polygons in WGS 84.

    Each raster has a shape in most of the cells of `step` pixels. A fifth of the polygons lie
    outside, every 20th crosses itself, and every 10th more on the rasters has no class.
    """
    import geopandas
    import pandas

    rng = np.random.default_rng(seed)
    (folder / "rasters").mkdir(parents=True)
    rasters = []
    tables = []
    shapes = []
    numbers = []
    transforms = []
    for index in range(count):
        corner = Affine.translation(500_000 + 6000 * index, 5_400_000)
        transforms.append(corner * Affine.rotation(20) * Affine.scale(0.5, -0.5))
        drawn, classes, empty = _draw_shapes(rng, size, step)
        path = folder / "rasters" / f"scene{index}.tif"
        place = dict(crs=CRS, transform=transforms[-1], tiled=True)
        rasters.append(save(path, _paint(rng, size, bands, drawn, classes), **place))
        shapes.append(drawn)
        numbers.append(classes)
        blank = empty[: len(drawn) // 10]
        columns = {"Class": [CLASSES[number] for number in classes] + [None] * len(blank)}
        table = geopandas.GeoDataFrame(columns, geometry=[*_cross(drawn), *blank])
        table["geometry"] = table.affine_transform(transforms[-1].to_shapely())
        tables.append(table)
    table = pandas.concat(tables)
    inside = len(table)
    moved = table[table["Class"].notna()].iloc[::4].copy()
    moved["geometry"] = moved.translate(50_000, 0)
    table = pandas.concat([table, moved]).set_crs(CRS).to_crs("EPSG:4326")
    table.to_file(folder / "labels.gpkg")
    blank = int(table["Class"].isna().sum())
    invalid = int((~table.is_valid).sum())
    counts = len(table) - inside, invalid, blank
    return LabelledScene(rasters, folder / "labels.gpkg", shapes, numbers, transforms, *counts)


def _draw_shapes(
    rng: np.random.Generator, size: tuple[int, int], step: int
) -> tuple[np.ndarray, np.ndarray, list[shapely.Geometry]]:
    """Return shapes, their numbers, and shapes where nothing is drawn."""
    height, width = size
    shapes = []
    numbers = []
    empty = []
    for top in range(0, height - step + 1, step):
        for left in range(0, width - step + 1, step):
            radius = rng.uniform(0.16, 0.36) * step
            margin = 1.6 * radius
            x, y = np.array([left, top]) + rng.uniform(margin, max(step - margin, margin + 1), 2)
            number = int(rng.integers(3))
            shape = scale((_DISC, _SQUARE, _TRIANGLE)[number], radius, radius, origin=(0, 0))
            shape = translate(rotate(shape, rng.uniform(-20, 20), origin=(0, 0)), x, y)
            if rng.random() < 0.75:
                shapes.append(shape)
                numbers.append(number)
            else:
                empty.append(shape)
    return np.array(shapes, object), np.array(numbers), empty


def _cross(shapes: Sequence[shapely.Geometry]) -> list[shapely.Geometry]:
    """Return shapes, every 20th with a spike of no width, which makes it invalid."""
    crossed = list(shapes)
    for number in range(0, len(shapes), 20):
        ring = np.array(shapes[number].exterior.coords)
        spike = [ring[1], ring[1] + 0.4 * (ring[1] - ring.mean(axis=0)), ring[1]]
        crossed[number] = shapely.Polygon(np.concatenate([ring[:1], spike, ring[2:]]))
    return crossed


def _paint(
    rng: np.random.Generator,
    size: tuple[int, int],
    bands: int,
    shapes: np.ndarray,
    numbers: np.ndarray,
) -> np.ndarray:
    """Return noise of 16 bits, in which each class is brighter in one band."""
    values = rng.normal(3000, 150, (bands, *size)).astype(np.float32)
    classes = rasterize(zip(shapes, numbers + 1, strict=True), size)
    for number in range(len(CLASSES)):
        values[(bands - 1 - number) % bands][classes == number + 1] += 1500
    return values.clip(1, 65535).astype(np.uint16)


def rasterized(scene: LabelledScene, index: int, size: tuple[int, int]) -> Any:
    """Return the class numbers of a raster's pixels, 0 for background, (h, w), uint8."""
    pairs = zip(scene.shapes[index], scene.numbers[index] + 1, strict=True)
    return rasterize(pairs, size).astype(np.uint8)
