"""Encode and decode masks in COCO's run-length code, in images of any size.

pycocotools counts pixels in 32 bits and decodes whole images, so it cannot process rasters of 2^32 pixels or more.
`xcit_mm/deployment/run.py`, which runs without this package, writes uncompressed run lengths by itself.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["MaskCrop", "compress_counts", "decode_crop", "encode_mask", "parse_counts", "unite_masks"]


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
    (top, bottom), (left, right) = _span(mask, 1), _span(mask, 0)
    # COCO counts down the columns. An empty pixel below each column ends its last run, so that the time depends on the
    # mask's box alone.
    columns = np.zeros((right - left, bottom - top + 1), bool)
    columns[:, :-1] = mask[top:bottom, left:right].T
    column, row = np.divmod(np.flatnonzero(np.diff(columns.ravel(), prepend=False)), bottom - top + 1)
    changes = (corner[1] + left + column) * height + corner[0] + top + row
    return _encode_runs(changes[::2], changes[1::2], height, width)


def unite_masks(codes: Sequence[dict]) -> dict:
    """Return the union of masks of one image in COCO's run-length code, in the memory of their run lengths."""
    runs = [_runs(parse_counts(code["counts"])) for code in codes]
    starts, stops = (np.concatenate(edges) for edges in zip(*runs, strict=True))
    return _encode_runs(starts, stops, *codes[0]["size"])


def _span(mask: np.ndarray, axis: int) -> tuple[int, int]:
    """Return the first row or column that is not empty, and the one after the last."""
    used = np.logical_or.reduce(mask, axis=axis)
    return (int(used.argmax()), len(used) - int(used[::-1].argmax())) if used.any() else (0, 0)


def _runs(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first pixel of each run inside a mask, and the pixel after the last."""
    edges = lengths.cumsum()
    return edges[0:-1:2], edges[1::2]


def _encode_runs(starts: np.ndarray, stops: np.ndarray, height: int, width: int) -> dict:
    """Encode the pixels that lie in at least one run, from a start to a stop."""
    edges = np.concatenate([starts, stops])
    order = edges.argsort(kind="stable")  # a run that ends where the next begins is not interrupted
    steps = np.where(order < len(starts), 1, -1)
    depth = steps.cumsum()
    changes = edges[order][(depth == 0) | (depth == 1) & (steps == 1)]
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
    starts, stops = _runs(lengths)
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
