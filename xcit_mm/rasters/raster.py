"""A raster larger than memory, read by windows in the format of a model's input."""

import math
import shlex
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

from ..utils.errors import ArgumentError
from ..utils.output import say
from .gdal import gdal, open_raster
from .polygons import Span, crs_on_earth

# Flat, or in pairs.
Numbers: TypeAlias = Sequence[float] | Sequence[Sequence[float]] | np.ndarray

_COLORS = ("red", "green", "blue")
# A sample is of squares: how many there are along an axis, and their largest side in pixels.
_SQUARES = 8
_SQUARE = 64
_METRES_OF_A_DEGREE = 111_320  # on the equator


class Raster:
    """A file of GDAL, read by windows in the format of a model's input.

        with Raster("mosaic.tif", bounds=[0, 4000]) as raster:
            image, valid = raster.read(slice(0, 512), slice(0, 512))

    A message is printed if the file does not say which pixels have data, or if no pixel of a sample
    has the value `nodata`.

    Args:
        channels: Number of channels that the model takes.
        bands: Numbers of the bands, from 1: red, green and blue, one for all three, or as many as
            `channels` in the model's order. Default: those that the file names red, green and
            blue, or all but alpha.
        raw: Whether to read values as they are stored, as `LoadRasterFromFile` does. Otherwise they
            become uint8.
        bounds: Stored values that become 0 and 255: one pair for all bands, or a pair for each.
        nodata: A value without data, in addition to what the file declares.

    Attributes:
        height, width: Size in pixels as they are read.
        scaling: Scale and offset of each band, or None if the file declares none. They are not
            applied: values are read as stored.

    Raises:
        ArgumentError: If bands or bounds do not match the file.
        ValueError: If the file must be converted first.
        OSError: If GDAL cannot read the file.
    """

    def __init__(
        self,
        path: str | Path,
        channels: int = 3,
        bands: Sequence[int] | None = None,
        raw: bool = False,
        bounds: Numbers | None = None,
        nodata: float | None = None,
    ) -> None:
        from rasterio.enums import MaskFlags

        self.path = str(path)
        self._channels = channels
        self.raw = raw
        self._nodata: float | None = None
        with gdal(path):
            self._file = open_raster(path)
            self.height, self.width = self._file.shape  # in pixels as they are read
            self._colors = [color.name for color in self._file.colorinterp]
            self._image_bands = [n for n, color in enumerate(self._colors, 1) if color != "alpha"]
            self._alpha = self._colors.index("alpha") + 1 if "alpha" in self._colors else None
            self._check_file()
            self.transform = self._file.transform
            self.crs = crs_on_earth(self._file.crs)
            self.bands = self._choose_bands(bands)
            self._dtype = np.result_type(*(self._file.dtypes[n - 1] for n in self.bands)).name
            scaling = [[self._file.scales[n - 1], self._file.offsets[n - 1]] for n in self.bands]
            self.scaling = scaling if any(pair != [1, 0] for pair in scaling) else None
            if nodata is not None:
                nodata = np.asarray(nodata).item()  # a number of NumPy would keep its type
                self._check_nodata(nodata)
            elif MaskFlags.all_valid in self._file.mask_flag_enums[0]:
                fix = "if it has a collar, give the collar's value as nodata"
                say(f"{path} has no nodata, alpha or mask: {fix}")
            self._nodata = nodata
            self._bounds = self._find_bounds(bounds)

    def __enter__(self) -> "Raster":
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self._file.close()

    def _check_file(self) -> None:
        """Raise ValueError if a file must be converted before it can be read as one image."""
        file = self._file
        path = shlex.quote(self.path)
        if file.transform.is_identity and (file.gcps[0] or file.rpcs):
            problem = "has control points and no affine place"
            command = f"gdalwarp -r bilinear {path}"
        elif self._colors[0] == "palette":
            problem = "has a palette"
            command = f"gdal_translate -expand rgb {path}"
        elif file.dtypes[0].startswith("complex"):
            problem = "has complex numbers"
            command = f"gdal_calc.py -A {path} --calc 'abs(A)' --type Float32 --outfile"
        elif self._alpha and not self._is_mask(self._alpha):
            problem = f"has too many values for a mask in band {self._alpha}, marked as alpha"
            command = f"gdal_translate -colorinterp_{self._alpha} undefined {path}"
        else:
            return
        raise ValueError(f"{self.path} {problem}: convert it by `{command} OUT.tif`")

    def _is_mask(self, band: int) -> bool:
        """Return whether a band is a mask: at least half of its sampled nonzero values are equal.

        A mask may have soft edges, so not all values need to be equal. An infrared band, which some
        programs mark as alpha, has many different values.
        """
        values = np.array([self._file.read(band, window=square) for square in self._squares()])
        _, counts = np.unique(values[values != 0], return_counts=True)
        return counts.max(initial=0) >= 0.5 * counts.sum()

    def _choose_bands(self, bands: Sequence[int] | None) -> list[int]:
        is_color = self._channels == 3 and not self.raw
        chosen = list(bands or self._image_bands)
        if is_color and not bands and set(_COLORS) <= set(self._colors):
            chosen = [self._colors.index(color) + 1 for color in _COLORS]
        is_matching = len(chosen) == self._channels or (is_color and len(chosen) == 1)
        if not is_matching or not set(chosen) <= set(self._image_bands):
            problem = f"{self.path} has {len(self._image_bands)} bands without alpha"
            fix = f"the model takes {self._channels}: choose others"
            raise ArgumentError("bands", f"{chosen}: {problem}, and {fix}")
        return chosen

    def _check_nodata(self, nodata: float) -> None:
        """Print a message if no pixel in a sample has the value, unless the file declares it.

        Raises:
            ArgumentError: If the value is not finite.
        """
        if not np.isfinite(nodata):
            raise ArgumentError(
                "nodata", f"{nodata}: such pixels have no data anyway: leave it out"
            )
        sample = self.sample
        is_found = (sample == nodata).all(axis=0).any() or self._declares(nodata)
        if sample.size and not is_found:
            values = f"its values are {np.nanmin(sample)} to {np.nanmax(sample)}"
            say(f"{self.path}: no pixel in a sample has {nodata=}: {values}")
        del self.sample  # the next one has no pixels of this value

    def _declares(self, nodata: float) -> bool:
        """Return whether the file declares this value as nodata, up to rounding to float32."""
        declared = np.array(self._file.nodatavals, float)  # None becomes NaN
        return bool(np.isclose(declared, nodata, rtol=1e-7, atol=0).any())

    def _find_bounds(self, bounds: Numbers | None) -> np.ndarray | None:
        if bounds is None:
            if self.raw or self._dtype == "uint8":
                return None
            kind = self._dtype
            if self.scaling:
                kind += f", stored with scale and offset {self.scaling}"
            example = f"{self._suggest_bounds()}, percentiles 2 and 98 of a sample"
            fix = f"say which become 0 and 255, such as {example}"
            raise ArgumentError("bounds", f"{self.path} has values of {kind}: {fix}")
        count = len(self.bands)
        values = np.array(bounds, np.float64).ravel()
        pairs = np.resize(values, (count, 2))
        is_beyond = self._dtype == "uint8" and pairs.max() > 255
        if values.size not in (2, 2 * count) or is_beyond or not (pairs[:, 0] < pairs[:, 1]).all():
            fix = f"give LOW HIGH of {self._dtype}, for all bands or for each of {count}"
            raise ArgumentError("bounds", f"{values.tolist()} for {self.path}: {fix}")
        return pairs

    def _suggest_bounds(self) -> str:
        """Return the 2nd and the 98th percentile of each band in a sample, as text.

        A band of few values gets LOW HIGH. The lowest and the highest value do not count: they may
        be those of a collar.
        """
        bounds: list[str] = []
        for band in self.sample:
            values = band[np.isfinite(band)]
            inside = values[np.isin(values, np.unique(values)[1:-1])]
            ends = np.quantile(inside, (0.02, 0.98), method="nearest") if len(inside) else [0, 0]
            bounds += map(str, ends) if ends[0] < ends[1] else ("LOW", "HIGH")
        return " ".join(bounds)

    def _squares(self, count: int = _SQUARES) -> Iterator[tuple[slice, ...]]:
        """Return the rows and columns of the squares that are sampled, `count` along each axis."""
        axes = []
        for length in (self.height, self.width):
            side = min(_SQUARE, math.ceil(length / count))
            starts = np.linspace(0, length - side, count, dtype=int).tolist()
            axes.append([slice(start, start + side) for start in starts])
        return product(*axes)

    @cached_property
    def sample(self) -> np.ndarray:
        """Stored values of the pixels with data in squares all over the raster, (bands, n).

        There are more squares if the first have no data.
        """
        for count in (_SQUARES, 4 * _SQUARES):
            with gdal(self.path):
                squares = [self._read(*square) for square in self._squares(count)]
            sample = np.concatenate([pixels[:, valid] for pixels, valid in squares], axis=1)
            if sample.size:
                break
        return sample

    def fingerprint(self) -> dict[str, Any]:
        """Return plain values that identify a raster, wherever it is stored."""
        checksum = crc32(self.sample.tobytes())
        return dict(
            bands=self.bands,
            bounds=None if self._bounds is None else self._bounds.ravel().tolist(),
            nodata=self._nodata,
            raster_size=[self.height, self.width],
            raster_type=self._dtype,
            raster_transform=list(self.transform),
            raster_crs=self.crs and self.crs.to_string(),
            raster_nodata=str(self._file.nodata),
            raster_scaling=self.scaling,
            raster_pixels=dict(value=checksum, change="the raster has other pixels"),
        )

    @property
    def pixel_size(self) -> float | None:
        """Side of a pixel in metres, in the middle of the raster, or None without a place."""
        if self.crs is None:
            return None
        side = abs(self._file.transform.determinant) ** 0.5
        if self.crs.is_projected:
            return side * self.crs.linear_units_factor[1]
        _, latitude = self._file.xy(self._file.height / 2, self._file.width / 2)
        # Some coordinates in metres are called degrees, and may have a negative cosine.
        return side * _METRES_OF_A_DEGREE * abs(math.cos(math.radians(latitude))) ** 0.5

    def resampled(self, height: int, width: int) -> "Raster":
        """Return the raster in another size, to which GDAL resamples what is read.

        GDAL leaves declared numbers without data out, but not NaN: a pixel into which NaN is mixed
        has no data.

        Raises:
            ValueError: If the file does not declare `nodata`: GDAL would mix it with data.
        """
        if self._nodata is not None and not self._declares(self._nodata):
            path = shlex.quote(self.path)
            command = f"gdal_translate -of VRT -a_nodata {self._nodata!r} {path} OUT.vrt"
            problem = f"{self.path} does not declare nodata={self._nodata!r}, and is resized"
            raise ValueError(f"{problem}: declare it by `{command}`")
        other = copy(self)
        other.height = height
        other.width = width
        vars(other).pop("sample", None)  # which is of this size
        return other

    def read(self, rows: Span, columns: Span) -> tuple[np.ndarray, np.ndarray]:
        """Read a window, which may end beyond the raster.

        Pixels have data if the file's mask, alpha or nodata says so, and some band has a finite
        value other than `nodata`.

        Returns:
            The image, and a mask (h, w), bool, which is True where pixels have data.
            The image is (h, w, 3), uint8, BGR. With `raw`, or a number of `channels` other than 3,
            it is (h, w, channels) in the order of `bands`. With `bounds`, pixels without data are
            0. With `raw`, the image has the type of the file, and 0 in place of NaN and infinity.
        """
        with gdal(self.path):
            pixels, valid = self._read(rows, columns)
        if self._bounds is not None:
            low, high = self._bounds.T[..., None, None]
            has_value = valid & np.isfinite(pixels)
            scaled = np.rint((np.where(has_value, pixels, low) - low) / (high - low) * 255)
            pixels = scaled.clip(0, 255).astype(np.uint8)
        if self.raw:
            pixels = np.nan_to_num(pixels, posinf=0, neginf=0)
        elif self._channels == 3:
            pixels = pixels[::-1]
        image = np.broadcast_to(pixels.transpose(1, 2, 0), (*valid.shape, self._channels))
        return image.copy(), valid

    def _read(self, rows: Span, columns: Span) -> tuple[np.ndarray, np.ndarray]:
        """Read stored values (n, h, w), and which pixels have data (h, w).

        Beyond the raster, values are 0. The file's nodata counts in all of its bands, `nodata` in
        the chosen bands.
        """
        from rasterio.enums import Resampling
        from rasterio.windows import Window

        size = rows.stop - rows.start, columns.stop - columns.start
        pixels = np.zeros((len(self.bands), *size), self._dtype)
        valid = np.zeros(size, bool)
        height = min(rows.stop, self.height) - rows.start
        width = min(columns.stop, self.width) - columns.start
        down, across = np.divide(self._file.shape, (self.height, self.width))  # to the file's
        bottom = min(rows.stop * down, self._file.height)
        right = min(columns.stop * across, self._file.width)
        window = Window.from_slices((rows.start * down, bottom), (columns.start * across, right))
        valid[:height, :width] = self._read_mask(window=window, out_shape=(height, width))
        if not valid.any():
            return pixels, valid
        options = dict(window=window, resampling=Resampling.bilinear)
        for number, band in zip(self.bands, pixels, strict=True):  # which may differ in type
            self._file.read(number, band[:height, :width], **options)
        has_value = np.isfinite(pixels)
        if self._nodata is not None:
            has_value &= pixels != self._nodata
        return pixels, valid & has_value.any(axis=0)

    def _read_mask(self, **window: Any) -> np.ndarray:
        """Read the file's mask (h, w), which is 0 where there are no data.

        `dataset_mask` of rasterio takes the fourth of four bands for alpha, whatever it is, and
        GDAL prefers nodata to alpha.
        """
        if self._alpha and self._file.nodata is not None:
            return self._file.read(self._alpha, **window)
        return np.any([self._file.read_masks(n, **window) for n in self._image_bands], axis=0)
