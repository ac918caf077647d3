"""Files of GDAL through rasterio, with bounded memory and errors of one line."""

import contextlib
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..utils.compat import gdal_errors

_OPTIONS = dict(
    # In bytes, for the blocks that neighbouring tiles share.
    GDAL_CACHEMAX=256 * 2**20,
    # GDAL would list the files beside a file, and the folder may hold a million.
    GDAL_DISABLE_READDIR_ON_OPEN="TRUE",
    # Bytes a second, and seconds. Without limits, a lost server stops a run forever.
    GDAL_HTTP_LOW_SPEED_LIMIT=1,
    GDAL_HTTP_LOW_SPEED_TIME=60,
)


@contextlib.contextmanager
def gdal(path: str | Path) -> Iterator[None]:
    """Limit GDAL's cache, and name the file in errors, while a file is read or written.

    Raises:
        OSError: If GDAL fails; the message is one line.
    """
    import rasterio

    try:
        with rasterio.Env(**_OPTIONS):
            yield
    except gdal_errors() as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise OSError(f"{path}: {reason}") from None


def open_raster(path: str | Path, mode: str = "r", **profile: Any) -> Any:
    """Open a file or URL with rasterio, without its warning about files without a place.

    Raises:
        ValueError: If the file holds several rasters, such as the pages of a TIFF.
    """
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        file = rasterio.open(path, mode, **profile)
    if file.subdatasets:
        fix = f"convert it by `gdal_translate {shlex.quote(file.subdatasets[0])} OUT.tif`"
        raise ValueError(f"{path} holds {len(file.subdatasets)} rasters: {fix}")
    return file
