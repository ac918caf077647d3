"""A raster larger than memory, read by windows in the format of a model's input."""

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..utils.cli import print_line
from .gdal import gdal, open_raster
from .polygons import Span

_COLORS = ("red", "green", "blue")
_SAMPLE_BLOCKS = 50


class Raster:
    """A file of GDAL, read by windows in the format of a model's input.

    A line is printed if the file does not say which pixels have data.

    Args:
        bands: Numbers of the bands, from 1: red, green and blue, one for all three, or as many as
            `channels` in the model's order. Default: those that the file names red, green and
            blue, or all but alpha.
        raw: Whether to read values as stored, as `LoadRasterFromFile`.
        bounds: Stored values that become 0 and 255: one pair for all bands, or one for each.
        nodata: A value without data, besides what the file declares.

    Raises:
        ValueError: If file, options and channels do not match.
        OSError: If GDAL cannot read the file.
    """

    def __init__(
        self,
        path: str | Path,
        channels: int = 3,
        bands: Sequence[int] | None = None,
        raw: bool = False,
        bounds: Sequence[float] | None = None,
        nodata: float | None = None,
    ) -> None:
        from rasterio.enums import MaskFlags

        self.path = str(path)
        self._channels = channels
        self.raw = raw
        self._nodata = nodata
        with gdal(path):
            self._file = open_raster(path)
            self._check_file()
            self.height, self.width = self._file.shape
            self._size = self._file.shape  # in pixels as they are read
            self.transform = self._file.transform
            crs = self._file.crs
            # Engineering systems have no place on the earth.
            self.crs = crs if crs and (crs.is_projected or crs.is_geographic) else None
            self.bands = self._choose_bands(bands)
            self._dtype = np.result_type(*(self._file.dtypes[n - 1] for n in self.bands)).name
            flags = self._file.mask_flag_enums[0]
            # GDAL reads the blocks that a sparse file lacks as nodata.
            self._may_lack_blocks = self._file.driver == "GTiff" and MaskFlags.nodata in flags
            if nodata is None and MaskFlags.all_valid in flags:
                print_line(f"{path}: no nodata, alpha or mask: if it has a collar, --nodata 0")
            self._bounds = self._find_bounds(bounds)

    def _check_file(self) -> None:
        """Raise ValueError if a file must be converted before it is one image with a place."""
        file = self._file
        points, _ = file.gcps
        if file.subdatasets:
            problem = "holds several rasters"
            command = f"gdal_translate {file.subdatasets[0]}"
        elif file.transform.is_identity and (points or file.rpcs):
            problem = "has control points and no affine place"
            command = f"gdalwarp {'' if points else '-rpc '}-r bilinear {self.path}"
        elif file.colorinterp[0].name == "palette":
            problem = "has a palette"
            command = f"gdal_translate -expand rgb {self.path}"
        elif file.dtypes[0].startswith("complex"):
            problem = "has complex numbers"
            command = f"gdal_calc.py -A {self.path} --calc 'abs(A)' --type Float32 --outfile"
        else:
            return
        raise ValueError(f"{self.path} {problem}: convert it by `{command} OUT.tif`")

    def _choose_bands(self, bands: Sequence[int] | None) -> list[int]:
        colors = [color.name for color in self._file.colorinterp]
        images = [number for number, color in enumerate(colors, 1) if color != "alpha"]
        is_color = self._channels == 3 and not self.raw
        chosen = list(bands or images)
        if is_color and not bands and set(_COLORS) <= set(colors):
            chosen = [colors.index(color) + 1 for color in _COLORS]
        is_matching = len(chosen) == self._channels or (is_color and len(chosen) == 1)
        if not is_matching or not set(chosen) <= set(images):
            problem = f"it has {len(images)} without alpha, and the model takes {self._channels}"
            # Programs mark the infrared of four bands as alpha.
            command = f"gdal_translate -colorinterp_4 undefined {self.path} OUT.tif"
            fix = f"choose them by --bands; an alpha becomes a band by `{command}`"
            raise ValueError(f"bands {_join(chosen)} of {self.path}: {problem}: {fix}")
        return chosen

    def _find_bounds(self, bounds: Sequence[float] | None) -> np.ndarray | None:
        if bounds is None:
            if self.raw or self._dtype == "uint8":
                return None
            percentiles = np.nanpercentile(self.sample(), (2, 98), axis=1).T.ravel()
            problem = f"{self.path} has values of {self._dtype}: say which become 0 and 255"
            command = f"--bounds {_join(percentiles)}"
            raise ValueError(f"{problem}, such as `{command}`, percentiles 2 98 of a sample")
        count = len(self.bands)
        pairs = np.resize(np.array(bounds, np.float64), (count, 2))
        is_beyond = self._dtype == "uint8" and pairs.max() > 255
        if len(bounds) not in (2, 2 * count) or is_beyond or not (pairs[:, 0] < pairs[:, 1]).all():
            fix = f"give LOW HIGH of {self._dtype}, for all bands or for each of {count}"
            raise ValueError(f"--bounds {_join(bounds)} for {self.path}: {fix}")
        return pairs

    def sample(self) -> np.ndarray:
        """Return stored values of the pixels with data in some of the file's blocks, (bands, n),
        with NaN in place of infinity.

        Raises:
            ValueError: If none of these pixels has data.
        """
        with gdal(self.path):
            windows = [window for _, window in self._file.block_windows(1)]
            stored = [window for window in windows if self.stores(*window.toslices())]
            step = len(stored) // _SAMPLE_BLOCKS + 1
            blocks = [self._read(*window.toslices()) for window in stored[::step]]
        sample = np.concatenate([pixels[:, valid] for pixels, valid in blocks], axis=1)
        if not sample.size:
            fix = "cut it to what has data" if self.raw else "give --bounds LOW HIGH"
            raise ValueError(f"{self.path}: a sample has no data, {fix}")
        return np.where(np.isfinite(sample), sample, np.nan)

    def resample(self, height: int, width: int) -> None:
        """Let GDAL resample what is read from now on to a size, in whose pixels windows are."""
        self._size = height, width

    def stores(self, rows: Span, columns: Span) -> bool:
        """Return whether the file stores a pixel of a window. A sparse GeoTIFF leaves out blocks of
        nodata.
        """
        if not self._may_lack_blocks:
            return True
        height, width = self._file.block_shapes[0]
        (top, bottom), (left, right) = self._window(rows, columns).toranges()
        y = range(int(top // height), math.ceil(bottom / height))
        x = range(int(left // width), math.ceil(right / width))
        return any(
            self._file.get_tag_item(f"BLOCK_OFFSET_{column}_{row}", "TIFF", bidx=band)
            for row, column, band in product(y, x, self._file.indexes)
        )

    def read(self, rows: Span, columns: Span) -> tuple[np.ndarray, np.ndarray]:
        """Read a window, and which of its pixels have data: by GDAL's mask of the file, with a
        finite value that is not `nodata` in some band. A window may end beyond the raster.

        Returns:
            The image, (h, w, 3), uint8, BGR, or for other `channels` (h, w, channels) in the order
            of `bands`. With a scale, pixels without data are 0. A raw image has the file's type,
            with 0 in place of NaN and infinity.
            Whether pixels have data, (h, w), bool.
        """
        with gdal(self.path):
            pixels, valid = self._read(rows, columns)
        if self._bounds is not None:
            low, high = self._bounds.T[..., None, None]
            has_value = valid & np.isfinite(pixels)
            scaled = np.rint((np.where(has_value, pixels, low) - low) / (high - low) * 255)
            pixels = scaled.clip(0, 255).astype(np.uint8)
        if self.raw:
            pixels = np.nan_to_num(pixels, posinf=0, neginf=0)
        elif self._channels == 3:
            pixels = pixels[::-1]
        image = np.broadcast_to(pixels.transpose(1, 2, 0), (*valid.shape, self._channels))
        return image.copy(), valid

    def _read(self, rows: Span, columns: Span) -> tuple[np.ndarray, np.ndarray]:
        """Read stored values (n, h, w), and which pixels have data (h, w)."""
        from rasterio.enums import Resampling

        size = rows.stop - rows.start, columns.stop - columns.start
        pixels = np.zeros((len(self.bands), *size), self._dtype)
        valid = np.zeros(size, bool)
        height = min(rows.stop, self._size[0]) - rows.start
        width = min(columns.stop, self._size[1]) - columns.start
        window = self._window(rows, columns)
        valid[:height, :width] = self._file.dataset_mask(window=window, out_shape=(height, width))
        if not valid.any():
            return pixels, valid
        options = dict(out_dtype=self._dtype, resampling=Resampling.bilinear)
        shape = len(self.bands), height, width
        stored = self._file.read(self.bands, window=window, out_shape=shape, **options)
        pixels[:, :height, :width] = stored
        valid &= np.isfinite(pixels).any(axis=0)
        if self._nodata is not None:
            valid &= (pixels != self._nodata).any(axis=0)
        return pixels, valid

    def _window(self, rows: Span, columns: Span) -> Any:
        from rasterio.windows import Window

        y, x = np.divide(self._file.shape, self._size)
        bottom = min(rows.stop * y, self.height)
        right = min(columns.stop * x, self.width)
        return Window.from_slices((rows.start * y, bottom), (columns.start * x, right))


def _join(numbers: Sequence[float] | np.ndarray) -> str:
    return " ".join(f"{number:g}" for number in numbers)
