"""Headers of image files: the fields of a TIFF, and the bits of a pixel."""

import re
import struct
from io import BytesIO
from typing import BinaryIO

BITS, BANDS = 258, 277  # tags of TIFF
BROKEN_TIFF = (struct.error, KeyError, ValueError, OverflowError)
"""Exceptions of `read_tiff_fields`."""

# Types of integer fields, and their codes in `struct`.
_INTEGERS = {1: "B", 3: "H", 4: "I", 16: "Q"}
# Signature, length and name of the first chunk, width and height, then the bits.
_DEEP_PNG = re.compile(rb"\x89PNG\r\n\x1a\n.{4}IHDR.{8}\x10", re.DOTALL)
# Kind, width, height and maximum value of a PGM or PPM, with comments between them.
_PNM = re.compile(rb"P[2356]" + 3 * rb"(?:\s|#[^\n]*\n)+(\d+)")


def has_more_than_8_bits(content: bytes) -> bool:
    """Return whether a file's pixels have more than 8 bits per band, by the header of a PNG, PGM, PPM or TIFF."""
    if pnm := _PNM.match(content):
        return int(pnm[3]) > 255
    try:
        return bool(_DEEP_PNG.match(content)) or read_tiff_fields(BytesIO(content)).get(BITS, 1) > 8
    except BROKEN_TIFF:
        return False


def read_tiff_fields(file: BinaryIO) -> dict[int, int]:
    """Read the first value of each field of the first image, by tag; 0 for fields that are not integers.

    Pillow's reader does not open big-endian BigTIFFs, reads all values and warns of broken files (Pillow 13).
    """
    order = {b"II": "<", b"MM": ">"}[file.read(2)]
    big = {42: False, 43: True}[_unpack(file, order + "H")[0]]
    offset = _unpack(file, order + ("HHQ" if big else "I"))[-1]
    file.seek(offset)
    (count,) = _unpack(file, order + ("Q" if big else "H"))
    if count > 4096:
        raise ValueError("a broken TIFF")
    entries = [_unpack(file, order + ("HHQ8s" if big else "HHI4s")) for _ in range(count)]
    return {tag: _first_value(file, order, big, *entry) for tag, *entry in entries}


def _first_value(file: BinaryIO, order: str, big: bool, kind: int, count: int, value: bytes) -> int:
    """Return a field's first value. The field holds its values, or their offset in the file if they are too long."""
    if kind not in _INTEGERS or not count:
        return 0
    code = order + _INTEGERS[kind]
    if count * struct.calcsize(code) > len(value):
        file.seek(struct.unpack(order + ("Q" if big else "I"), value)[0])
        return _unpack(file, code)[0]
    return struct.unpack_from(code, value)[0]


def _unpack(file: BinaryIO, code: str) -> tuple:
    return struct.unpack(code, file.read(struct.calcsize(code)))
