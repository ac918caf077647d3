"""Rasters larger than memory, of any bands and range, read by windows in a model's format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .bands import check_percentiles, estimate_bounds, parse_bounds, select_bands, to_bytes
from .gdal import (
    CACHE_SIZE,
    check_place,
    gdal,
    list_files,
    open_raster,
    read_stored_blocks,
    resample,
)

_PERCENTILES = (2.0, 98.0)
_MAX_CACHE = 2**31  # bytes, for the strips of a row of tiles
_MAX_TILE = 2048  # rows of a tile whose strips fit
_SAMPLE = 128  # side in pixels of a window of the sample
_SAMPLES = 16  # windows of the sample along each axis
_FEW_SAMPLES = 4  # where no scale is estimated
_MAX_RESAMPLED = 0.25  # share of a mask, above which other values make an image
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
            Default: files of 8 bits are not scaled, others by `percentiles`, by default 2 and 98,
            of a sample.
        nodata: Stored value of pixels without data. Default: the file's.

    Attributes:
        height, width: Size in pixels.
        crs: rasterio's coordinate reference system, or None.
        transform: affine.Affine from pixels (column, row) to coordinates, (0, 0) at the outer
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
            check_percentiles(percentiles, bounds)
        self.path = str(path)
        self.gsd = gsd
        self.nodata = nodata
        self.notes: list[str] = []
        self._channels = channels
        self._raw = raw
        with gdal(path):
            file = open_raster(path)
            check_place(file)
            self._file = file if gsd is None else resample(file, gsd, nodata)
            self.files = list_files(file)
            self.bands = select_bands(file, bands, channels, raw)
            self.height = self._file.height
            self.width = self._file.width
            self.transform = self._file.transform
            # Engineering systems have no place on the earth.
            is_on_earth = file.crs and (file.crs.is_projected or file.crs.is_geographic)
            self.crs = file.crs if is_on_earth else None
            self.dtype = np.result_type(*(file.dtypes[band - 1] for band in self.bands)).name
            self._stored_blocks = read_stored_blocks(file, self.bands)
            # Blocks of the file for each pixel, as pixels may be resampled.
            scale = np.divide(file.shape, self._file.shape)
            self._blocks_per_pixel = scale / file.block_shapes[0]
            self._is_masked = self._has_mask()
            self._cache = CACHE_SIZE
            if file.block_shapes[0][1] >= file.width:  # neighbouring tiles share whole strips
                strips = _MAX_TILE * file.width * file.count * np.dtype(self.dtype).itemsize
                self._cache = min(max(CACHE_SIZE, strips), _MAX_CACHE)
            self.bounds = self._find_bounds(bounds, percentiles)

    def _find_bounds(
        self, bounds: Sequence[float] | None, percentiles: Sequence[float] | None
    ) -> np.ndarray | None:
        """Return the values of each band that become 0 and 255, (n, 2), or None without a scale."""
        if bounds is None and not self._raw and self.dtype != "uint8":
            sample = self._read_sample(_SAMPLES)
            return estimate_bounds(*sample, percentiles or _PERCENTILES, self.path)
        if percentiles is not None:
            self.notes.append("its values are not scaled: --percentiles has no effect")
        if "://" not in self.path:  # a sample would be most of what is read of a URL
            self._read_sample(_FEW_SAMPLES)
        return None if bounds is None else parse_bounds(bounds, len(self.bands))

    def _has_mask(self) -> bool:
        """Return whether the file's mask tells pixels without data.

        Writers mark the fourth of four bands as alpha, whatever it shows. A mask has two values,
        and few between them where its edges were resampled. An image varies.
        """
        from rasterio.enums import MaskFlags

        if MaskFlags.alpha not in self._file.mask_flag_enums[self.bands[0] - 1]:
            return True
        alpha = [color.name for color in self._file.colorinterp].index("alpha") + 1
        if alpha in self.bands:
            return False
        windows = self._sample_windows(_FEW_SAMPLES)
        samples = [[self._file.read(alpha, window=window) for window in row] for row in windows]
        opacity = np.block(samples)
        opacity = opacity[opacity > 0]
        is_image = opacity.size and (opacity < opacity.max()).mean() > _MAX_RESAMPLED
        if self._raw or not is_image:
            return True
        problem = f"its band {alpha} is marked as alpha, but varies as an image does"
        self.notes.append(f"{problem}: it is neither used nor a mask")
        return False

    def _read_sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Read a sample of up to `count` windows along each axis, with the validity of its values,
        both (n, h, w).

        Pixels are invalid that all bands fill with one value of no data, which the file does not
        declare. A note names the value.
        """
        samples = [[self._read(*window) for window in row] for row in self._sample_windows(count)]
        pixels = np.block([[pixels for pixels, _ in row] for row in samples])
        valid = np.block([[valid for _, valid in row] for row in samples])
        values = pixels[0][valid.all(axis=0)]
        for fill in {0.0, float(values.min()), float(values.max())} if values.size else ():
            is_fill = (valid & (pixels == fill)).all(axis=0)
            rest = pixels[:, valid.all(axis=0) & ~is_fill]
            if rest.size and self._is_no_data(fill, is_fill, rest):
                valid &= ~is_fill
                place = "zeros at its border" if fill == 0 else f"values of {fill:g}"
                problem = f"{place} fill {is_fill.mean():.0%} of a sample"
                self.notes.append(f"{problem}: with --nodata {fill:g} they are no part of it")
        return pixels, valid

    def _is_no_data(self, value: float, is_value: np.ndarray, rest: np.ndarray) -> bool:
        """Return whether a value is no data: zero at the border, or far from all other values."""
        share = is_value.mean()
        if value == 0:
            is_at_border = is_value[[0, -1]].any() or is_value[:, [0, -1]].any()
            return bool(is_at_border and share > _MAX_ZEROS)
        if share <= _MAX_EXTREMES or self.dtype == "uint8":
            return False
        lowest = float(rest.min())
        highest = float(rest.max())
        is_far = max(lowest - value, value - highest) > highest - lowest > 0
        return value in _EXTREMES or (is_far and not 0 < value < _MAX_INT16)

    def _sample_windows(self, count: int) -> list[list[tuple[slice, slice]]]:
        """Spread small windows evenly over the raster from border to border, as rows of up to
        `count` windows.
        """
        spans = []
        for length in self._file.shape:
            size = min(_SAMPLE, length)
            number = min(count, -(-length // size))
            starts = np.unique(np.linspace(0, length - size, number).astype(int)).tolist()
            spans.append([slice(start, start + size) for start in starts])
        return [[(rows, columns) for columns in spans[1]] for rows in spans[0]]

    def _read(self, rows: slice, columns: slice) -> tuple[np.ndarray, np.ndarray]:
        """Read stored values and their validity, both (n, h, w)."""
        if not self.stores(rows, columns):
            shape = len(self.bands), rows.stop - rows.start, columns.stop - columns.start
            return np.zeros(shape, self.dtype), np.zeros(shape, bool)
        options: dict[str, Any] = dict(out_dtype=self.dtype, masked=self._is_masked)
        stored = self._file.read(list(self.bands), window=(rows, columns), **options)
        pixels = np.ma.getdata(stored)
        valid = ~np.ma.getmaskarray(stored) & np.isfinite(pixels)
        if self.nodata is not None:
            valid &= pixels != self.nodata
        if self._stored_blocks is not None:
            valid &= self._stored_blocks[np.ix_(*self._blocks(rows, columns))]
        return pixels, valid

    def _blocks(self, rows: slice, columns: slice) -> list[np.ndarray]:
        """Return the row of blocks of each row of pixels, and the column of each column."""
        blocks = []
        for pixels, blocks_per_pixel in zip((rows, columns), self._blocks_per_pixel, strict=True):
            centres = np.arange(pixels.start, pixels.stop) + 0.5
            blocks.append((centres * blocks_per_pixel).astype(int))
        return blocks

    def stores(self, rows: slice, columns: slice) -> bool:
        """Return whether the file stores a pixel of a window. A sparse file leaves out blocks."""
        if self._stored_blocks is None:
            return True
        spans = [slice(blocks[0], blocks[-1] + 1) for blocks in self._blocks(rows, columns)]
        return bool(self._stored_blocks[tuple(spans)].any())

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
            pixels, valid = self._read(rows, columns)
        if self._raw:
            pixels = np.nan_to_num(pixels, posinf=0, neginf=0)
        elif self.bounds is not None:
            pixels = to_bytes(pixels, valid, self.bounds)
        if len(pixels) < self._channels:
            pixels = pixels.repeat(self._channels, axis=0)
        if self._channels == 3 and not self._raw:
            pixels = pixels[::-1]
        return np.ascontiguousarray(pixels.transpose(1, 2, 0)), valid.max(axis=0)


def pad(pixels: np.ndarray, side: int, fill: int = 0) -> np.ndarray:
    """Pad pixels (h, w, ...) at the bottom and at the right to squares of at least `side`."""
    widths = [(0, 0)] * pixels.ndim
    for axis in range(2):
        widths[axis] = (0, max(side - pixels.shape[axis], 0))
    return np.pad(pixels, widths, constant_values=fill)
