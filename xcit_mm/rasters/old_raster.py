"""Rasters larger than memory, of any bands and range, read by windows in a model's format."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..utils.errors import preview
from .gdal import gdal
from .stored import StoredRaster

_COLORS = ("red", "green", "blue")
_PERCENTILES = (2.0, 98.0)
_WINDOW_SIDE = 128  # in pixels, of a window of the sample
_SAMPLE_WINDOWS = 16  # of the sample along each axis
_FEW_WINDOWS = 4  # where no scale is estimated
_MAX_PARTLY_OPAQUE = 0.25  # share of a mask, above which values between make an image
_MAX_COLLAR_SHARE = 0.1  # of a sample, above which zeros or limits at the border are no data
_MAX_EXTREME_SHARE = 0.01  # of a sample, above which an extreme value is no data
_MAX_INT16 = 32767
_USUAL_NODATA = (-999, -9999, -32768, -99999)  # which programs write where they have no data


class Raster(StoredRaster):
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
        crs: rasterio's coordinate reference system, or None.
        transform: affine.Affine from pixels (column, row) to coordinates, (0, 0) at the outer
            corner of the first pixel.
        dtype: Name of the type of the stored values.
        files: The local files that hold the content. None if a part lies elsewhere, as of a URL.
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
        self.notes: list[str] = []
        self._channels = channels
        self._raw = raw
        with gdal(path):
            super().__init__(path, gsd, nodata)
            if not self.files:
                problem = "its content is not in files of this machine"
                self.notes.append(f"{problem}: a result is kept even if the raster has changed")
            _, *pages = self._source.subdatasets or [None]
            if pages and self._source.count:
                self.notes.append(f"its first page is read, and not {preview(pages)}")
            self.bands = tuple(bands or self._default_bands())
            self._check_bands(is_chosen=bool(bands))
            types = [self._source.dtypes[band - 1] for band in self.bands]
            self.dtype = np.result_type(*types).name
            self._is_masked, self._alpha = self._find_masks()
            self.bounds = self._find_bounds(bounds, percentiles)

    def _default_bands(self) -> list[int]:
        """Return all bands but alpha, in the order of their colors. Raw bands are all, as
        stored.
        """
        colors = self._colors
        opaque = [n for n, color in enumerate(colors, 1) if self._raw or color != "alpha"]
        is_color = not self._raw and self._channels == 3
        if is_color and sorted(colors[number - 1] for number in opaque) == sorted(_COLORS):
            return [colors.index(color) + 1 for color in _COLORS]
        return opaque

    def _check_bands(self, is_chosen: bool) -> None:
        """Raise ValueError if the bands do not match the model, hold complex numbers or number the
        colors of a palette.
        """
        file = self._source
        if not file.count:
            raise ValueError(f"{self.path} holds {preview(file.subdatasets)}: give one of them")
        for band in self.bands:
            if not 1 <= band <= file.count:
                raise ValueError(f"{self.path} has no band {band}, but {file.count}, from 1 on")
        is_color = self._channels == 3 and not self._raw
        is_gray = is_color and len(self.bands) == 1
        if len(self.bands) != self._channels and not is_gray:
            option = f"--bands {_join(self.bands)}: " if is_chosen else ""
            described = [f"{number} {color}" for number, color in enumerate(self._colors, 1)]
            available = f"{file.count} bands ({preview(described)})"
            problem = f"{self.path} has {available}, but the model takes {self._channels}"
            meaning = "its red, green and blue, or one for all," if is_color else "as many"
            fix = f"give {meaning} as --bands {_join(range(1, self._channels + 1))}"
            raise ValueError(f"{option}{problem}: {fix}")
        if any(file.dtypes[band - 1].startswith("complex") for band in self.bands):
            raise ValueError(f"{self.path} holds complex numbers: give a file of their magnitudes")
        if not self._raw and self._colors[self.bands[0] - 1] == "palette":
            command = f"gdal_translate -expand rgb {self.path} OUT.tif"
            raise ValueError(f"{self.path} has a palette: convert it by `{command}`")

    def _find_masks(self) -> tuple[bool, int | None]:
        """Return whether GDAL's mask tells which pixels have data, and the alpha band that tells it
        too, which GDAL does not use beside a nodata value.
        """
        from rasterio.enums import MaskFlags

        alpha = self._find_alpha()
        if MaskFlags.alpha in self._file.mask_flag_enums[self.bands[0] - 1]:
            return alpha is not None, None
        return True, alpha

    def _find_alpha(self) -> int | None:
        """Return the number of the alpha band that tells which pixels have data, if there is one.

        Writers mark the fourth of four bands as alpha, whatever it shows. A mask has two values,
        and few between them where its edges were resampled. An image varies: a note names it.
        """
        colors = [color.name for color in self._file.colorinterp]
        alpha = colors.index("alpha") + 1 if "alpha" in colors else None
        if alpha is None or alpha in self.bands:
            return None
        windows = self._sample_windows(_FEW_WINDOWS)
        samples = [[self._file.read(alpha, window=window) for window in row] for row in windows]
        opacity = np.block(samples)
        opacity = opacity[opacity > 0]
        is_image = opacity.size and (opacity < opacity.max()).mean() > _MAX_PARTLY_OPAQUE
        if not is_image:
            return alpha
        problem = f"its band {alpha} is marked as alpha, but varies as an image does"
        self.notes.append(f"{problem}: it is neither used nor a mask")
        return None

    def _find_bounds(
        self, bounds: Sequence[float] | None, percentiles: Sequence[float] | None
    ) -> np.ndarray | None:
        """Return the values of each band that become 0 and 255, (n, 2), or None without a scale."""
        if percentiles is not None:
            option = f"--percentiles {_join(percentiles)}"
            if len(percentiles) != 2 or not 0 <= percentiles[0] < percentiles[1] <= 100:
                raise ValueError(f"{option}: give two from 0 to 100, the lower one first")
            if bounds is not None:
                raise ValueError(f"{option}: leave them out, or leave out --bounds")
        if bounds is None and not self._raw and self.dtype != "uint8":
            sample = self._read_sample(_SAMPLE_WINDOWS)
            return _estimate_bounds(*sample, percentiles or _PERCENTILES, self.path)
        if percentiles is not None:
            self.notes.append("its values are not scaled: --percentiles has no effect")
        if "://" not in self.path:  # a sample would be most of what is read of a URL
            self._read_sample(_FEW_WINDOWS)  # for its notes
        return None if bounds is None else _parse_bounds(bounds, len(self.bands))

    def _read_sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Read a sample of up to `count` windows along each axis, with the validity of its values,
        both (n, h, w).

        Pixels are invalid that all bands fill with one value of no data, which the file does not
        declare. A note names the value.
        """
        samples = [[self._read(*window) for window in row] for row in self._sample_windows(count)]
        pixels = np.block([[pixels for pixels, _ in row] for row in samples])
        valid = np.block([[valid for _, valid in row] for row in samples])
        stored = pixels[0][valid.all(axis=0)]
        for fill in {0.0, float(stored.min()), float(stored.max())} if stored.size else ():
            is_fill = (valid & (pixels == fill)).all(axis=0)
            rest = pixels[:, valid.all(axis=0) & ~is_fill]
            if rest.size and self._is_no_data(fill, is_fill, rest):
                valid &= ~is_fill
                value = f"{fill:.17g}"  # all digits, as values must be equal
                described = "zeros at its border" if fill == 0 else f"values of {value}"
                problem = f"{described} fill {is_fill.mean():.0%} of a sample"
                self.notes.append(f"{problem}: with --nodata={value} they are left out")
        return pixels, valid

    def _is_no_data(self, value: float, is_value: np.ndarray, rest: np.ndarray) -> bool:
        """Return whether a value, at the pixels `is_value` of a sample, is no data: zero or a limit
        of an integer type at the border, or far from the rest.
        """
        share = is_value.mean()
        is_at_border = is_value[[0, -1]].any() or is_value[:, [0, -1]].any()
        is_collar = bool(is_at_border and share > _MAX_COLLAR_SHARE)
        if value == 0:
            return is_collar
        if is_collar and value in _limits(self.dtype):
            return True
        if share <= _MAX_EXTREME_SHARE or self.dtype == "uint8":
            return False
        lowest = float(rest.min())
        highest = float(rest.max())
        is_far = max(lowest - value, value - highest) > highest - lowest > 0
        is_usual = value in _USUAL_NODATA
        return is_usual or (is_far and (value == 9999 or not 0 < value < _MAX_INT16))

    def _sample_windows(self, count: int) -> list[list[tuple[slice, slice]]]:
        """Spread small windows evenly over the raster from border to border, as rows of up to
        `count` windows.
        """
        spans = []
        for length in (self.height, self.width):
            size = min(_WINDOW_SIDE, length)
            number = min(count, -(-length // size))
            starts = np.unique(np.linspace(0, length - size, number).astype(int)).tolist()
            spans.append([slice(start, start + size) for start in starts])
        return [[(rows, columns) for columns in spans[1]] for rows in spans[0]]

    def _read(self, rows: slice, columns: slice) -> tuple[np.ndarray, np.ndarray]:
        """Read stored values and their validity, both (n, h, w)."""
        options = self.dtype, self._is_masked, self._alpha
        return self.read_stored(self.bands, rows, columns, *options)

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
        with gdal(self.path):
            pixels, valid = self._read(rows, columns)
        if self._raw:
            pixels = np.nan_to_num(pixels, posinf=0, neginf=0)
        elif self.bounds is not None:
            low, high = self.bounds.T[..., None, None]
            floats = np.where(valid, pixels, low)  # float64, as the bounds are
            scaled = np.rint((floats - low) / (high - low) * 255)
            pixels = scaled.clip(0, 255).astype(np.uint8)
        if len(pixels) < self._channels:
            pixels = pixels.repeat(self._channels, axis=0)
        if self._channels == 3 and not self._raw:
            pixels = pixels[::-1]
        return np.ascontiguousarray(pixels.transpose(1, 2, 0)), valid.max(axis=0)


def _limits(dtype: str) -> tuple[int, ...]:
    """Return the lowest and the highest value of an integer type."""
    if not np.issubdtype(dtype, np.integer):
        return ()
    limits = np.iinfo(dtype)
    return limits.min, limits.max


def _join(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def _parse_bounds(bounds: Sequence[float], bands: int) -> np.ndarray:
    """Return the values of each band that become 0 and 255, (bands, 2), from one pair for all or
    one for each.
    """
    numbers = np.array(bounds, np.float64)
    if len(numbers) not in (2, 2 * bands) or not np.isfinite(numbers).all():
        fix = f"give one pair, LOW HIGH, or one for each of the {bands} bands"
        raise ValueError(f"--bounds {_join(bounds)}: {fix}")
    pairs = np.broadcast_to(numbers.reshape(-1, 2), (bands, 2))
    if not (pairs[:, 0] < pairs[:, 1]).all():
        raise ValueError(f"--bounds {_join(bounds)}: the lower value must come first")
    return pairs


def _estimate_bounds(
    pixels: np.ndarray, valid: np.ndarray, percentiles: Sequence[float], path: str
) -> np.ndarray:
    """Compute two percentiles, (n, 2), of the valid pixels of each band, (n, h, w)."""
    bounds = []
    for number, (band, is_valid) in enumerate(zip(pixels, valid, strict=True), 1):
        sample = band[is_valid].astype(np.float64)
        if not len(sample):
            problem = f"a sample of its band {number} has no valid pixel"
            raise ValueError(f"{path}: {problem}, give --bounds LOW HIGH")
        low, high = np.percentile(sample, percentiles)
        if low == high:  # most values are equal
            low = sample.min()
            high = sample.max()
        if low == high:
            high = low + max(1.0, np.spacing(abs(low)))
        bounds.append((low, high))
    return np.array(bounds)


def pad(pixels: np.ndarray, side: int, fill: int = 0) -> np.ndarray:
    """Pad pixels (h, w, ...) at the bottom and at the right to squares of at least `side`."""
    widths = [(0, 0)] * pixels.ndim
    for axis in range(2):
        widths[axis] = (0, max(side - pixels.shape[axis], 0))
    return np.pad(pixels, widths, constant_values=fill)
