"""GDAL through rasterio, with bounded memory and errors of one line."""

import contextlib
import importlib.util
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import numpy as np

from ..utils.cli import print_line
from ..utils.compat import gdal_errors
from ..utils.errors import preview
from ..utils.images import TIFF_SUFFIXES
from .files import ORIGIN

SUFFIXES = (*TIFF_SUFFIXES, ".jp2", ".j2k", ".vrt", ".img", ".ntf", ".nitf")
"""Suffixes of the rasters in a folder."""

CACHE_SIZE = 256 * 2**20
"""Bytes of GDAL's cache. It holds the pixels that neighbouring tiles share."""
_OPTIONS = dict(
    # GDAL would list the files beside a file, and the folder may hold a million.
    GDAL_DISABLE_READDIR_ON_OPEN="TRUE",
    # In seconds. Without limits, a lost server stops a run forever.
    GDAL_HTTP_CONNECTTIMEOUT=30,
    GDAL_HTTP_LOW_SPEED_LIMIT=1,
    GDAL_HTTP_LOW_SPEED_TIME=60,
    GDAL_HTTP_MAX_RETRY=3,
)


def list_rasters(path: Path) -> list[Path]:
    """List the rasters of a folder, or a single file. A line counts the maps of other runs, which
    are left out.

    Raises:
        FileNotFoundError: If the folder has no raster.
        ValueError: If two rasters differ by their suffix alone.
    """
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
    results = [file for file in files if _is_result(file)]
    if results:
        print_line(f"left out {len(results)} maps of other runs: {preview(results)}")
    rasters = [file for file in files if file not in results]
    if not rasters:
        raise FileNotFoundError(f"{path} has no rasters ({', '.join(SUFFIXES)})")
    if len({file.stem for file in rasters}) < len(rasters):
        raise ValueError(f"{path} has rasters of the same name and other suffixes: rename them")
    return rasters


def _is_result(path: Path) -> bool:
    """Return whether a file is a map of `predict_raster`. One that cannot be read is none."""
    try:
        with gdal(path), open_raster(path) as file:
            return ORIGIN in file.tags()
    except OSError:
        return False


def require_rasterio(user: object) -> None:
    """Raise ModuleNotFoundError if rasterio is not installed. The message names its user."""
    if importlib.util.find_spec("rasterio") is None:
        raise ModuleNotFoundError(f"{user} needs rasterio: pip install xcit_mm[raster]")


@contextlib.contextmanager
def gdal(path: str | Path, cache: int = CACHE_SIZE) -> Iterator[None]:
    """Limit GDAL's cache and simplify its errors while a file is read.

    Raises:
        OSError: If GDAL fails, or decodes a damaged JPEG; the message is one line.
        ModuleNotFoundError: If rasterio is not installed.
    """
    require_rasterio(path)
    import rasterio

    warned = BufferingHandler(capacity=sys.maxsize)
    log = logging.getLogger("rasterio")
    log.addHandler(warned)
    try:
        with rasterio.Env(GDAL_CACHEMAX=cache, **_OPTIONS):
            yield
    except gdal_errors() as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise OSError(f"{path} cannot be read: {reason}") from None
    finally:
        log.removeHandler(warned)
    # After these warnings, GDAL fills the rest of a JPEG tile with made-up pixels.
    for message in map(logging.LogRecord.getMessage, warned.buffer):
        if "Corrupt JPEG data" in message or "Premature end of JPEG" in message:
            raise OSError(f"{path} cannot be read: {message.rpartition('JPEGLib:')[2]}")


def open_raster(path: str | Path, mode: str = "r", **profile: Any) -> Any:
    """Open a file or URL with rasterio, without its warning about files without a place."""
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        return rasterio.open(path, mode, **profile)


def list_files(file: Any) -> list[Path]:
    """Return the local files with the pixels of an open file of rasterio: masks and overviews too,
    and those of a mosaic, but no statistics of a GIS.
    """
    paths = [Path(name) for name in file.files if not name.endswith(".aux.xml")]
    return [path for path in paths if path.is_file()]


def check_place(file: Any) -> None:
    """Raise ValueError if the place of a file on a map is not a transform."""
    points, _ = file.gcps
    if not file.transform.is_identity or not (points or file.rpcs):
        return
    place = "ground control points" if points else "rational polynomial coefficients"
    command = "gdalwarp" if points else "gdalwarp -rpc"
    fix = f"rectify it first by `{command} -r bilinear {file.name} OUT.tif`"
    raise ValueError(f"{file.name} is placed on the map by {place}: {fix}")


def resample(file: Any, gsd: float, nodata: float | None) -> Any:
    """Return a file with pixels of `gsd` metres, measured in the middle of the raster.

    Raises:
        ValueError: If the file has no place.
    """
    from rasterio.enums import MaskFlags, Resampling
    from rasterio.vrt import WarpedVRT

    if file.crs is None or file.transform.is_identity:
        fix = "assign one by gdal_edit.py -a_srs"
        raise ValueError(f"--gsd {gsd:g}: {file.name} has no coordinate system: {fix}")
    factors = gsd / pixel_size(file)
    if (abs(factors - 1) < 0.02).all():
        return file  # the scale of a projection is no reason to blur the image
    width, height = (max(round(side), 1) for side in (file.width, file.height) / factors)
    # An overview that is finer than the result is quicker to read than the file.
    levels = [n for n, factor in enumerate(file.overviews(1)) if factor <= 1.02 * factors.min()]
    is_transparent = any(color.name == "alpha" for color in file.colorinterp)
    has_mask = MaskFlags.per_dataset in file.mask_flag_enums[0] and not is_transparent
    return WarpedVRT(
        open_raster(file.name, overview_level=levels[-1]) if levels else file,
        crs=file.crs,
        transform=file.transform * file.transform.scale(file.width / width, file.height / height),
        width=width,
        height=height,
        resampling=Resampling.average if factors.min() > 1 else Resampling.bilinear,
        add_alpha=has_mask,
        **({} if nodata is None else dict(src_nodata=nodata, nodata=nodata)),
    )


def pixel_size(raster: Any) -> np.ndarray:
    """Return width and height in metres of the pixel in the middle of a `Raster` or of an open file
    of rasterio.
    """
    import pyproj

    column = raster.width / 2
    row = raster.height / 2
    corners = [(column, row), (column + 1, row), (column, row + 1)]
    x, y = zip(*(raster.transform * corner for corner in corners), strict=True)
    to_degrees: Any = pyproj.Transformer.from_crs(raster.crs, "EPSG:4326", always_xy=True)
    lon, lat = to_degrees.transform(x, y)
    geod = pyproj.Geod(ellps="WGS84")
    *_, metres = geod.inv([lon[0]] * 2, [lat[0]] * 2, lon[1:], lat[1:])
    return np.array(metres)


def read_stored_blocks(file: Any, bands: Sequence[int]) -> np.ndarray | None:
    """Return whether a GeoTIFF stores each block in one of the bands, as rows of blocks, or None if
    all are stored. A sparse file leaves out blocks that were never written.
    """
    if file.driver != "GTiff":
        return None
    height, width = file.block_shapes[0]
    rows = range(-(-file.height // height))
    columns = range(-(-file.width // width))

    def is_stored(row: int, column: int) -> bool:
        item = f"BLOCK_OFFSET_{column}_{row}"
        return any(file.get_tag_item(item, "TIFF", bidx=band) for band in bands)

    stored = np.array([[is_stored(row, column) for column in columns] for row in rows])
    return None if stored.all() else stored
