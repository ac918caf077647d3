"""Rasters larger than memory, of any bands and range, read by windows in a model's format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .bands import estimate_bounds, parse_bounds, select_bands, to_bytes
from .gdal import CACHE_SIZE, StoredBlocks, gdal, list_files, open_source

_PERCENTILES = (2.0, 98.0)
_MAX_CACHE = 2**31  # bytes, for the strips of a row of tiles
_SAMPLE = 128  # side in pixels of a window of the sample
_SAMPLES = 16  # windows of the sample along each axis
_FEW_SAMPLES = 4  # where no scale is estimated
_MAX_ZEROS = 0.1  # share of a sample, above which zeros at the border are no data
_MAX_EXTREMES = 0.01  # share of a sample, above which an extreme value is no data
_MAX_INT16 = 32767
_EXTREMES = (-999, -9999, -32768, -99999)  # which programs write where they have no data


class Raster:
    """A raster that is read by windows in the format of a model's input.

    Args:
        path: Path, URL or another name that GDAL opens.
        channels: Number of channels of the model.
        bands: Numbers of the bands, from 1: red, green and blue, a single band for all three, or
            as many as `channels` in the model's order. Default: all but alpha, where red, green
            and blue are ordered by their names in the file.
        raw: Whether to read stored values without a scale, and by default all bands, as
            `LoadRasterFromFile` does.
        gsd: Size of the pixels in metres, to which the file is resampled. Default: the file's.
        bounds: Stored values that become 0 and 255: one pair for all bands, or one for each.
            Default: files of 8 bits are not scaled, others by `percentiles` of a sample of the
            raster.
        percentiles: Percentiles that become 0 and 255. Default: 2 and 98.
        nodata: Stored value of pixels without data. Default: the file's.

    Attributes:
        height, width: Size in pixels.
        crs: rasterio's coordinate reference system, or None.
        transform: affine.Affine from pixels (column, row) to coordinates. (0, 0) is the outer
            corner of the first pixel.
        dtype: Name of the type of the stored values.
        files: The local files that hold the pixels, none of a URL.
        notes: Lines that a user should read before the raster is used.

    Raises:
        ValueError: If bands, bounds or percentiles do not match, or the place is not a transform.
        OSError: If GDAL cannot read the file. The message is one line.
    """

    def __init__(
        self,
        path: str | Path,
        channels: int = 3,
        bands: Sequence[int] | None = None,
        raw: bool = False,
        gsd: float | None = None,
        bounds: Sequence[float] | None = None,
        percentiles: Sequence[float] | None = None,
        nodata: float | None = None,
    ) -> None:
        if percentiles is not None:
            _check_percentiles(percentiles, bounds)
        self.path = str(path)
        self.gsd = gsd
        self.nodata = nodata
        self.notes: list[str] = []
        self._channels = channels
        self._raw = raw
        with gdal(path):
            file, self._file = open_source(path, gsd, nodata)
            self.files = list_files(file)
            self.bands = select_bands(file, bands, channels, raw)
            self.height = self._file.height
            self.width = self._file.width
            self.transform = self._file.transform
            # Engineering systems have no place on the earth.
            is_on_earth = file.crs and (file.crs.is_projected or file.crs.is_geographic)
            self.crs = file.crs if is_on_earth else None
            self.dtype = np.result_type(*(file.dtypes[band - 1] for band in self.bands)).name
            self._blocks = StoredBlocks(self._file, self.bands)
            self._is_masked = self._has_mask()
            self._cache = self._cache_size()
            self.bounds = None if bounds is None else parse_bounds(bounds, len(self.bands))
            if bounds is None and not raw and self.dtype != "uint8":
                pixels, valid = self._read_sample(_SAMPLES)
                self._leave_out_fill(pixels, valid)
                scale = percentiles or _PERCENTILES
                self.bounds = estimate_bounds(pixels, valid, scale, self.path)
                return
            if percentiles is not None:
                self.notes.append("its values are not scaled: --percentiles has no effect")
            if "://" not in self.path:  # a sample would be most of what is read of a URL
                self._leave_out_fill(*self._read_sample(_FEW_SAMPLES))

    def _has_mask(self) -> bool:
        """Return whether the file's mask tells pixels without data. Its alpha may be an image."""
        from rasterio.enums import MaskFlags

        if MaskFlags.alpha not in self._file.mask_flag_enums[self.bands[0] - 1]:
            return True
        alpha = [color.name for color in self._file.colorinterp].index("alpha") + 1
        if alpha in self.bands:
            return False
        if self._raw or not self._is_image(alpha):
            return True
        problem = f"its band {alpha} is marked as alpha, but varies as an image does"
        self.notes.append(f"{problem}: it is neither used nor a mask")
        return False

    def _is_image(self, band: int) -> bool:
        """Return whether an alpha band varies as an image does. Writers mark the fourth of four
        bands as alpha, whatever it shows.

        A mask has two values, and few between them where its edges were resampled.
        """
        windows = self._sample_windows(4)
        opacity = np.block(
            [[self._file.read(band, window=window) for window in row] for row in windows]
        )
        opacity = opacity[opacity > 0]
        return bool(opacity.size) and bool((opacity < opacity.max()).mean() > 0.25)

    def _cache_size(self) -> int:
        """Return the bytes of cache that a row of tiles needs."""
        row_size = self.width * self._file.count * np.dtype(self.dtype).itemsize
        is_in_strips = self._file.block_shapes[0][1] >= self.width
        if not is_in_strips or row_size * self.height <= CACHE_SIZE:
            return CACHE_SIZE
        return min(max(CACHE_SIZE, 2048 * row_size), _MAX_CACHE)

    def _read_sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Read the sample of up to `count` windows along each axis, with the validity of its
        values, both (n, h, w).
        """
        samples = [[self._read(window) for window in row] for row in self._sample_windows(count)]
        pixels = np.block([[pixels for pixels, _ in row] for row in samples])
        valid = np.block([[valid for _, valid in row] for row in samples])
        return pixels, valid

    def _leave_out_fill(self, pixels: np.ndarray, valid: np.ndarray) -> None:
        """Set pixels of a sample invalid that all bands fill with one value of no data, which the
        file does not declare. A note names the value.
        """
        values = pixels[0][valid.all(axis=0)]
        if not values.size:
            return
        for fill in {0.0, float(values.min()), float(values.max())}:
            is_fill = (valid & (pixels == fill)).all(axis=0)
            rest = pixels[:, valid.all(axis=0) & ~is_fill]
            if not rest.size or not self._is_fill(fill, is_fill, rest):
                continue
            valid &= ~is_fill
            place = "zeros at its border" if fill == 0 else f"values of {fill:g}"
            problem = f"{place} fill {is_fill.mean():.0%} of a sample"
            self.notes.append(f"{problem}: with --nodata {fill:g} they are no part of it")

    def _is_fill(self, value: float, is_fill: np.ndarray, rest: np.ndarray) -> bool:
        """Return whether a value is no data: zero at the border, or far from all other values."""
        share = is_fill.mean()
        if value == 0:
            is_at_border = is_fill[[0, -1]].any() or is_fill[:, [0, -1]].any()
            return bool(is_at_border and share > _MAX_ZEROS)
        if share <= _MAX_EXTREMES or self.dtype == "uint8":
            return False
        lowest = float(rest.min())
        highest = float(rest.max())
        is_far = max(lowest - value, value - highest) > highest - lowest > 0
        return value in _EXTREMES or (is_far and not 0 < value < _MAX_INT16)

    def _sample_windows(self, count: int) -> list[list[Any]]:
        """Spread small windows evenly over the raster from border to border, as rows of up to
        `count` windows.
        """
        spans = []
        for length in (self._file.height, self._file.width):
            size = min(_SAMPLE, length)
            number = min(count, -(-length // size))
            starts = np.unique(np.linspace(0, length - size, number).astype(int)).tolist()
            spans.append([(start, start + size) for start in starts])
        return [[(rows, columns) for columns in spans[1]] for rows in spans[0]]

    def _read(self, window: Any) -> tuple[np.ndarray, np.ndarray]:
        """Read stored values and their validity, both (n, h, w)."""
        rows, columns = (slice(*span) for span in window)
        is_stored = self._blocks.covers(rows, columns)
        if is_stored is not None and not is_stored.any():
            shape = len(self.bands), *is_stored.shape
            return np.zeros(shape, self.dtype), np.zeros(shape, bool)
        stored = self._file.read(
            list(self.bands), window=window, out_dtype=self.dtype, masked=self._is_masked
        )
        pixels = np.ma.getdata(stored)
        valid = ~np.ma.getmaskarray(stored) & np.isfinite(pixels)
        if self.nodata is not None:
            valid &= pixels != self.nodata
        if is_stored is not None:
            valid &= is_stored
        return pixels, valid

    def stores(self, rows: slice, columns: slice) -> bool:
        """Return whether the file stores a pixel of a window. A sparse file leaves out blocks."""
        return self._blocks.has_any(rows, columns)

    def read(self, rows: slice, columns: slice) -> tuple[np.ndarray, np.ndarray]:
        """Read a window and the validity of its pixels.

        A pixel is valid if one of its bands is: stored, finite, not nodata, and not masked by the
        file.

        Returns:
            The image, (h, w, 3), uint8, BGR, or for other `channels` (h, w, channels) in the order
            of `bands`. Invalid values are 0 where a scale is used, else as stored. A raw image has
            the file's type, with 0 in place of NaN and infinity.
            The validity, (h, w), bool.
        """
        with gdal(self.path, cache=self._cache):
            pixels, valid = self._read(((rows.start, rows.stop), (columns.start, columns.stop)))
        is_valid = valid.max(axis=0)
        if self._raw:
            pixels = np.nan_to_num(pixels, posinf=0, neginf=0)
        elif self.bounds is not None:
            pixels = to_bytes(pixels, valid, self.bounds)
        if len(pixels) < self._channels:
            pixels = pixels.repeat(self._channels, axis=0)
        if self._channels == 3 and not self._raw:
            pixels = pixels[::-1]
        return np.ascontiguousarray(pixels.transpose(1, 2, 0)), is_valid


def _check_percentiles(percentiles: Sequence[float], bounds: Sequence[float] | None) -> None:
    """Raise ValueError if percentiles are not a scale, or not the only one."""
    low, high = percentiles
    if not 0 <= low < high <= 100:
        fix = "give two from 0 to 100, the lower one first"
        raise ValueError(f"--percentiles {low} {high}: {fix}")
    if bounds is not None:
        raise ValueError(f"--percentiles {low} {high}: leave them out, or leave out --bounds")
