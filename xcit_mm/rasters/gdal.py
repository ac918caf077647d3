"""GDAL through rasterio: the rasters of a folder, and opening them with bounded memory and errors
of one line.
"""

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..utils.compat import gdal_errors

SUFFIXES = (".tif", ".tiff", ".jp2", ".j2k", ".vrt", ".img", ".ntf", ".nitf")
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
    """List the rasters of a folder, or a single file.

    Raises:
        FileNotFoundError: If the folder has no raster.
        ValueError: If two rasters differ by their suffix alone.
    """
    if not path.is_dir():
        return [path]
    paths = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
    if not paths:
        raise FileNotFoundError(f"{path} has no rasters ({', '.join(SUFFIXES)})")
    if len({file.stem for file in paths}) < len(paths):
        raise ValueError(f"{path} has rasters of the same name and other suffixes: rename them")
    return paths


def require_rasterio(user: object) -> None:
    """Raise ModuleNotFoundError if rasterio is not installed. The message names its user."""
    if importlib.util.find_spec("rasterio") is None:
        raise ModuleNotFoundError(f"{user} needs rasterio: pip install xcit_mm[raster]")


def gdal_environment(cache: int = CACHE_SIZE) -> Any:
    """Return a context in which GDAL's cache is limited to some bytes."""
    import rasterio

    return rasterio.Env(GDAL_CACHEMAX=cache, **_OPTIONS)


@contextlib.contextmanager
def gdal(path: str | Path, cache: int = CACHE_SIZE) -> Iterator[None]:
    """Limit GDAL's cache and simplify its errors while a file is read.

    Raises:
        OSError: If GDAL fails; the message is one line.
        ModuleNotFoundError: If rasterio is not installed.
    """
    require_rasterio(path)
    try:
        with gdal_environment(cache):
            yield
    except gdal_errors() as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise OSError(f"{path} cannot be read: {reason}") from None


def open_raster(path: str | Path, mode: str = "r", **profile: Any) -> Any:
    """Open a file or URL with rasterio, without its warning about files without a place."""
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        return rasterio.open(path, mode, **profile)
