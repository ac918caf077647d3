"""Rasters of any size and bands: predicted, cut into tiles to train on, and scored."""

from .loading import LoadRasterFromFile

__all__ = ["LoadRasterFromFile"]  # `xcit_mm.predict_raster` is imported on use
