"""Stored values of a file of GDAL, read by windows, and which of them are valid."""

import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from .gdal import local_files, open_raster, pixel_size

_GDAL_TYPES = {
    "uint8": "Byte",
    "int8": "Int8",
    "uint16": "UInt16",
    "int16": "Int16",
    "uint32": "UInt32",
    "int32": "Int32",
    "uint64": "UInt64",
    "int64": "Int64",
    "float32": "Float32",
    "float64": "Float64",
}
_MAX_FINER = 100  # how many times smaller than a stored pixel a resampled pixel may be


def _can_store(dtypes: Sequence[str], value: float) -> bool:
    """Return whether bands of these types can have a value."""
    for dtype in map(np.dtype, dtypes):
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            if not (limits.min <= value <= limits.max and value == int(value)):
                return False
    return True


def _unite_nodata(file: Any, nodata: float, overview_levels: Sequence[int]) -> Any:
    """Return an open file with one value in all pixels that have no data by the file itself. GDAL
    resamples without the pixels of one such value only.

    Args:
        overview_levels: The level of an overview that `file` is, or nothing.
    """
    name = escape(file.files[0] if "://" in file.name else file.name)
    options = "".join(f'<OOI key="OVERVIEW_LEVEL">{level}</OOI>' for level in overview_levels)
    source = f'<SourceFilename relativeToVRT="0">{name}</SourceFilename>'
    source = f"{source}<OpenOptions>{options}</OpenOptions><UseMaskBand>true</UseMaskBand>"
    size = f'xOff="0" yOff="0" xSize="{file.width}" ySize="{file.height}"'
    bands = [
        f'<VRTRasterBand dataType="{_GDAL_TYPES[dtype]}" band="{band}">'
        f"<NoDataValue>{nodata:.17g}</NoDataValue><ComplexSource>{source}"
        f"<SourceBand>{band}</SourceBand><SrcRect {size}/><DstRect {size}/>"
        "</ComplexSource></VRTRasterBand>"
        for band, dtype in zip(file.indexes, file.dtypes, strict=True)
    ]
    place = ", ".join(f"{number:.17g}" for number in file.transform.to_gdal())
    return open_raster(
        f'<VRTDataset rasterXSize="{file.width}" rasterYSize="{file.height}">'
        f"<SRS>{escape(file.crs.to_wkt())}</SRS><GeoTransform>{place}</GeoTransform>"
        f"{''.join(bands)}</VRTDataset>"
    )


