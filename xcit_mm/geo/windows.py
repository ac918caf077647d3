"""Read windows of a raster's file: stored pixels and their validity, each strip of an untiled file once."""

import os
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .files import is_remote
from .gdal import gdal, open_raster
from .ground import resampling_factors

MAX_STRIPS = 2**31  # bytes of strips in memory
_MIN_STRIP = 64  # rows to read at once
_Self = TypeVar("_Self", bound="RasterWindows")


class RasterWindows:
    """A file that is read by windows. It can be sent to other processes, each of which opens the file itself.

    A tile of an untiled file needs strips of the whole width. They are kept until a window below needs other strips, as
    GDAL's cache would drop them before the next tile.

    Attributes:
        bands: Numbers of the bands to read, from 1.
        dtype: NumPy's name of the pixels' type.
        ignores_alpha: Whether the band that is marked as alpha is not the mask of the other bands.
        has_palette: Whether the values are numbers of colors, which have no average.
    """

    bands: tuple[int, ...]
    dtype: str
    ignores_alpha = False
    has_palette = False

    def __init__(self, path: str | Path, gsd: float | None = None) -> None:
        self.path = str(path)
        self._open_in: tuple[int, Any] | None = None  # process and open file
        self._strips: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # values and validity of whole rows
        with gdal(self.path):
            file = self._file
            factors = (1.0, 1.0) if gsd is None else resampling_factors(file, gsd)
            self.height = max(round(file.height / factors[0]), 1)
            self.width = max(round(file.width / factors[1]), 1)
            self._factors = file.height / self.height, file.width / self.width
            block_height, block_width = file.block_shapes[0] if file.count else (1, 1)
            is_untiled = block_width >= file.width
        block_height = max(round(block_height / self._factors[0]), 1)
        self._strip_height = max(_MIN_STRIP // block_height, 1) * block_height if is_untiled else 0

    @property
    def _file(self) -> Any:
        """The file, opened by this process. Processes that share an open file would move each other's position."""
        if self._open_in is None or self._open_in[0] != os.getpid():
            if not (is_remote(self.path) or os.path.exists(self.path)):
                raise FileNotFoundError(f"{self.path} does not exist")
            self._open_in = os.getpid(), open_raster(self.path)
        return self._open_in[1]

    def close(self) -> None:
        """Close the file. The next read opens it again."""
        if self._open_in is not None and self._open_in[0] == os.getpid():
            self._open_in[1].close()
        self._open_in, self._strips = None, {}

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open_in": None, "_strips": {}}

    def read_values(
        self, rows: slice, columns: slice, shape: tuple[int, int] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read stored pixels of the bands and their validity, both (n, h, w), decimated to `shape` if given.

        Raises:
            ValueError: If the window is empty or extends beyond the raster, or a row of windows needs too much memory.
            OSError: If the file cannot be read.
        """
        self._check(rows, columns)
        if not self._strip_height or shape is not None:
            return self._read(rows, columns, shape)
        self._read_strips(rows)
        return self._join_strips(rows, columns, 0), self._join_strips(rows, columns, 1)

    def valid(self, rows: slice, columns: slice) -> np.ndarray:
        """Read the validity of a window's pixels, (h, w), bool; raises as `read_values`."""
        self._check(rows, columns)
        if self._strip_height:
            self._read_strips(rows)
            return self._join_strips(rows, columns, 1).max(axis=0)
        with gdal(self.path):
            return self._read_validity(self._window(rows, columns)).max(axis=0)

    def _check(self, rows: slice, columns: slice) -> None:
        for axis, span, length in (("rows", rows, self.height), ("columns", columns, self.width)):
            if not 0 <= span.start < span.stop <= length:
                raise ValueError(f"{axis} {span.start} to {span.stop} of {self.path}, which has {length}")

    def _read_strips(self, rows: slice) -> None:
        height = self._strip_height
        numbers = range(rows.start // height, -(-rows.stop // height))
        size = len(numbers) * height * self.width * len(self.bands) * (np.dtype(self.dtype).itemsize + 1)
        if size > MAX_STRIPS:
            command = "gdal_translate -co TILED=YES -co COMPRESS=DEFLATE -co BIGTIFF=IF_SAFER IN OUT.tif"
            raise ValueError(
                f"{self.path} is stored in strips, {self.width} pixels wide, of which {rows.stop - rows.start} rows "
                f"take {size / 2**30:.1f} GB of memory: convert it by `{command}`"
            )
        self._strips = {number: strip for number, strip in self._strips.items() if number in numbers}
        for number in numbers:
            if number not in self._strips:
                strip = slice(number * height, min((number + 1) * height, self.height))
                self._strips[number] = self._read(strip, slice(0, self.width))

    def _join_strips(self, rows: slice, columns: slice, part: int) -> np.ndarray:
        """Return the values (part 0) or the validity (part 1) of a window, (n, h, w)."""
        numbers = sorted(self._strips)
        joined = np.concatenate([self._strips[number][part][..., columns] for number in numbers], axis=1)
        first = numbers[0] * self._strip_height
        return joined[:, rows.start - first : rows.stop - first]

    def _read(self, rows: slice, columns: slice, shape: tuple[int, int] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Read a window. If the pixels of the file have another size, GDAL resamples them, from an overview if any."""
        from rasterio.enums import Resampling

        options = self._window(rows, columns)
        if shape is not None:
            options["out_shape"] = shape
        elif self._factors != (1, 1) and not self.has_palette:
            options["resampling"] = Resampling.average if min(self._factors) > 1 else Resampling.bilinear
        bands, out_shape = list(self.bands), (len(self.bands), *options.pop("out_shape"))
        with gdal(self.path):
            values = self._file.read(bands, out_shape=out_shape, out_dtype=self.dtype, **options)
            return values, self._read_validity(self._window(rows, columns), values)

    def _window(self, rows: slice, columns: slice) -> dict[str, Any]:
        from rasterio.windows import Window

        (y, x), height, width = self._factors, rows.stop - rows.start, columns.stop - columns.start
        window = Window(columns.start * x, rows.start * y, width * x, height * y)
        return dict(window=window, out_shape=(height, width))

    def _read_validity(self, options: dict[str, Any], values: np.ndarray | None = None) -> np.ndarray:
        """Read the validity (n, h, w) of the bands. `values` (n, h, w) saves reading them again."""
        from rasterio.enums import MaskFlags

        shape = (len(self.bands), *options["out_shape"]) if values is None else values.shape
        window, bands = options["window"], list(self.bands)
        flags = {flag for band in bands for flag in self._file.mask_flag_enums[band - 1]}
        if flags == {MaskFlags.all_valid} or (MaskFlags.alpha in flags and self.ignores_alpha):
            valid = np.broadcast_to(np.True_, shape)  # takes no memory
        elif MaskFlags.per_dataset in flags:
            valid = np.broadcast_to(self._file.read_masks(bands[0], window=window, out_shape=shape[1:]) > 0, shape)
        else:
            valid = self._file.read_masks(bands, window=window, out_shape=shape) > 0
        if self.dtype.startswith("float"):
            finite = self._file.read(bands, window=window, out_shape=shape) if values is None else values
            valid = valid & np.isfinite(finite)
        return valid
