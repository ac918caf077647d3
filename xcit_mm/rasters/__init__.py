"""Rasters larger than memory, of any bands, with a place on a map: one raster in, one map or table of objects out."""

from typing import TYPE_CHECKING, Any

from .loading import LoadRasterFromFile

if TYPE_CHECKING:
    from .prediction import predict_raster

__all__ = ["LoadRasterFromFile", "predict_raster"]


def __getattr__(name: str) -> Any:
    """Return `predict_raster`, which needs mmcv and is imported only on use."""
    if name != "predict_raster":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .prediction import predict_raster

    return predict_raster
