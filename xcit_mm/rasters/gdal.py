"""Files of GDAL through rasterio, with bounded memory and errors of one line."""

import contextlib
import importlib.util
import logging
import re
import sys
import warnings
from collections.abc import Iterator
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

_INDEXES = ("GTI", "WMS", "WMTS", "WCS", "STACIT", "STACTA")  # drivers whose files are elsewhere
_OPTIONS = dict(
    # In bytes, for the blocks that neighbouring tiles share.
    GDAL_CACHEMAX=256 * 2**20,
    # GDAL would list the files beside a file, and the folder may hold a million.
    GDAL_DISABLE_READDIR_ON_OPEN="TRUE",
    # In seconds. Without limits, a lost server stops a run forever.
    GDAL_HTTP_CONNECTTIMEOUT=30,
    GDAL_HTTP_LOW_SPEED_LIMIT=1,
    GDAL_HTTP_LOW_SPEED_TIME=60,
    GDAL_HTTP_MAX_RETRY=3,
)


def list_rasters(path: Path) -> list[Path]:
    """List the rasters of a folder, or a single file. Lines count what is left out: maps of other
    runs, files that are not rasters, and folders.

    Raises:
        FileNotFoundError: If the folder has no raster.
        ValueError: If two rasters differ by their suffix alone.
    """
    if not path.is_dir():
        return [path]
    entries = sorted(path.iterdir())
    files = [file for file in entries if file.suffix.lower() in SUFFIXES]
    unused = [entry.name for entry in entries if entry.suffix.lower() not in SUFFIXES]
    if unused:
        reason = f"entries of {path} that are not rasters"
        print_line(f"left out {len(unused)} {reason}: {preview(unused)}")
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
    """Return whether a file can be read and is a map of `predict_raster`."""
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
def gdal(path: str | Path) -> Iterator[None]:
    """Limit GDAL's cache and simplify its errors while a file is read.

    Raises:
        OSError: If GDAL fails, or decodes a damaged JPEG; the message is one line.
        ModuleNotFoundError: If rasterio is not installed.
    """
    require_rasterio(path)
    import rasterio
    from rasterio.errors import NodataShadowWarning

    warned = BufferingHandler(capacity=sys.maxsize)
    log = logging.getLogger("rasterio")
    log.addHandler(warned)
    try:
        with rasterio.Env(**_OPTIONS), warnings.catch_warnings():
            warnings.simplefilter("ignore", NodataShadowWarning)  # both nodata and alpha are used
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


def local_files(file: Any) -> list[Path]:
    """List the local files that hold the content of an open file of rasterio: with masks,
    overviews, archives and the parts of mosaics, but without the statistics of a GIS. None if a
    part lies elsewhere.
    """
    files: list[Path] = []
    for name in file.files:
        path = _local_file(name)
        if path is None:
            return []
        if name.endswith(".aux.xml") or path in files:
            continue
        files.append(path)
        if path.suffix.lower() == ".vrt" and name != file.name:
            with open_raster(path) as part:
                parts = local_files(part)
            if not parts:
                return []
            files += [other for other in parts if other not in files]
    return [] if file.driver in _INDEXES else files


def _local_file(name: str) -> Path | None:
    """Return the local file that GDAL names, or that it names a part of, as /vsizip/a.zip/b.tif."""
    path = Path(re.sub(r"^(/vsi\w+/|\w+:\d+:)+", "", name))
    return next((part for part in (path, *path.parents) if part.is_file()), None)
