"""Rasters larger than memory, of any bands and range, read by windows as a model takes them."""

import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property, reduce
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .area import area_in_pixels, pixels_within
from .bands import select_bands
from .files import is_large
from .gdal import gdal
from .scaling import PERCENTILES, Bounds, Scale, estimate_bounds, parse_bounds, spread_patches, to_bytes
from .windows import RasterWindows


class Georeference(NamedTuple):
    """Size and place of a raster.

    Attributes:
        height: Height in pixels.
        width: Width in pixels.
        crs: rasterio's coordinate reference system, or None.
        transform: affine.Affine from pixels (column, row), from the outer corner of the first pixel, to coordinates.
    """

    height: int
    width: int
    crs: Any
    transform: Any


class Raster(RasterWindows):
    """A raster that is read by windows, as a model takes them; see `RasterWindows`.

    Images equal those of `read_image` for files that both read without loss: BGR from three bands, a single band three
    times, and the colors of palettes. A file's EXIF orientation is ignored, because the georeference is that of the
    stored pixels.

    Args:
        path: Path to the file.
        bands: Numbers, from 1, of the bands that are red, green and blue to the model, or of a single band; for a model
            of other `channels`, in its order. Default: all bands but alpha, if the model takes as many or there is one;
            red, green and blue are ordered by the names in the file.
        scale: Values that become 0 and 255: one pair for all bands, or one for each, in the units of
            the file's scale and offset. Default: files of 8 bits are not
            scaled, others by `percentiles` of the raster.
        channels: Number of channels of the model.
        percentiles: Percentiles that estimate `bounds`.
        raw: Whether to read stored values in the order of `bands`, as `LoadRasterFromFile` does, without a scale. The
            default `bands` are then all.
        gsd: Size of the pixels in metres, to which the file is resampled, from its overviews. Default: the file's.
        aoi: Area of interest, from `read_area`. Pixels outside are read, but invalid.

    Attributes:
        height: Height in pixels.
        width: Width in pixels.
        georeference: Size and place.
        area: Polygons of the area of interest in pixels, or None.
        notes: What a user should know of the file, without its name.

    Raises:
        FileNotFoundError: If the file does not exist.
        OSError: If the file is not a raster, or is broken.
        ValueError: If the bands do not match the model or have complex values, or the scale is invalid.
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
        gsd: float | None = None,
        aoi: str | None = None,
    ) -> None:
        super().__init__(path, gsd)
        self.percentiles, self._channels, self._raw = percentiles, channels, raw
        if len(percentiles) != 2 or not 0 <= percentiles[0] < percentiles[1] <= 100:
            raise ValueError(f"--percentiles {percentiles}: give two from 0 to 100, the lower one first")
        with gdal(self.path):
            file = self._file
            _check_place(file)
            self._selection = select_bands(file, bands, channels, raw)
            self.bands = self._selection.bands
            self.ignores_alpha = self._selection.alpha is None
            self.has_palette = self._selection.palette is not None
            a, b, c, d, e, f = file.transform[:6]
            y, x = self._factors
            transform = type(file.transform)(a * x, b * y, c, d * x, e * y, f)
            self.georeference = Georeference(self.height, self.width, file.crs, transform)
            self.area = None if aoi is None else area_in_pixels(aoi, self.path, file.crs, transform)
            self.notes = list(self._iter_notes())
            self._units = [(file.scales[band - 1], file.offsets[band - 1]) for band in self.bands]
            self.dtype = np.result_type(*(file.dtypes[band - 1] for band in self.bands)).name
        if scale is not None:
            if raw or self._selection.palette is not None:
                problem = "is read as it is stored" if raw else "has a palette of colors"
                raise ValueError(f"--bounds {scale} for {self.path}, which {problem}: give none")
            self.bounds = parse_bounds(scale, len(self.bands))

    def _iter_notes(self) -> Iterator[str]:
        alpha = [number for number, color in enumerate(self._file.colorinterp, 1) if color.name == "alpha"]
        if self.ignores_alpha and not self._raw and not set(alpha) <= set(self.bands):
            yield f"its band {alpha[0]} is marked as alpha, but varies as an image does: it is neither used nor a mask"
        if self._file.driver == "GTiff" and (pages := self._file.subdatasets):
            command = f"gdal_translate {pages[1]} OUT.tif"
            yield f"only the first of its {len(pages)} pages is read: `{command}` extracts another"

        has_place = self.georeference.crs is not None or not self.georeference.transform.is_identity
        if not has_place and not self._raw and is_large(self.width, self.height):
            yield "it has no place on a map, but more pixels than a photo may have: its results are those of a raster"

    @cached_property
    def bounds(self) -> Bounds | None:
        """Values of each of `bands` that become 0 and 255, or None for files of 8 bits and raw values.

        The values are those that QGIS shows: with the scale and offset that the file states for a band. Without
        `scale`, they are estimated at the first access, from an overview or a grid of patches, and depend on the file
        alone. Another process that gets the bounds as `scale` does not estimate them again.

        Raises:
            ValueError: If the sample has no valid pixel.
            OSError: If the file cannot be read.
        """
        selection = self._selection
        if self._raw or selection.palette is not None or selection.bits == 8:
            return None
        if selection.bits is not None:  # the whole range, as image decoders do
            return [(offset, (2.0**selection.bits - 1) * scale + offset) for scale, offset in self._units]
        try:
            stored = estimate_bounds(self._iter_samples(), self.percentiles)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        pairs = np.sort(
            [np.array(pair) * scale + offset for pair, (scale, offset) in zip(stored, self._units, strict=True)]
        )
        return [(low, high) for low, high in pairs.tolist()]

    @property
    def has_overviews(self) -> bool:
        """Whether the file has overviews, inside or beside it."""
        with gdal(self.path):
            return bool(self._file.overviews(1))

    def checksum(self) -> int:
        """Return a checksum of a sample of the stored pixels, which overviews do not change.

        Raises:
            OSError: If the file cannot be read.
        """
        patches = product(spread_patches(self.height, 4), spread_patches(self.width, 4))
        return reduce(lambda crc, patch: zlib.crc32(self.read_values(*patch)[0].tobytes(), crc), patches, 0)

    def _iter_samples(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        with gdal(self.path):
            levels = [1, *self._file.overviews(self.bands[0])]
        shapes = [(-(-self.height // level), -(-self.width // level)) for level in sorted(levels)]
        # The largest overview of up to 4 million pixels, unless it has too few for percentiles, or a grid of patches.
        small = [shape for shape in shapes if shape[0] * shape[1] <= 2**22]
        if small and (small[0] == shapes[0] or small[0][0] * small[0][1] >= 2**16):
            yield self.read_values(slice(0, self.height), slice(0, self.width), small[0])
            return
        for patch in product(spread_patches(self.height), spread_patches(self.width)):
            yield self.read_values(*patch)

    def read(self, rows: slice, columns: slice) -> tuple[np.ndarray, np.ndarray]:
        """Read a window as the model's pipeline takes it, and the validity of its pixels.

        A pixel is invalid by the file's mask, or if all selected bands are invalid by nodata, NaN or infinity. An alpha
        channel is the mask unless it is a raw band. Invalid values of valid pixels become 0 if they are scaled. In raw
        values, NaN and infinity become 0.

        Args:
            rows: Range of rows. Only the window is read.
            columns: Range of columns.

        Returns:
            The image, (h, w, 3), BGR, or (h, w, channels) in the order of `bands`, uint8 or, if raw, of the file's
            type; and the validity, (h, w), bool.

        Raises:
            ValueError: If the window is empty or extends beyond the raster.
            OSError: If the file cannot be read.
        """
        values, valid = self.read_values(rows, columns)
        selection = self._selection
        if self._raw:
            if self.dtype.startswith("float"):
                values = np.nan_to_num(values, copy=False, posinf=0, neginf=0)
            return np.ascontiguousarray(values.transpose(1, 2, 0)), self._within(valid.max(axis=0), rows, columns)
        if selection.palette is not None:
            colors = selection.palette.take(values[0], axis=0, mode="clip")
            return np.ascontiguousarray(colors[..., 2::-1]), self._within(
                valid[0] & (colors[..., 3] > 0), rows, columns
            )
        if self.bounds is not None:
            pairs = zip(self.bounds, self._units, strict=True)
            stored = [((low - offset) / scale, (high - offset) / scale) for (low, high), (scale, offset) in pairs]
            values = to_bytes(values, valid, stored)
        elif selection.blackens:
            values = np.where(valid, values, 0)
        if len(values) < self._channels:
            values = values.repeat(self._channels, axis=0)
        if self._channels == 3:
            values = values[::-1]
        return np.ascontiguousarray(values.transpose(1, 2, 0)), self._within(valid.max(axis=0), rows, columns)

    def valid(self, rows: slice, columns: slice) -> np.ndarray:
        """Read the validity of a window's pixels, (h, w), bool; raises as `read`."""
        return self._within(super().valid(rows, columns), rows, columns)

    def is_outside(self, rows: slice, columns: slice) -> bool:
        """Return whether a window lies outside the area of interest, without reading it."""
        return self.area is not None and not pixels_within(self.area, rows, columns).any()

    def _within(self, valid: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        return valid if self.area is None else valid & pixels_within(self.area, rows, columns)


def _check_place(file: Any) -> None:
    """Raise ValueError if a file has a place on a map that is not a transform."""
    points, rpcs = file.gcps[0], file.rpcs
    if file.transform.is_identity and (points or rpcs):
        kind, option = ("ground control points", "") if points else ("rational polynomial coefficients", " -rpc")
        command = f"gdalwarp{option} -r bilinear {file.name} OUT.tif"
        raise ValueError(f"{file.name} is placed on the map by {kind}: rectify it first by `{command}`")
