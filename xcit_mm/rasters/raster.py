"""Rasters larger than memory, of any bands and range, read by windows as a model takes them."""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from .bands import estimate_bounds, parse_bounds, select_bands, to_bytes
from .gdal import CACHE_SIZE, gdal, open_raster

PERCENTILES = (2.0, 98.0)
_MAX_CACHE = 2**31  # bytes, for the strips of a row of tiles
_SAMPLE, _SAMPLES = 128, 16  # side of a patch in pixels, patches along each axis


class Raster:
    """A raster that is read by windows, as a model takes them. Errors of GDAL are OSErrors of one
    line.

    Args:
        path: Path, URL or file of a file system of GDAL.
        channels: Number of channels of the model.
        bands: Numbers, from 1, of red, green and blue, of a single band for all three, or for a
            model of other `channels` in its order. Default: all but alpha, red, green and blue
            ordered by their names.
        raw: Whether to read stored values as `LoadRasterFromFile` does, without a scale, and by
            default all bands.
        gsd: Size of the pixels in metres, to which the file is resampled, from its overviews.
            Default: the file's.
        bounds: Stored values that become 0 and 255: one pair for all bands, or one for each.
            Default: files of 8 bits are not scaled, others by `percentiles` of a sample of the
            raster.
        percentiles: Percentiles that become 0 and 255.

    Attributes:
        height, width: Size in pixels.
        crs: rasterio's coordinate reference system, or None.
        transform: affine.Affine from pixels (column, row), from the outer corner of the first, to
            coordinates.
        notes: What a user should know of the file.

    Raises:
        ValueError: If bands, bounds or percentiles do not match, or the place is not a transform.
    """

    def __init__(
        self,
        path: str | Path,
        channels: int = 3,
        bands: Sequence[int] | None = None,
        raw: bool = False,
        gsd: float | None = None,
        bounds: Sequence[float] | None = None,
        percentiles: Sequence[float] = PERCENTILES,
    ) -> None:
        self.path = str(path)
        self.gsd = gsd
        self._channels = channels
        self._raw = raw
        if not 0 <= percentiles[0] < percentiles[1] <= 100:
            raise ValueError(
                f"--percentiles {percentiles}: give two from 0 to 100, the lower one first"
            )
        with gdal(path):
            file = open_raster(path)
            _check_place(file)
            self.bands = select_bands(file, bands, channels, raw)
            self._file = file = file if gsd is None else _resample(file, gsd)
            self.height, self.width, self.transform = file.height, file.width, file.transform
            # Engineering systems have no place on the earth.
            self.crs = (
                file.crs if file.crs and (file.crs.is_projected or file.crs.is_geographic) else None
            )
            self.dtype = np.result_type(*(file.dtypes[band - 1] for band in self.bands)).name
            self._cache = CACHE_SIZE
            self.notes = list(self._iter_notes())
            self.bounds = None if bounds is None else parse_bounds(bounds, len(self.bands))
            if bounds is None and not raw and self.dtype != "uint8":
                self.bounds = estimate_bounds(
                    map(self._read, self._windows(_SAMPLES)), percentiles, self.path
                )

    def _iter_notes(self) -> Iterator[str]:
        from rasterio.enums import MaskFlags

        file = self._file
        flags = file.mask_flag_enums[self.bands[0] - 1]
        self._is_masked = True
        if MaskFlags.alpha in flags:
            alpha = [color.name for color in file.colorinterp].index("alpha") + 1
            self._is_masked = alpha not in self.bands and (self._raw or not self._varies(alpha))
            if alpha not in self.bands and not self._is_masked:
                problem = f"its band {alpha} is marked as alpha, but varies as an image does"
                yield f"{problem}: it is neither used nor a mask"
        row_size = file.width * file.count * np.dtype(self.dtype).itemsize
        if file.block_shapes[0][1] >= file.width and row_size * file.height > CACHE_SIZE:
            self._cache = min(max(CACHE_SIZE, 2048 * row_size), _MAX_CACHE)
            options = "-co TILED=YES -co COMPRESS=DEFLATE -co BIGTIFF=IF_SAFER"
            command = f"gdal_translate {options} {self.path} OUT.tif"
            yield f"it is stored in strips, which takes time and memory: convert it by `{command}`"

    def _varies(self, alpha: int) -> bool:
        """Return whether an alpha band varies as an image. Writers mark the fourth of four bands,
        whatever it is.

        A mask has two values, and few between them where its edges were resampled.
        """
        values = np.concatenate(
            [self._file.read(alpha, window=window).ravel() for window in self._windows(4)]
        )
        values = values[values > 0]
        return bool(values.size) and bool((values < values.max()).mean() > 0.25)

    def _windows(self, count: int) -> list[Any]:
        """Spread small windows evenly over the raster."""
        spans = []
        for length in (self._file.height, self._file.width):
            size = min(_SAMPLE, length)
            starts = np.unique(
                np.linspace(0, length - size, min(count, -(-length // size))).astype(int)
            )
            spans.append([(int(start), int(start) + size) for start in starts])
        return list(product(*spans))

    def _read(self, window: Any) -> tuple[np.ndarray, np.ndarray]:
        """Read stored values and their validity, both (n, h, w)."""
        values = self._file.read(
            list(self.bands), window=window, out_dtype=self.dtype, masked=self._is_masked
        )
        pixels = np.ma.getdata(values)
        return pixels, ~np.ma.getmaskarray(values) & np.isfinite(pixels)

    def read(self, rows: slice, columns: slice) -> tuple[np.ndarray, np.ndarray]:
        """Read a window as the model's pipeline takes it, and the validity of its pixels.

        A pixel is invalid by the file's mask or alpha, or if all selected bands are nodata, NaN or
        infinity. Invalid values of scaled bands become 0, as NaN and infinity of raw bands. Bytes
        stay as they are stored.

        Returns:
            The image, (h, w, 3), BGR, or (h, w, channels) in the order of `bands`, uint8 or, if
            raw, of the file's type; and the validity, (h, w), bool.
        """
        with gdal(self.path, cache=self._cache):
            values, valid = self._read(((rows.start, rows.stop), (columns.start, columns.stop)))
        if self._raw:
            values = np.nan_to_num(values, posinf=0, neginf=0)
        elif self.bounds is not None:
            values = to_bytes(values, valid, self.bounds)
        if len(values) < self._channels:
            values = values.repeat(self._channels, axis=0)
        if self._channels == 3 and not self._raw:
            values = values[::-1]
        return np.ascontiguousarray(values.transpose(1, 2, 0)), valid.max(axis=0)


def _check_place(file: Any) -> None:
    """Raise ValueError if a file has a place on a map that is not a transform."""
    points = file.gcps[0]
    if file.transform.is_identity and (points or file.rpcs):
        kind, option = (
            ("ground control points", "")
            if points
            else ("rational polynomial coefficients", " -rpc")
        )
        command = f"gdalwarp{option} -r bilinear {file.name} OUT.tif"
        raise ValueError(
            f"{file.name} is placed on the map by {kind}: rectify it first by `{command}`"
        )


def _resample(file: Any, gsd: float) -> Any:
    """Return a file as it would be with pixels of `gsd` metres in the middle of the raster."""
    import pyproj
    from rasterio.enums import MaskFlags, Resampling
    from rasterio.vrt import WarpedVRT

    if file.crs is None or file.transform.is_identity:
        fix = "assign one by gdal_edit.py -a_srs"
        raise ValueError(f"--gsd {gsd:g}: {file.name} has no coordinate system: {fix}")
    x, y = file.width / 2, file.height / 2
    xs, ys = zip(
        *(file.transform * point for point in ((x, y), (x + 1, y), (x, y + 1))), strict=True
    )
    to_degrees = pyproj.Transformer.from_crs(file.crs, "EPSG:4326", always_xy=True)
    lon, lat = to_degrees.transform(xs, ys)
    metres = pyproj.Geod(ellps="WGS84").inv(lon[:1] * 2, lat[:1] * 2, lon[1:], lat[1:])[2]
    factors = [gsd / side for side in metres]
    if all(
        abs(factor - 1) < 0.02 for factor in factors
    ):  # the scale of a projection is no reason to blur the image
        return file
    width, height = (
        max(round(n / f), 1) for n, f in zip((file.width, file.height), factors, strict=True)
    )
    transform = file.transform * file.transform.scale(file.width / width, file.height / height)
    names = [color.name for color in file.colorinterp]
    levels = [
        number for number, factor in enumerate(file.overviews(1)) if factor <= 1.02 * min(factors)
    ]
    resampling = Resampling.average if min(factors) > 1 else Resampling.bilinear
    source = open_raster(file.name, overview_level=levels[-1]) if levels else file
    has_mask = MaskFlags.per_dataset in file.mask_flag_enums[0] and "alpha" not in names
    grid = dict(crs=file.crs, transform=transform, width=width, height=height)
    return WarpedVRT(source, resampling=resampling, add_alpha=has_mask, **grid)
