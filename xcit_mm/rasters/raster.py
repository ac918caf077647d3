"""A raster larger than memory, read by windows in the format of a model's input."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..utils.errors import preview
from .gdal import gdal, open_raster

_COLORS = ("red", "green", "blue")
_PERCENTILES = (2.0, 98.0)
_SAMPLE_WINDOWS = 16  # along each axis
_SAMPLE_SIDE = 128  # of a window, in pixels


class Raster:
    """A file of GDAL, read by windows in the format of a model's input.

    Args:
        bands: Numbers of the bands, from 1: red, green and blue, one for all three, or as many as
            `channels` in the model's order. Default: those that the file names red, green and
            blue, or all but alpha.
        raw: Whether to read values as stored, and by default all bands, as `LoadRasterFromFile`.
        bounds: Stored values that become 0 and 255: one pair for all bands, or one for each.
        percentiles: Two percentiles of a sample of each band, in place of `bounds`.
        nodata: A value without data, besides what the file declares.

    Attributes:
        bounds: As an array (bands, 2), or None without a scale.
        dtype: Name of the type of the stored values.
        notes: Lines that a user should read.

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
        percentiles: Sequence[float] | None = None,
        nodata: float | None = None,
    ) -> None:
        from rasterio.enums import MaskFlags

        self.path = str(path)
        self._channels = channels
        self._raw = raw
        self._nodata = nodata
        with gdal(path):
            self._file = open_raster(path)
            self._check_file()
            self.height, self.width = self._file.shape
            self.transform = self._file.transform
            crs = self._file.crs
            # Engineering systems have no place on the earth.
            self.crs = crs if crs and (crs.is_projected or crs.is_geographic) else None
            colors = [color.name for color in self._file.colorinterp]
            self.bands = self._choose_bands(bands, colors)
            self.dtype = np.result_type(*(self._file.dtypes[n - 1] for n in self.bands)).name
            self._check_values(colors)
            flags = self._file.mask_flag_enums[0]
            # GDAL reads the blocks that a sparse file lacks as nodata.
            self._may_lack_blocks = self._file.driver == "GTiff" and MaskFlags.nodata in flags
            # A band that the model sees is not a mask, though writers mark a fourth one as alpha.
            self._is_masked = "alpha" not in [colors[number - 1] for number in self.bands]
            if not self._is_masked and nodata is None:
                self._nodata = self._file.nodata
            self.notes = []
            if self._nodata is None and (not self._is_masked or MaskFlags.all_valid in flags):
                self.notes.append("no nodata, alpha or mask: if it has a collar, --nodata 0")
            self.bounds = self._find_bounds(bounds, percentiles)

    def _check_file(self) -> None:
        """Raise ValueError if a file holds several rasters, or its place is not affine."""
        file = self._file
        if file.subdatasets:
            fix = f"extract one by `gdal_translate {file.subdatasets[0]} OUT.tif`"
            raise ValueError(f"{self.path} holds {preview(file.subdatasets)}: {fix}")
        points, _ = file.gcps
        if file.transform.is_identity and (points or file.rpcs):
            command = "gdalwarp" if points else "gdalwarp -rpc"
            fix = f"rectify it by `{command} -r bilinear {self.path} OUT.tif`"
            raise ValueError(f"{self.path} has control points and no affine place: {fix}")

    def _choose_bands(self, bands: Sequence[int] | None, colors: Sequence[str]) -> list[int]:
        """Return the numbers of the bands. Raise ValueError if they do not match the model."""
        is_color = self._channels == 3 and not self._raw
        if bands:
            chosen = list(bands)
        elif is_color and set(_COLORS) <= set(colors):
            chosen = [colors.index(color) + 1 for color in _COLORS]
        else:
            chosen = [n for n, color in enumerate(colors, 1) if self._raw or color != "alpha"]
        is_gray = is_color and len(chosen) == 1
        is_matching = len(chosen) == self._channels or is_gray
        if not is_matching or not set(chosen) <= set(self._file.indexes):
            described = [f"{number} {color}" for number, color in enumerate(colors, 1)]
            problem = f"it has {preview(described)}, and the model takes {self._channels}"
            fix = f"choose bands, as --bands {_join(range(1, self._channels + 1))}"
            raise ValueError(f"bands {_join(chosen)} of {self.path}: {problem}: {fix}")
        return chosen

    def _check_values(self, colors: Sequence[str]) -> None:
        """Raise ValueError if the values are not those of an image."""
        if colors[self.bands[0] - 1] == "palette":
            command = f"gdal_translate -expand rgb {self.path} OUT.tif"
            raise ValueError(f"{self.path} has a palette: convert it by `{command}`")
        if self.dtype.startswith("complex"):
            options = "--calc 'abs(A)' --type Float32 --outfile OUT.tif"
            command = f"gdal_calc.py -A {self.path} {options}"
            raise ValueError(f"{self.path} has complex numbers: convert it by `{command}`")

    def _find_bounds(
        self, bounds: Sequence[float] | None, percentiles: Sequence[float] | None
    ) -> np.ndarray | None:
        """Return the values of each band that become 0 and 255, (n, 2), or None without a scale."""
        if percentiles is not None:
            bounds = self._estimate(percentiles)
        elif bounds is None and (self._raw or self.dtype == "uint8"):
            return None
        elif bounds is None:
            estimate = _join(self._estimate(_PERCENTILES))
            percent = f"percentiles {_join(_PERCENTILES)} of a sample"
            sample = ", ".join([percent, *self.notes])
            fix = f"say which become 0 and 255, such as `--bounds {estimate}`, {sample}"
            raise ValueError(f"{self.path} has values of {self.dtype}: {fix}")
        count = len(self.bands)
        pairs = np.resize(np.array(bounds, np.float64), (count, 2))
        is_beyond = self.dtype == "uint8" and pairs.max() > 255
        if len(bounds) not in (2, 2 * count) or is_beyond or not (pairs[:, 0] < pairs[:, 1]).all():
            fix = f"give LOW HIGH of {self.dtype}, for all bands or for each of {count}"
            raise ValueError(f"--bounds {_join(bounds)} for {self.path}: {fix}")
        return pairs

    def _estimate(self, percentiles: Sequence[float]) -> list[float]:
        """Return percentiles of each band in a sample of small windows, which are evenly spread."""
        spans = []
        for length in (self.height, self.width):
            side = min(_SAMPLE_SIDE, length)
            starts = np.linspace(0, length - side, min(_SAMPLE_WINDOWS, -(-length // side)))
            spans.append([slice(start, start + side) for start in starts.astype(int).tolist()])
        windows = [self._read(rows, columns) for rows, columns in product(*spans)]
        sample = np.concatenate([pixels[:, valid] for pixels, valid in windows], axis=1)
        if not sample.size:
            raise ValueError(f"{self.path}: a sample has no data, give --bounds LOW HIGH")
        estimate = np.nanpercentile(sample.astype(np.float64), percentiles, axis=1)
        return [float(f"{value:.6g}") for value in estimate.T.ravel()]

    def stores(self, rows: slice, columns: slice) -> bool:
        """Return whether the file stores a pixel of a window. A sparse GeoTIFF leaves out blocks of
        nodata.
        """
        if not self._may_lack_blocks:
            return True
        height, width = self._file.block_shapes[0]
        block_rows = range(rows.start // height, -(-rows.stop // height))
        block_columns = range(columns.start // width, -(-columns.stop // width))
        return any(
            self._file.get_tag_item(f"BLOCK_OFFSET_{column}_{row}", "TIFF", bidx=band)
            for row, column, band in product(block_rows, block_columns, self._file.indexes)
        )

    def read(
        self, rows: slice, columns: slice, size: tuple[int, int] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read a window, and which of its pixels have data: by `dataset_mask` of rasterio, with a
        finite value that is not `nodata` in some band.

        Args:
            size: Height and width to which GDAL resamples the raster. The window is in pixels of
                this size. Default: the raster's own.

        Returns:
            The image, (h, w, 3), uint8, BGR, or for other `channels` (h, w, channels) in the order
            of `bands`. With a scale, pixels without data are 0. A raw image has the file's type,
            with 0 in place of NaN and infinity.
            Whether pixels have data, (h, w), bool.
        """
        with gdal(self.path):
            pixels, valid = self._read(rows, columns, size)
        if self.bounds is not None:
            low, high = self.bounds.T[..., None, None]
            has_value = valid & np.isfinite(pixels)
            scaled = np.rint((np.where(has_value, pixels, low) - low) / (high - low) * 255)
            pixels = scaled.clip(0, 255).astype(np.uint8)
        if self._raw:
            pixels = np.nan_to_num(pixels, posinf=0, neginf=0)
        elif self._channels == 3:
            pixels = pixels[::-1]
        image = np.broadcast_to(pixels.transpose(1, 2, 0), (*valid.shape, self._channels))
        return np.ascontiguousarray(image), valid

    def _read(
        self, rows: slice, columns: slice, size: tuple[int, int] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read stored values (n, h, w), and which pixels have data (h, w)."""
        from rasterio.enums import Resampling
        from rasterio.windows import Window

        valid = np.ones((rows.stop - rows.start, columns.stop - columns.start), bool)
        height, width = size or (self.height, self.width)
        y = self.height / height
        x = self.width / width
        sides = (valid.shape[1] * x, valid.shape[0] * y)
        window = Window(columns.start * x, rows.start * y, *sides)
        if self._is_masked:
            valid = self._file.dataset_mask(window=window, out_shape=valid.shape) > 0
        if not valid.any():
            return np.zeros((len(self.bands), *valid.shape), self.dtype), valid
        options: dict[str, Any] = dict(window=window, resampling=Resampling.bilinear)
        options |= dict(out_shape=(len(self.bands), *valid.shape), out_dtype=self.dtype)
        pixels = self._file.read(self.bands, **options)
        valid &= np.isfinite(pixels).any(axis=0)
        if self._nodata is not None:
            valid &= (pixels != self._nodata).any(axis=0)
        return pixels, valid


def _join(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def pad(pixels: np.ndarray, side: int, fill: int = 0) -> np.ndarray:
    """Pad pixels (h, w, ...) at the bottom and at the right to squares of at least `side`."""
    height, width, *_ = pixels.shape
    widths = [(0, max(side - height, 0)), (0, max(side - width, 0)), (0, 0)][: pixels.ndim]
    return np.pad(pixels, widths, constant_values=fill)
