"""Rasters, and vector files of shapes in their pixels, for tests."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.transform import Affine

from xcit_mm.rasters.raster import Raster

NORTH_UP = Affine(0.5, 0, 500000, 0, -0.5, 5400000)
UTM = dict(crs="EPSG:32633", transform=NORTH_UP)
ROTATED = Affine(0.3, 0.4, 500000, 0.4, -0.3, 5400000)


def save(path: Path, bands: np.ndarray, **profile: object) -> Path:
    """Write bands (n, h, w) or one band (h, w) as a GeoTIFF, or in the format of the profile."""
    bands = bands if bands.ndim == 3 else bands[None]
    count, height, width = bands.shape
    default = dict(driver="GTiff", height=height, width=width, count=count, dtype=bands.dtype)
    with rasterio.open(path, "w", **default | profile) as file:
        file.write(bands)
    return path


def noise(*shape: int, high: int = 256, dtype: type = np.uint8) -> np.ndarray:
    """Return reproducible values from 1 to below `high`."""
    return np.random.default_rng(0).integers(1, high, shape).astype(dtype)


def save_image(path: Path, image: np.ndarray, **profile: object) -> Path:
    """Write a BGR image (h, w, 3) as a raster of red, green and blue at `UTM`."""
    return save(path, image[..., ::-1].transpose(2, 0, 1), **UTM | profile)


def in_pixels(shapes: Iterable[Any], transform: Affine = NORTH_UP, **columns: Any) -> Any:
    """Return shapes in pixels of a raster in EPSG:32633 as a GeoDataFrame."""
    import geopandas

    placed = geopandas.GeoSeries(list(shapes)).affine_transform(transform.to_shapely())
    return geopandas.GeoDataFrame(columns, geometry=placed, crs="EPSG:32633")


def write_shapes(
    path: Path,
    shapes: Iterable[Any],
    crs: str = "EPSG:4326",
    transform: Affine = NORTH_UP,
    **columns: Any,
) -> Path:
    """Write shapes in pixels of a raster in EPSG:32633 to a vector file in another system."""
    table = in_pixels(shapes, transform, **columns).to_crs(crs)
    table.to_file(path)
    return path


def read_raster(path: Path, **options) -> tuple[np.ndarray, np.ndarray]:
    """Read a whole raster, in windows that are not aligned with its blocks."""
    raster = Raster(path, **options)
    middle = raster.height // 3
    rows = [slice(0, middle), slice(middle, raster.height)] if middle else [slice(0, raster.height)]
    columns = slice(0, raster.width)
    images, valid = zip(*(raster.read(window, columns) for window in rows), strict=True)
    return np.concatenate(images), np.concatenate(valid)


def read_map(path: Path) -> np.ndarray:
    with rasterio.open(path) as file:
        return file.read(1)
