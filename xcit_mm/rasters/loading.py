"""A loader of images of any number of bands, for the pipelines of mmdet and mmseg."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.registry import TRANSFORMS


@TRANSFORMS.register_module()
class LoadRasterFromFile:
    """Load a GeoTIFF, or another format of GDAL, with any number of bands, in their order.

    It takes the place of `LoadImageFromFile`. That step uses OpenCV, which rejects more than four
    bands, misreads two, and swaps the first and the third. Pixels without data keep the value that
    the file stores.

    Args:
        bands: Numbers of the bands to load, from 1, in this order. Default: all.
        to_float32: Whether to convert the values to float32. Integers of up to 24 bits stay exact.
    """

    def __init__(self, bands: Sequence[int] | None = None, to_float32: bool = True) -> None:
        self.bands = None if bands is None else list(bands)
        self.to_float32 = to_float32

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Add `img` (H, W, bands), `img_shape` and `ori_shape` to a dictionary with `img_path`.

        Raises:
            OSError: If GDAL cannot read the file.
            ValueError: If the file does not have one of `bands`, or holds several rasters, such as
                the pages of a TIFF.
        """
        from .gdal import gdal, open_raster  # which `import xcit_mm` does not need

        path = results["img_path"]
        with gdal(path), open_raster(path) as file:
            missing = set(self.bands or ()).difference(file.indexes)
            if missing:
                raise ValueError(f"{path} has no bands {sorted(missing)}: give 1 to {file.count}")
            image = np.ascontiguousarray(file.read(self.bands).transpose(1, 2, 0))
        if self.to_float32:
            image = image.astype(np.float32)
        return {**results, "img": image, "img_shape": image.shape[:2], "ori_shape": image.shape[:2]}
