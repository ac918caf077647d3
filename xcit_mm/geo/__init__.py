"""Georeferenced rasters: windows, bands, value ranges, and results as GeoTIFF and GeoJSON."""

from .files import RASTERS, is_raster
from .raster import Raster

__all__ = ["RASTERS", "Raster", "is_raster"]
