"""Encode and decode masks in COCO's run-length code, in images of any size.

pycocotools counts pixels in 32 bits and decodes whole images, so it cannot process rasters of 2^32 pixels or more.
`xcit_mm/deployment/runtime`, which runs without this package, writes uncompressed run lengths by itself.
"""

from typing import NamedTuple

import numpy as np

__all__ = ["MaskCrop", "compress_counts", "decode_crop", "encode_mask", "parse_counts"]


class MaskCrop(NamedTuple):
    """A mask (h, w), bool, cropped to its bounding box, and the first row and column of the box in the image."""

    mask: np.ndarray
    top: int
    left: int


def encode_mask(mask: np.ndarray, corner: tuple[int, int] = (0, 0), shape: tuple[int, int] | None = None) -> dict:
    """Encode a mask (h, w) as COCO's `size` and compressed `counts`.

    Args:
        mask: (h, w), bool.
        corner: Row and column of the mask's first pixel in the image.
        shape: Height and width of the image. Default: those of the mask.
    """
    height, width = shape or mask.shape
    columns = np.flatnonzero(mask.any(axis=0))
    first, last = (columns[0], columns[-1] + 1) if len(columns) else (0, 0)
    # COCO counts down the columns. Only the columns of the mask are laid out.
    strip = np.zeros((last - first, height), dtype=bool)
    strip[:, corner[0] : corner[0] + mask.shape[0]] = mask[:, first:last].T
    changes = np.flatnonzero(np.diff(strip.ravel(), prepend=False, append=False)) + (corner[1] + first) * height
    counts = np.diff(changes[changes < height * width], prepend=0, append=height * width)
    return dict(size=[int(height), int(width)], counts=compress_counts(counts))


def compress_counts(counts: np.ndarray) -> bytes:
    """Compress run lengths as pycocotools does: five bits per letter, the lowest first; the sixth bit announces more.

    From the fourth on, lengths are stored as the difference to the length two places before.
    """
    values = np.array(counts, np.int64)
    values[3:] -= counts[1:-2]
    bits = int(np.abs(values).max()).bit_length() + 1  # with the sign
    shifted = values[:, None] >> np.arange(0, bits, 5)
    # The last letter's fifth bit is the sign: nothing but copies of that bit is left above it.
    letters = np.argmax((shifted >= -16) & (shifted < 16), axis=1)[:, None]
    position = np.arange(shifted.shape[1])
    coded = 48 + (shifted & 31) + 32 * (position < letters)
    return coded[position <= letters].astype(np.uint8).tobytes()


def parse_counts(counts: str | bytes) -> np.ndarray:
    """Return the run lengths, alternately outside and inside the mask, of COCO's compressed `counts`."""
    code = np.frombuffer(counts.encode("ascii", "replace") if isinstance(counts, str) else counts, np.uint8)
    digits = code.astype(np.int64) - 48
    if not len(digits):
        return np.zeros(0, np.int64)
    last = (digits & 32) == 0
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    if not (((digits >= 0) & (digits <= 63)).all() and last[-1] and (ends - starts).max() <= 11):
        raise ValueError(f"not a run-length code: {str(counts)[:40]}")
    position = np.arange(len(digits)) - np.repeat(starts, ends - starts + 1)
    lengths = np.add.reduceat((digits & 31) << (5 * position), starts)
    lengths -= ((digits[ends] & 16) > 0) * (np.int64(1) << (5 * (position[ends] + 1)))
    for first in (1, 2):
        lengths[first::2] = lengths[first::2].cumsum()
    return lengths


def decode_crop(counts: str | bytes, height: int, width: int) -> MaskCrop | None:
    """Decode a mask of an image in the memory of its bounding box, or return None if the mask is empty."""
    lengths = parse_counts(counts)
    if lengths.sum() != height * width or (lengths < 0).any():
        raise ValueError(f"a run-length code of {lengths.sum()} pixels for an image of {height} x {width}")
    edges = lengths.cumsum()
    starts, stops = edges[0:-1:2], edges[1::2]
    starts, stops = starts[stops > starts], stops[stops > starts]
    if not len(starts):
        return None
    # A run is split where a column ends.
    first, last = starts // height, (stops - 1) // height
    pieces = last - first + 1
    number = np.arange(pieces.sum()) - np.repeat(pieces.cumsum() - pieces, pieces)
    columns = np.repeat(first, pieces) + number
    tops = np.where(number == 0, np.repeat(starts % height, pieces), 0)
    bottoms = np.where(columns == np.repeat(last, pieces), np.repeat((stops - 1) % height + 1, pieces), height)
    top, left = tops.min(), columns.min()
    changes = np.zeros((columns.max() - left + 1, bottoms.max() - top + 1), np.int8)
    np.add.at(changes, (columns - left, tops - top), 1)
    np.add.at(changes, (columns - left, bottoms - top), -1)
    return MaskCrop(changes.cumsum(axis=1, dtype=np.int8)[:, :-1].T.astype(bool), int(top), int(left))
