"""Scenes on a map: read by windows, of any bands and range, and results that are written where the pixels lie."""

from .files import RASTERS, is_raster
from .raster import Raster

__all__ = ["RASTERS", "Raster", "is_raster"]
