"""GDAL, by rasterio, as this package wants it: little memory, and errors that say one thing in one line."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["gdal", "opened"]

# Of each process. It should hold what tiles side by side have in common: of a file in strips, as wide as the scene.
_CACHE = 256 * 2**20


@contextlib.contextmanager
def gdal(path: str | Path, what: str = "read") -> Iterator[None]:
    """GDAL with bounded memory for what is done to a file.

    Raises:
        OSError: Whatever GDAL says, in one line.
        ModuleNotFoundError: If rasterio is not installed.
    """
    try:
        import rasterio
        from rasterio._err import CPLE_BaseError
        from rasterio.errors import RasterioError
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{path} needs rasterio: pip install xcit_mm[raster]") from None
    try:
        # A folder is not listed for the files beside one that is opened: it may hold a million.
        with rasterio.Env(GDAL_CACHEMAX=_CACHE, GDAL_DISABLE_READDIR_ON_OPEN="TRUE"):
            yield
    except (RasterioError, CPLE_BaseError) as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise OSError(f"{path} cannot be {what}: {reason}") from None


def opened(path: str | Path, mode: str = "r", **profile: Any) -> Any:
    """rasterio's open file, within `gdal`; that it has no place is no reason to warn."""
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        return rasterio.open(path, mode, **profile)
