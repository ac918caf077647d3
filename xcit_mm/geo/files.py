"""Distinguish rasters from photos by their suffixes and, for TIFFs, by their header, without rasterio."""

import contextlib
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from ..utils.image_headers import BANDS, BITS, BROKEN_TIFF, read_tiff_fields
from .gdal import URLS, gdal, open_raster, require_rasterio

_TIFFS = (".tif", ".tiff")
RASTER_SUFFIXES = (*_TIFFS, ".jp2", ".j2k", ".vrt", ".img", ".ntf", ".nitf")
"""Suffixes of files that may be rasters. Other formats of GDAL need a .vrt."""
_SLIDES = (".svs", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".bif", ".czi")
_WORLD_FILES = (".tfw", ".tifw", ".tiffw", ".wld")
_REMOTE = (*URLS, "/vsi")  # URLs, and the file systems of GDAL

# Tags of TIFF.
_WIDTH, _HEIGHT, _SAMPLE_FORMAT = 256, 257, 339
# GeoTIFF's pixel scale, tie points, transformation and coordinate system.
_GEOREFERENCE = (33550, 33922, 34264, 34735)
_PLACE = re.compile(rb"<(GeoTransform|SRS|GCPList)\b")


def is_remote(path: str) -> bool:
    """Return whether a path is a URL or in a file system of GDAL, such as `/vsicurl/` and `/vsis3/`."""
    return path.startswith(_REMOTE)


def is_raster(path: str | Path) -> bool:
    """Return whether `Raster` reads a file, rather than `read_image`.

    Files with a suffix in `RASTER_SUFFIXES` are rasters, TIFFs only if they are georeferenced, have more than 8 bits,
    other than 1, 3 or 4 bands, or more pixels than OpenCV reads. Broken TIFFs are left to `read_image`. Files in a file
    system of GDAL are rasters.

    Raises:
        ModuleNotFoundError: If the file is a raster and rasterio is not installed.
        ValueError: If the file is a whole-slide image.
    """
    path = str(path)
    suffix = os.path.splitext(urlsplit(path).path if path.startswith(URLS) else path)[1].lower()
    if suffix in _SLIDES:
        command = f"vips tiffsave {os.path.basename(path)} OUT.tif --tile --pyramid --bigtiff --compression jpeg"
        raise ValueError(f"{path} is a whole-slide image, which is not supported: convert it by `{command}`")
    if path.startswith("/vsi"):
        needs_gdal = True
    else:
        needs_gdal = _needs_gdal(path) if suffix in _TIFFS else suffix in RASTER_SUFFIXES
    if needs_gdal:
        require_rasterio(path)
    return needs_gdal


def _needs_gdal(path: str) -> bool:
    """Return whether a TIFF, of which only the header is read, is a raster."""
    if path.startswith(URLS):
        with contextlib.suppress(OSError), gdal(path), open_raster(path) as file:  # read_image reports the reason
            has_place = file.crs is not None or not file.transform.is_identity or bool(file.gcps[0])
            return (
                has_place
                or set(file.dtypes) != {"uint8"}
                or file.count not in (1, 3, 4)
                or is_large(file.width, file.height)
            )
        return False
    try:
        with open(path, "rb") as file:
            fields = read_tiff_fields(file)
        size = fields[_WIDTH], fields[_HEIGHT]
    except (OSError, *BROKEN_TIFF):  # read_image reports the reason
        return False
    is_unsigned = fields.get(_SAMPLE_FORMAT, 1) == 1
    has_other_pixels = fields.get(BITS, 1) > 8 or not is_unsigned or fields.get(BANDS, 1) not in (1, 3, 4)
    return is_large(*size) or has_other_pixels or any(tag in fields for tag in _GEOREFERENCE) or _has_place_beside(path)


def is_large(width: int, height: int) -> bool:
    """Return whether an image exceeds the limits of OpenCV's readers."""
    return width * height > 2**30 or max(width, height) > 2**20


def _has_place_beside(path: str) -> bool:
    """Return whether a file beside an image places it on a map. QGIS also writes .aux.xml for statistics alone."""
    stem = os.path.splitext(path)[0]
    if any(os.path.exists(stem + end) for suffix in _WORLD_FILES for end in (suffix, suffix.upper())):
        return True
    with contextlib.suppress(OSError):
        return _PLACE.search(Path(f"{path}.aux.xml").read_bytes()) is not None
    return False