class StoredRaster:
    """A file of GDAL that is read by windows: the stored values, and which of them are valid.

    Args:
        path, gsd, nodata: As of `Raster`, which describes the attributes and errors.
    """

    def __init__(self, path: str | Path, gsd: float | None, nodata: float | None) -> None:
        self.path = str(path)
        self.gsd = gsd
        self.nodata = nodata
        self._source = open_raster(path)
        self._check_place()
        self._file = self._source if gsd is None else self._resample(gsd)
        self.height = self._file.height
        self.width = self._file.width
        self.transform = self._file.transform
        crs = self._source.crs
        # Engineering systems have no place on the earth.
        self.crs = crs if crs and (crs.is_projected or crs.is_geographic) else None
        self.files = local_files(self._source)
        self._stored_blocks = self._find_stored_blocks()

    def _check_place(self) -> None:
        """Raise ValueError if the place of the file on a map is not a transform."""
        name = self._source.name
        points, _ = self._source.gcps
        has_transform = not self._source.transform.is_identity
        if has_transform or not (points or self._source.rpcs):
            return
        means = "ground control points" if points else "rational polynomial coefficients"
        command = "gdalwarp" if points else "gdalwarp -rpc"
        fix = f"rectify it first by `{command} -r bilinear {name} OUT.tif`"
        raise ValueError(f"{name} is placed on the map by {means}: {fix}")

    def _resample(self, gsd: float) -> Any:
        """Return the file with pixels of `gsd` metres, measured in the middle of the raster.

        Raises:
            ValueError: If the file has no place, or far smaller or larger pixels.
        """
        from rasterio.enums import MaskFlags, Resampling
        from rasterio.vrt import WarpedVRT

        file = self._source
        if file.crs is None or file.transform.is_identity:
            fix = "assign one by gdal_edit.py -a_srs"
            raise ValueError(f"--gsd {gsd:g}: {file.name} has no coordinate system: {fix}")
        size = pixel_size(file)
        factors = gsd / size
        if not 1 / _MAX_FINER <= factors.min() <= factors.max() <= max(file.shape):
            problem = f"the pixels of {file.name} have {size.max():.3g} metres"
            raise ValueError(f"--gsd {gsd:g}: {problem}, give a similar size")
        if (abs(factors - 1) < 0.02).all():
            return file  # the scale of a projection is not a reason to blur the image
        width, height = (max(round(side), 1) for side in (file.width, file.height) / factors)
        # An overview that is finer than the result is quicker to read than the file.
        levels = [n for n, factor in enumerate(file.overviews(1)) if factor <= 1.02 * factors.min()]
        source = open_raster(file.name, overview_level=levels[-1]) if levels else file
        nodata: dict[str, float] = {}
        has_alpha = "alpha" in self._colors  # beside which GDAL changes a nodata value
        if self.nodata is not None and not has_alpha and _can_store(file.dtypes, self.nodata):
            nodata = dict(src_nodata=self.nodata, nodata=self.nodata)
            source = _unite_nodata(source, self.nodata, levels[-1:])
        has_mask = MaskFlags.per_dataset in source.mask_flag_enums[0]
        scale = file.transform.scale(file.width / width, file.height / height)
        return WarpedVRT(
            source,
            crs=file.crs,
            transform=file.transform * scale,
            width=width,
            height=height,
            resampling=Resampling.average if factors.min() > 1 else Resampling.bilinear,
            add_alpha=has_mask and not has_alpha,
            **nodata,
        )

    def checksum(self) -> str:
        """Return the CRC-32 of the content of the files, one after the other."""
        total = 0
        for path in self.files:
            with path.open("rb") as file:
                for block in iter(partial(file.read, 2**24), b""):
                    total = zlib.crc32(block, total)
        return f"{total:08x}"

    @property
    def validity(self) -> list[str]:
        """What tells in the file which pixels of each band have data, such as nodata 0."""
        flags = self._source.mask_flag_enums
        values = self._source.nodatavals
        rows = zip(flags, values, self._colors, strict=True)
        return [f"{[flag.name for flag in names]} {value} {color}" for names, value, color in rows]

    @property
    def _colors(self) -> list[str]:
        """Names of the colors of the bands, such as red, gray, alpha or undefined."""
        return [color.name for color in self._source.colorinterp]

    def _find_stored_blocks(self) -> np.ndarray | None:
        """Return whether a GeoTIFF stores each block, as rows of blocks, or None if all are stored.
        A sparse file leaves out blocks that were never written.
        """
        if self._source.driver != "GTiff":
            return None
        height, width = self._source.block_shapes[0]
        rows = range(-(-self._source.height // height))
        columns = range(-(-self._source.width // width))

        def is_stored(row: int, column: int) -> bool:
            item = f"BLOCK_OFFSET_{column}_{row}"
            bands = self._source.indexes
            return any(self._source.get_tag_item(item, "TIFF", bidx=band) for band in bands)

        stored = np.array([[is_stored(row, column) for column in columns] for row in rows])
        return None if stored.all() else stored

    def _blocks(self, rows: slice, columns: slice) -> list[np.ndarray]:
        """Return the row of blocks in which each row of pixels lies, and likewise for columns."""
        # Pixels may be resampled.
        blocks_per_pixel = np.divide(self._source.shape, self._file.shape)
        blocks_per_pixel /= self._source.block_shapes[0]
        centres = [np.arange(pixels.start, pixels.stop) + 0.5 for pixels in (rows, columns)]
        return [(axis * n).astype(int) for axis, n in zip(centres, blocks_per_pixel, strict=True)]

    def stores(self, rows: slice, columns: slice) -> bool:
        """Return whether the file stores a pixel of a window. A sparse file leaves out blocks."""
        if self._stored_blocks is None:
            return True
        spans = [slice(blocks[0], blocks[-1] + 1) for blocks in self._blocks(rows, columns)]
        return bool(self._stored_blocks[tuple(spans)].any())

    def read_stored(
        self,
        bands: Sequence[int],
        rows: slice,
        columns: slice,
        dtype: str,
        is_masked: bool,
        alpha: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read stored values of n bands, and whether they are valid, both (n, h, w).

        Args:
            is_masked: Whether the mask of the file tells what is valid.
            alpha: Band that also tells what is valid, by values above 0.
        """
        if not self.stores(rows, columns):
            shape = len(bands), rows.stop - rows.start, columns.stop - columns.start
            return np.zeros(shape, dtype), np.zeros(shape, bool)
        options: dict[str, Any] = dict(out_dtype=dtype, masked=is_masked)
        stored = self._file.read(list(bands), window=(rows, columns), **options)
        pixels = np.ma.getdata(stored)
        valid = ~np.ma.getmaskarray(stored) & np.isfinite(pixels)
        if self.nodata is not None:
            valid &= pixels != self.nodata
        if alpha is not None:
            valid &= self._file.read(alpha, window=(rows, columns)) > 0
        if self._stored_blocks is not None:
            valid &= self._stored_blocks[np.ix_(*self._blocks(rows, columns))]
        return pixels, valid
