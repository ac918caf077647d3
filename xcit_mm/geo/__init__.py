"""Georeferenced rasters: windows, bands, value ranges, and results as GeoTIFF and GeoJSON."""

from .files import RASTER_SUFFIXES, is_raster
from .raster import Georeference, Raster

__all__ = ["RASTER_SUFFIXES", "Georeference", "Raster", "is_raster"]
