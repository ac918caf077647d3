"""Which files are rasters, and not pictures: by their suffixes, and what the header of a TIFF says of it."""

import importlib.util
import os
import re
import struct
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

__all__ = ["RASTERS", "TiffHeader", "has_more_than_bytes", "is_raster", "tiff_header"]

_TIFFS = (".tif", ".tiff")
RASTERS = (*_TIFFS, ".jp2", ".j2k", ".vrt", ".img", ".ntf", ".nitf")
"""Suffixes of what may be a raster. GDAL's other formats come through a .vrt."""
_SLIDES = (".svs", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".bif", ".czi")
# OpenCV reads no more pixels, nor longer sides.
_OPENCV_PIXELS, _OPENCV_SIDE = 2**30, 2**20

_WIDTH, _HEIGHT, _BITS, _BANDS, _EXTRA_BANDS, _SAMPLE_FORMAT = 256, 257, 258, 277, 338, 339
# Pixel scale, tie points and transformation of GeoTIFF, and its coordinate system.
_PLACE = (33550, 33922, 34264, 34735)
# Field types that hold whole numbers, as `struct` names them.
_INTEGERS = {1: "B", 3: "H", 4: "I", 16: "Q"}
_UNSIGNED, _STRAIGHT_ALPHA = 1, 2
_MOST_FIELDS = 4096
_BROKEN = (struct.error, KeyError, ValueError, OverflowError)
# Signature, length and name of the first chunk, width and height; then bits.
_DEEP_PNG = re.compile(rb"\x89PNG\r\n\x1a\n.{4}IHDR.{8}\x10", re.DOTALL)
# Kind, width, height and highest value of a PGM or PPM, between which there may be comments.
_PNM = re.compile(rb"P[2356]" + 3 * rb"(?:\s|#[^\n]*\n)+(\d+)")
# Beside the image, in the place of its suffix.
_WORLD_FILES = (".tfw", ".tifw", ".wld", ".TFW", ".TIFW", ".WLD")


def is_raster(path: str | Path) -> bool:
    """Whether `Raster` reads a file, rather than `read_image`.

    So it is with the suffixes in `RASTERS`; of TIFFs, with those that lie on a map, have more than 8 bits, other
    than 1, 3 or 4 bands, or more pixels than OpenCV reads. A broken one, and a URL, are left to `read_image`.

    Raises:
        ModuleNotFoundError: If it is one and rasterio is not installed.
        ValueError: If it is a whole-slide image.
    """
    path = str(path)
    suffix = os.path.splitext(path)[1].lower()
    if suffix in _SLIDES:
        convert = f"vips tiffsave {os.path.basename(path)} OUT.tif --tile --pyramid --bigtiff --compression jpeg"
        raise ValueError(f"{path} is a whole-slide image, which is not read as such: convert it by `{convert}`")
    if "://" in path or not (_needs_gdal(path) if suffix in _TIFFS else suffix in RASTERS):
        return False
    if importlib.util.find_spec("rasterio") is None:
        raise ModuleNotFoundError(f"{path} needs rasterio: pip install xcit_mm[raster]")
    return True


def _needs_gdal(path: str) -> bool:
    try:
        header = tiff_header(path)
    except OSError:  # read_image tells why
        return False
    if header is None:
        return False
    large = header.width * header.height > _OPENCV_PIXELS or max(header.width, header.height) > _OPENCV_SIDE
    return header.placed or large or header.bits > 8 or not header.unsigned or header.bands not in (1, 3, 4)


def has_more_than_bytes(content: bytes) -> bool:
    """Whether a file's pixels have more than 8 bits a band, by the header of a PNG, PGM, PPM or TIFF."""
    if pnm := _PNM.match(content):
        return int(pnm[3]) > 255
    try:
        return bool(_DEEP_PNG.match(content)) or _fields(BytesIO(content)).get(_BITS, 1) > 8
    except _BROKEN:  # no TIFF, or a broken one
        return False


class TiffHeader(NamedTuple):
    """Of a TIFF's first image.

    Attributes:
        width: In pixels.
        height: In pixels.
        bands: An alpha channel is one too.
        bits: Of a pixel in the first band.
        unsigned: Whether pixels are whole numbers from 0 on.
        straight_alpha: Whether there is an alpha channel that colours are not multiplied by yet.
        placed: Whether the file, or a world file beside it, says where on a map it lies.
    """

    width: int
    height: int
    bands: int
    bits: int
    unsigned: bool
    straight_alpha: bool
    placed: bool


def tiff_header(path: str | Path) -> TiffHeader | None:
    """The header of a TIFF or BigTIFF; None of what is none, or is broken.

    Raises:
        OSError: If the file cannot be read.
    """
    with open(path, "rb") as file:
        try:
            fields = _fields(file)
            width, height = fields[_WIDTH], fields[_HEIGHT]
        except _BROKEN:
            return None
    return TiffHeader(
        width,
        height,
        fields.get(_BANDS, 1),
        fields.get(_BITS, 1),
        fields.get(_SAMPLE_FORMAT, _UNSIGNED) == _UNSIGNED,
        fields.get(_EXTRA_BANDS) == _STRAIGHT_ALPHA,
        any(tag in fields for tag in _PLACE) or _has_world_file(path),
    )


def _fields(file: BinaryIO) -> dict[int, int]:
    """First values of the fields of the first image, by their tags; 0 of those that are no whole numbers."""
    order = {b"II": "<", b"MM": ">"}.get(file.read(2))
    if order is None:
        raise ValueError("no TIFF")
    (version,) = _unpack(file, order + "H")
    if version not in (42, 43):
        raise ValueError("no TIFF")
    big = version == 43
    offset = _unpack(file, order + ("HHQ" if big else "I"))[-1]
    file.seek(offset)
    (count,) = _unpack(file, order + ("Q" if big else "H"))
    if count > _MOST_FIELDS:
        raise ValueError("no TIFF that anybody writes")
    entries = [_unpack(file, order + ("HHQ8s" if big else "HHI4s")) for _ in range(count)]
    return {tag: _first_value(file, order, big, *entry) for tag, *entry in entries}


def _first_value(file: BinaryIO, order: str, big: bool, kind: int, count: int, value: bytes) -> int:
    """A field's first value, which lies in the field if all of them have room there."""
    if kind not in _INTEGERS or not count:
        return 0
    code = order + _INTEGERS[kind]
    if count * struct.calcsize(code) > len(value):
        file.seek(struct.unpack(order + ("Q" if big else "I"), value)[0])
        return _unpack(file, code)[0]
    return struct.unpack_from(code, value)[0]


def _unpack(file: BinaryIO, code: str) -> tuple:
    return struct.unpack(code, file.read(struct.calcsize(code)))


def _has_world_file(path: str | Path) -> bool:
    stem = os.path.splitext(path)[0]
    return any(os.path.exists(stem + suffix) for suffix in _WORLD_FILES)
