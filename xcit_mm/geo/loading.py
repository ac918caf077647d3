"""A loader of images of any number of bands, for the pipelines of mmdet and mmseg."""

import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.registry import TRANSFORMS

__all__ = ["LoadRasterFromFile"]


def _are_numbers(bands: Any) -> bool:
    return isinstance(bands, list | tuple) and bool(bands) and all(type(band) is int and band > 0 for band in bands)


@TRANSFORMS.register_module()
class LoadRasterFromFile:
    """Load what GDAL reads, such as a GeoTIFF, in place of `LoadImageFromFile`: any number of bands, in their order.

    OpenCV, which `LoadImageFromFile` uses, refuses more than four bands, misreads two and swaps the first and the
    third. What stands for missing data in the file is a value like any other.

    Args:
        bands: Numbers of the bands to load, from 1, in this order. Default: all.
        to_float32: Whether to convert the values to float32, whatever the file's type; integers of up to 24 bits stay
            exact.

    Raises:
        ModuleNotFoundError: If rasterio is not installed.
        ValueError: If `bands` are no such numbers.
    """

    def __init__(self, bands: Sequence[int] | None = None, to_float32: bool = True) -> None:
        if bands is not None and not _are_numbers(bands):
            raise ValueError(f"{bands=}: give a list of numbers of bands, counted from 1, such as [3, 2, 1]")
        if importlib.util.find_spec("rasterio") is None:
            raise ModuleNotFoundError("LoadRasterFromFile needs rasterio: pip install xcit_mm[raster]")
        self.bands = None if bands is None else list(bands)
        self.to_float32 = to_float32

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Add `img` (H, W, bands), `img_shape` and `ori_shape` to what has an `img_path`.

        Raises:
            ValueError: If the file has no such bands.
            rasterio.errors.RasterioIOError: If it cannot be read.
        """
        image = self._read(results["img_path"])
        if self.to_float32:
            image = image.astype(np.float32)
        return {**results, "img": image, "img_shape": image.shape[:2], "ori_shape": image.shape[:2]}

    def _read(self, path: str) -> np.ndarray:
        import rasterio
        from rasterio.errors import NotGeoreferencedWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)  # a picture has its place nowhere
            with rasterio.open(path) as file:
                bands = self.bands or list(file.indexes)
                if max(bands) > file.count:
                    raise ValueError(f"{path} has {file.count} bands, band {max(bands)} is asked for: correct bands")
                return np.ascontiguousarray(file.read(bands).transpose(1, 2, 0))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(bands={self.bands}, to_float32={self.to_float32})"
