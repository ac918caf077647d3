"""Rasters larger than memory, of any bands, with a place on a map: one raster in, one map or table
of objects out; labelled rasters cut into tiles to train on; scores against labels.
"""

from .loading import LoadRasterFromFile

__all__ = ["LoadRasterFromFile"]  # `xcit_mm.predict_raster` is imported on use
