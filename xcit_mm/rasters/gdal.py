"""GDAL through rasterio: the rasters of a folder, and opening them with bounded memory and errors
of one line.
"""

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

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
        OSError: If GDAL fails, or decodes a damaged JPEG; the message is one line.
        ModuleNotFoundError: If rasterio is not installed.
    """
    require_rasterio(path)
    warned = _JpegWarnings()
    log = logging.getLogger("rasterio")
    log.addHandler(warned)
    try:
        with gdal_environment(cache):
            yield
    except gdal_errors() as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise OSError(f"{path} cannot be read: {reason}") from None
    finally:
        log.removeHandler(warned)
    if warned.messages:
        raise OSError(f"{path} cannot be read: {warned.messages[0]}")


class _JpegWarnings(logging.Handler):
    """Collects the warnings after which GDAL fills the rest of a JPEG tile with made-up pixels."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "Corrupt JPEG data" in message or "Premature end of JPEG" in message:
            self.messages.append(message.rpartition("JPEGLib:")[2])


def open_raster(path: str | Path, mode: str = "r", **profile: Any) -> Any:
    """Open a file or URL with rasterio, without its warning about files without a place."""
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        return rasterio.open(path, mode, **profile)


class StoredBlocks:
    """Which blocks a GeoTIFF stores. A sparse file leaves out those that were never written.

    Args:
        file: An open file of rasterio. Files of other formats store all of their blocks.
        bands: Numbers of the bands, of which one must store a block.
    """

    def __init__(self, file: Any, bands: Sequence[int]) -> None:
        self._file = file
        self._bands = bands
        self._height, self._width = file.block_shapes[0]
        self._columns = -(-file.width // self._width)
        self._is_known = file.driver == "GTiff"
        self._list_stored = lru_cache(maxsize=1024)(self._read_row)

    def _read_row(self, row: int) -> np.ndarray:
        """Return whether each block of a row of blocks is stored."""
        return np.array([self.stores(row, column) for column in range(self._columns)])

    def stores(self, row: int, column: int) -> bool:
        """Return whether a block is stored, by its row and column of blocks."""
        item = f"BLOCK_OFFSET_{column}_{row}"
        return any(self._file.get_tag_item(item, "TIFF", bidx=band) for band in self._bands)

    def covers(self, rows: slice, columns: slice) -> np.ndarray | None:
        """Return whether each pixel of a window is stored, (h, w), or None if all are."""
        if not self._is_known:
            return None
        first = columns.start // self._width
        numbers = range(rows.start // self._height, -(-rows.stop // self._height))
        stored = np.array([self._list_stored(number)[first:] for number in numbers])
        stored = stored[:, : -(-columns.stop // self._width) - first]
        if stored.all():
            return None
        # Pixels of the blocks, then those of the window.
        pixels = stored.repeat(self._height, axis=0).repeat(self._width, axis=1)
        top = rows.start % self._height
        left = columns.start % self._width
        return pixels[
            top : top + rows.stop - rows.start, left : left + columns.stop - columns.start
        ]
