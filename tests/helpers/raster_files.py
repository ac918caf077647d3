"""Rasters for tests."""

from pathlib import Path

import numpy as np
import rasterio
from rasterio.transform import Affine

NORTH_UP = Affine(0.5, 0, 500000, 0, -0.5, 5400000)
UTM = dict(crs="EPSG:32633", transform=NORTH_UP)


def save(path: Path, bands: np.ndarray, **profile: object) -> Path:
    """Write bands (n, h, w) or one band (h, w) as a GeoTIFF, or in the format of the profile."""
    bands = bands if bands.ndim == 3 else bands[None]
    count, height, width = bands.shape
    default = dict(driver="GTiff", height=height, width=width, count=count, dtype=bands.dtype)
    with rasterio.open(path, "w", **default | profile) as file:
        file.write(bands)
    return path
