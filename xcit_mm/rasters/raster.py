"""A raster larger than memory, read by windows in the format of a model's input."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..utils.cli import print_line
from ..utils.errors import preview
from .gdal import gdal, open_raster
from .polygons import Span

_COLORS = ("red", "green", "blue")
_SAMPLE_BLOCKS = 50  # of a file, to estimate percentiles


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
        self._raw = raw
        self._nodata = nodata
        self._step = (1.0, 1.0)  # of a pixel that is read, in rows and columns of the file
        with gdal(path):
            self._file = open_raster(path)
            self._check_file()
            self.height, self.width = self._file.shape
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
            problem = f"holds {preview(file.subdatasets)}"
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
        is_color = self._channels == 3 and not self._raw
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
            if self._raw or self._dtype == "uint8":
                return None
            problem = f"{self.path} has values of {self._dtype}: say which become 0 and 255"
            command = f"--bounds {_join(self._find_percentiles())}"
            raise ValueError(f"{problem}, such as `{command}`, percentiles 2 98 of a sample")
        count = len(self.bands)
        pairs = np.resize(np.array(bounds, np.float64), (count, 2))
        is_beyond = self._dtype == "uint8" and pairs.max() > 255
        if len(bounds) not in (2, 2 * count) or is_beyond or not (pairs[:, 0] < pairs[:, 1]).all():
            fix = f"give LOW HIGH of {self._dtype}, for all bands or for each of {count}"
            raise ValueError(f"--bounds {_join(bounds)} for {self.path}: {fix}")
        return pairs

    def _find_percentiles(self) -> np.ndarray:
        """Return percentiles 2 and 98 of each band in some of the file's blocks."""
        windows = [window for _, window in self._file.block_windows(1)]
        step = len(windows) // _SAMPLE_BLOCKS + 1
        blocks = [self._read(*window.toslices()) for window in windows[::step]]
        sample = np.concatenate([pixels[:, valid] for pixels, valid in blocks], axis=1)
        if not sample.size:
            raise ValueError(f"{self.path}: a sample has no data, give --bounds LOW HIGH")
        return np.nanpercentile(sample, (2, 98), axis=1).T.ravel()

    def resample(self, height: int, width: int) -> None:
        """Let GDAL resample what is read from now on to a size, in whose pixels windows are."""
        self._step = (self.height / height, self.width / width)

    def stores(self, rows: Span, columns: Span) -> bool:
        """Return whether the file stores a pixel of a window. A sparse GeoTIFF leaves out blocks of
        nodata.
        """
        from rasterio.windows import round_window_to_full_blocks

        if not self._may_lack_blocks:
            return True
        height, width = self._file.block_shapes[0]
        window = round_window_to_full_blocks(self._window(rows, columns), self._file.block_shapes)
        y, x = window.toslices()
        places = product(range(x.start, x.stop, width), range(y.start, y.stop, height))
        names = [f"BLOCK_OFFSET_{x // width}_{y // height}" for x, y in places]
        return any(
            self._file.get_tag_item(name, "TIFF", bidx=band)
            for name, band in product(names, self._file.indexes)
        )

    def read(self, rows: Span, columns: Span) -> tuple[np.ndarray, np.ndarray]:
        """Read a window, and which of its pixels have data: by GDAL's mask of the file, with a
        finite value that is not `nodata` in some band.

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
        if self._raw:
            pixels = np.nan_to_num(pixels, posinf=0, neginf=0)
        elif self._channels == 3:
            pixels = pixels[::-1]
        image = np.broadcast_to(pixels.transpose(1, 2, 0), (*valid.shape, self._channels))
        return image.copy(), valid

    def _read(self, rows: Span, columns: Span) -> tuple[np.ndarray, np.ndarray]:
        """Read stored values (n, h, w), and which pixels have data (h, w)."""
        from rasterio.enums import Resampling

        window = self._window(rows, columns)
        size = rows.stop - rows.start, columns.stop - columns.start
        shape = len(self.bands), *size
        valid = self._file.dataset_mask(window=window, out_shape=size) > 0
        if not valid.any():
            return np.zeros(shape, self._dtype), valid
        options = dict(out_shape=shape, out_dtype=self._dtype, resampling=Resampling.bilinear)
        pixels = self._file.read(self.bands, window=window, **options)
        valid &= np.isfinite(pixels).any(axis=0)
        if self._nodata is not None:
            valid &= (pixels != self._nodata).any(axis=0)
        return pixels, valid

    def _window(self, rows: Span, columns: Span) -> Any:
        from rasterio.windows import Window

        y, x = self._step
        height, width = rows.stop - rows.start, columns.stop - columns.start
        return Window(columns.start * x, rows.start * y, width * x, height * y)


def _join(numbers: Sequence[float] | np.ndarray) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def pad(pixels: np.ndarray, side: int, fill: int = 0) -> np.ndarray:
    """Pad pixels (h, w, ...) at the bottom and at the right to squares of at least `side`."""
    height, width, *_ = pixels.shape
    widths = [(0, max(side - height, 0)), (0, max(side - width, 0)), (0, 0)][: pixels.ndim]
    return np.pad(pixels, widths, constant_values=fill)
