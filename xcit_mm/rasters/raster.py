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
            file = self._file = open_raster(path)
            self._check_file()
            self.height, self.width = file.shape
            self.transform = file.transform
            # Engineering systems have no place on the earth.
            is_on_earth = file.crs and (file.crs.is_projected or file.crs.is_geographic)
            self.crs = file.crs if is_on_earth else None
            colors = [color.name for color in file.colorinterp]
            self.bands = list(bands or self._default_bands(colors))
            self._check_bands(colors)
            self.dtype = np.result_type(*(file.dtypes[band - 1] for band in self.bands)).name
            self._check_values(colors)
            flags = file.mask_flag_enums[0]
            # A band that the model sees is not a mask, though writers mark a fourth one as alpha.
            self._is_masked = "alpha" not in [colors[band - 1] for band in self.bands]
            if not self._is_masked and nodata is None:
                self._nodata = file.nodata
            has_mask = self._is_masked and MaskFlags.all_valid not in flags
            # GDAL reads the blocks that a sparse file lacks as nodata.
            self._may_lack_blocks = file.driver == "GTiff" and MaskFlags.nodata in flags
            collar = "no nodata, alpha or mask: if it has a collar, --nodata 0"
            self.notes = [] if has_mask or self._nodata is not None else [collar]
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

    def _default_bands(self, colors: Sequence[str]) -> list[int]:
        if self._raw:
            return [*self._file.indexes]
        if self._channels == 3 and set(_COLORS) <= set(colors):
            return [colors.index(color) + 1 for color in _COLORS]
        return [number for number, color in enumerate(colors, 1) if color != "alpha"]

    def _check_bands(self, colors: Sequence[str]) -> None:
        """Raise ValueError if the numbers of the bands do not match the file or the model."""
        if not set(self.bands) <= set(self._file.indexes):
            raise ValueError(f"--bands {_join(self.bands)}: {self.path} has 1 to {len(colors)}")
        is_gray = self._channels == 3 and len(self.bands) == 1 and not self._raw
        if len(self.bands) != self._channels and not is_gray:
            described = [f"{number} {color}" for number, color in enumerate(colors, 1)]
            problem = f"the model takes {self._channels} bands, not {_join(self.bands)}"
            fix = f"choose, as by --bands {_join(range(1, self._channels + 1))}"
            raise ValueError(f"{self.path} ({preview(described)}): {problem}: {fix}")

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
            sample = f"percentiles {_join(_PERCENTILES)} of a sample"
            fix = f"say which become 0 and 255, such as `--bounds {estimate}`, {sample}"
            raise ValueError(f"{self.path} has values of {self.dtype}: {fix}")
        count = len(self.bands)
        if len(bounds) not in (2, 2 * count):
            fix = f"give one pair, LOW HIGH, or one for each of the {count} bands"
            raise ValueError(f"--bounds {_join(bounds)}: {fix}")
        pairs = np.broadcast_to(np.reshape(bounds, (-1, 2)).astype(np.float64), (count, 2))
        if not (pairs[:, 0] < pairs[:, 1]).all():
            raise ValueError(f"--bounds {_join(bounds)}: the lower value must come first")
        if self.dtype == "uint8" and pairs.max() > 255:
            raise ValueError(f"--bounds {_join(bounds)}: {self.path} has 8 bits, up to 255")
        return pairs

    def _estimate(self, percentiles: Sequence[float]) -> list[float]:
        """Return percentiles of each band in a sample of small windows, which are evenly spread."""
        spans = []
        for length in (self.height, self.width):
            side = min(_SAMPLE_SIDE, length)
            starts = np.linspace(0, length - side, min(_SAMPLE_WINDOWS, -(-length // side)))
            spans.append([slice(start, start + side) for start in starts.astype(int).tolist()])
        windows = [self._read(*window) for window in product(*spans)]
        sample = np.concatenate([pixels[:, valid] for pixels, valid in windows], axis=1)
        if not sample.size:
            raise ValueError(f"{self.path}: a sample has no data, give --bounds LOW HIGH")
        bounds = np.nanpercentile(sample.astype(np.float64), percentiles, axis=1)
        return [float(f"{bound:.6g}") for bound in bounds.T.ravel()]

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

    def read(self, rows: slice, columns: slice) -> tuple[np.ndarray, np.ndarray]:
        """Read a window, and which of its pixels have data: by the mask of the whole file as
        rasterio's `dataset_mask` finds it, with a finite value that is not `nodata` in some band.

        Returns:
            The image, (h, w, 3), uint8, BGR, or for other `channels` (h, w, channels) in the order
            of `bands`. With a scale, pixels without data are 0. A raw image has the file's type,
            with 0 in place of NaN and infinity.
            Whether pixels have data, (h, w), bool.
        """
        with gdal(self.path):
            pixels, valid = self._read(rows, columns)
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

    def _read(self, rows: slice, columns: slice) -> tuple[np.ndarray, np.ndarray]:
        """Read stored values (n, h, w), and which pixels have data (h, w)."""
        options: dict[str, Any] = dict(window=(rows, columns))
        valid = np.ones((rows.stop - rows.start, columns.stop - columns.start), bool)
        if self._is_masked:
            valid = self._file.dataset_mask(**options) > 0
        if not valid.any():
            return np.zeros((len(self.bands), *valid.shape), self.dtype), valid
        pixels = self._file.read(self.bands, out_dtype=self.dtype, **options)
        valid &= np.isfinite(pixels).any(axis=0)
        if self._nodata is not None:
            valid &= (pixels != self._nodata).any(axis=0)
        return pixels, valid


def _join(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def pad(pixels: np.ndarray, side: int, fill: int = 0) -> np.ndarray:
    """Pad pixels (h, w, ...) at the bottom and at the right to squares of at least `side`."""
    widths = [(0, 0)] * pixels.ndim
    for axis in range(2):
        widths[axis] = (0, max(side - pixels.shape[axis], 0))
    return np.pad(pixels, widths, constant_values=fill)
