"""Scenes larger than memory, of any bands and range, read by windows as a model takes them; by rasterio."""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from .bands import chosen_layers
from .gdal import gdal, opened
from .scaling import PERCENTILES, Bounds, Scale, check_percentiles, checked_bounds, estimated_bounds, to_bytes

__all__ = ["Raster"]

# Bounds are estimated from an overview of so many pixels, or from a grid of windows.
_SAMPLE = (2**16, 2**22)
_GRID, _PATCH = 16, 128


class Span(Protocol):
    """From where to where along an axis, in pixels: a `slice`, or a `Window` of tiles."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...


class Raster:
    """A scene that is read by windows. It can be sent to other processes, each of which opens the file for itself.

    Images are as `read_image` gives them, of files that both read losslessly: BGR of three bands, a single band
    three times, palettes as their colours. A file's EXIF orientation is not applied: its place is that of the
    pixels as they are stored.

    Args:
        path: The file.
        bands: Numbers, from 1 on, of the bands that are red, green and blue to the model, or of a single one; for
            a model of other `channels`, in its order. Default: all but alpha, and red, green and blue by their
            names if the file has them; only a file of as many as the model takes, or one, leaves no choice.
        scale: What becomes 0 and what 255: a pair for all bands, or one for each. Default: 8-bit files are not
            scaled, others by `percentiles` of the scene.
        channels: What the model takes.
        percentiles: By which `bounds` are estimated.
        raw: Whether to read values as they are stored, in the order of `bands`, as `LoadRasterFromFile` does; without
            scale. Default bands are then all of the file.

    Attributes:
        height: In pixels.
        width: In pixels.
        count: Bands in the file.
        dtype: NumPy's name of the pixels' type.
        crs: rasterio's, or None.
        transform: From pixels (column, row) to coordinates, (0, 0) being the outer corner of the first pixel.
        nodata: The value of pixels without one, or None.

    Raises:
        FileNotFoundError: If there is none.
        OSError: If it is no raster, or broken.
        ValueError: If its bands are not what the model takes, or hold complex numbers; if the scale is none.
        ModuleNotFoundError: If rasterio is not installed.
    """

    def __init__(
        self,
        path: str | Path,
        bands: Sequence[int] | None = None,
        scale: Scale | None = None,
        channels: int = 3,
        percentiles: Sequence[float] = PERCENTILES,
        raw: bool = False,
    ) -> None:
        self.path = str(path)
        self.percentiles = percentiles
        self._open_in: tuple[int, Any] | None = None
        check_percentiles(percentiles)
        with gdal(self.path):
            file = self._file
            self._layers = chosen_layers(file, bands, channels, raw)
            self.bands = self._layers.bands
            self.height, self.width, self.count = file.height, file.width, file.count
            self.dtype: str = np.result_type(*(file.dtypes[band - 1] for band in self.bands)).name
            self.crs, self.transform, self.nodata = file.crs, file.transform, file.nodatavals[self.bands[0] - 1]
        if scale is not None:
            if raw or self._layers.palette is not None:
                what = "is read as it is stored" if raw else "has a palette of colours"
                raise ValueError(f"--bounds {scale} for {self.path}, which {what}: give none")
            self.bounds = checked_bounds(scale, len(self.bands))

    @property
    def _file(self) -> Any:
        """The open file, this process's own: two that share one would move each other's place in it."""
        if self._open_in is None or self._open_in[0] != os.getpid():
            if not os.path.exists(self.path):
                raise FileNotFoundError(f"{self.path} does not exist")
            self._open_in = os.getpid(), opened(self.path)
        return self._open_in[1]

    def close(self) -> None:
        """Close the file; to read opens it again."""
        if self._open_in is not None and self._open_in[0] == os.getpid():
            self._open_in[1].close()
        self._open_in = None

    def __enter__(self) -> "Raster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open_in": None}

    @cached_property
    def bounds(self) -> Bounds | None:
        """What becomes 0 and what 255, of each of `bands`; None of 8-bit files and raw, which are read as they are.

        Estimated where no scale was given, when first asked for: from an overview, or a grid of windows. The same
        file gives the same bounds. As `scale` of the same file they spare another process the reading.

        Raises:
            ValueError: If there is not a valid pixel in the sample.
            OSError: If it cannot be read.
        """
        layers = self._layers
        if layers.raw or layers.palette is not None or layers.bits == 8:
            return None
        if layers.bits is not None:  # all that they can be, as decoders of pictures have it
            return [(0.0, 2.0**layers.bits - 1)] * len(self.bands)
        try:
            return estimated_bounds(self._samples(), self.percentiles)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None

    def _samples(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        least, most = _SAMPLE
        with gdal(self.path):
            levels = [1, *self._file.overviews(self.bands[0])]
        shapes = [(-(-self.height // level), -(-self.width // level)) for level in sorted(levels)]
        few = [shape for shape in shapes if shape[0] * shape[1] <= most]
        if few and (few[0] == shapes[0] or few[0][0] * few[0][1] >= least):
            yield self._values(slice(0, self.height), slice(0, self.width), few[0])
            return
        for row in _spread(self.height):
            for column in _spread(self.width):
                yield self._values(row, column)

    def read(self, rows: Span, columns: Span) -> tuple[np.ndarray, np.ndarray]:
        """A window as the model's pipeline takes it, and where it is valid.

        Args:
            rows: From where to where; nothing else is read.
            columns: As rows.

        Returns:
            The image (h, w, 3), BGR, or (h, w, channels) in the order of `bands`; uint8, or raw of the file's type.
            And (h, w), bool: not where the file's mask, its alpha channel unless that is one of raw bands, or all
            chosen bands, by nodata, NaN or infinity, say that there is nothing. Where only some bands say so these
            are 0, if scaled; raw, NaN and infinity are 0, of which no model makes anything.

        Raises:
            ValueError: If the window is empty or not within the scene.
            OSError: If it cannot be read.
        """
        values, valid = self._values(rows, columns)
        layers = self._layers
        if layers.raw:
            finite = np.nan_to_num(values, copy=False, posinf=0, neginf=0) if self.dtype.startswith("float") else values
            return np.ascontiguousarray(finite.transpose(1, 2, 0)), valid.max(axis=0)
        if layers.palette is not None:
            colours = layers.palette.take(values[0], axis=0, mode="clip")
            return np.ascontiguousarray(colours[..., 2::-1]), np.logical_and(valid[0], colours[..., 3])
        bounds = self.bounds
        if bounds is not None:
            values = to_bytes(values, valid, bounds)
        elif layers.blended_with is not None:
            values = self._blended(values, rows, columns, layers.blended_with)
        order = [0] * layers.channels if len(values) < layers.channels else range(len(values))
        order = order[::-1] if layers.channels == 3 else order
        return np.stack([values[number] for number in order], axis=-1), valid.max(axis=0)

    def is_empty(self, rows: Span, columns: Span) -> bool:
        """Whether no pixel of a window is valid, without more reading than that takes; raises as `read`."""
        window = self._window(rows, columns)
        with gdal(self.path):
            return not any(self._valid(band, window).any() for band in self.bands)

    def valid(self, rows: Span, columns: Span) -> np.ndarray:
        """Where a window is valid, (h, w), bool; raises as `read`."""
        window = self._window(rows, columns)
        with gdal(self.path):
            return np.logical_or.reduce([self._valid(band, window) for band in self.bands])

    def _window(self, rows: Span, columns: Span) -> tuple[tuple[int, int], tuple[int, int]]:
        for what, span, length in (("rows", rows, self.height), ("columns", columns, self.width)):
            if not 0 <= span.start < span.stop <= length:
                raise ValueError(f"{what} {span.start} to {span.stop} of {self.path}, which has {length}")
        return (rows.start, rows.stop), (columns.start, columns.stop)

    def _values(self, rows: Span, columns: Span, shape: tuple[int, int] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Pixels of the bands as they are stored, and which are valid, (n, h, w) both; decimated to a shape."""
        window = self._window(rows, columns)
        with gdal(self.path):
            values = self._file.read(
                list(self.bands), window=window, out_shape=shape and (len(self.bands), *shape), out_dtype=self.dtype
            )
            valid = [self._valid(band, window, one) for band, one in zip(self.bands, values, strict=True)]
        return values, np.stack(valid)

    def _valid(
        self, band: int, window: tuple[tuple[int, int], tuple[int, int]], values: np.ndarray | None = None
    ) -> np.ndarray:
        """Which pixels of a band are valid, of its values (h, w) if they are read."""
        from rasterio.enums import MaskFlags

        shape = (window[0][1] - window[0][0], window[1][1] - window[1][0]) if values is None else values.shape
        valid: np.ndarray = np.ones(shape, bool)
        flags = self._file.mask_flag_enums[band - 1]
        if MaskFlags.all_valid not in flags and not (MaskFlags.alpha in flags and self._alpha_is_data):
            valid = self._file.read_masks(band, window=window, out_shape=shape) > 0
        if self.dtype.startswith("float") and valid.any():
            valid &= np.isfinite(self._file.read(band, window=window) if values is None else values)
        return valid

    @cached_property
    def _alpha_is_data(self) -> bool:
        """Whether raw bands have what the file calls an alpha channel, as writers call the fourth of four bands."""
        from rasterio.enums import ColorInterp

        return self._layers.raw and any(self._file.colorinterp[band - 1] == ColorInterp.alpha for band in self.bands)

    def _blended(self, values: np.ndarray, rows: Span, columns: Span, alpha: int) -> np.ndarray:
        """Colours over black, as OpenCV reads a TIFF whose alpha is not in its colours yet."""
        with gdal(self.path):
            opacity = self._file.read(alpha, window=self._window(rows, columns)).astype(np.uint16)
        return ((values * opacity + 127) // 255).astype(np.uint8)


def _spread(length: int) -> list[slice]:
    """Up to 16 pieces of an axis, evenly."""
    size = min(_PATCH, length)
    count = min(_GRID, -(-length // size))
    starts = [number * (length - size) // max(count - 1, 1) for number in range(count)]
    return [slice(start, start + size) for start in starts]
