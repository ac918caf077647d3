"""Encode and decode masks in COCO's run-length code, in images of any size.

pycocotools counts pixels in 32 bits and decodes whole images, so it cannot process rasters of 2^32 pixels or more.
`xcit_mm/deployment/runtime`, which runs without this package, writes uncompressed run lengths by itself.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class MaskCrop(NamedTuple):
    """A mask (h, w), bool, cropped to its bounding box, and the first row and column of the box in the image."""

    mask: np.ndarray
    top: int
    left: int


def encode_mask(mask: np.ndarray, corner: tuple[int, int] = (0, 0), shape: tuple[int, int] | None = None) -> dict:
    """Encode a mask (h, w), bool, as COCO's `size` and compressed `counts`.

    Args:
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
    size = codes[0]["size"]
    return _encode_runs(*_runs([code["counts"] for code in codes], *size)[1:], *size)


def _span(mask: np.ndarray, axis: int) -> tuple[int, int]:
    """Return the first row or column that is not empty, and the one after the last."""
    used = np.logical_or.reduce(mask, axis=axis)
    return (int(used.argmax()), len(used) - int(used[::-1].argmax())) if used.any() else (0, 0)


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
    return _parse([counts])[0]


def _parse(codes: Sequence[str | bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the run lengths of masks, one mask after the other, the number of their mask and their place in it."""
    texts = [code.encode("ascii", "replace") if isinstance(code, str) else code for code in codes]
    digits = np.frombuffer(b"".join(texts), np.uint8).astype(np.int64) - 48
    owner = np.arange(len(texts)).repeat([len(text) for text in texts])
    last = (digits & 32) == 0
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    is_cut = ~last & (np.diff(owner, append=len(texts)) > 0)
    if is_cut.any() or ((digits < 0) | (digits > 63)).any() or (ends - starts).max(initial=0) > 11:
        raise ValueError(f"not a run-length code: {str(codes[0])[:40]}")
    owner = owner[ends]
    position = np.arange(len(digits)) - np.repeat(starts, ends - starts + 1)
    lengths = np.add.reduceat((digits & 31) << (5 * position), starts) if len(starts) else np.zeros(0, np.int64)
    lengths -= ((digits[ends] & 16) > 0) * (np.int64(1) << (5 * (position[ends] + 1)))
    # A length after the second is stored as the difference to the length two places before.
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)
    chain = 3 * owner + np.where(place > 0, 2 - place % 2, 0)
    order = chain.argsort(kind="stable")
    sums, first = lengths[order].cumsum(), np.searchsorted(chain[order], chain[order])
    lengths[order] = sums - (sums - lengths[order])[first]
    return lengths, owner, place


def _runs(codes: Sequence[str | bytes], height: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first pixel of the runs inside masks, and the pixel after the last, with the number of their mask."""
    lengths, owner, place = _parse(codes)
    pixels = np.bincount(owner, lengths, minlength=len(codes)).astype(np.int64)
    wrong = pixels[pixels != height * width]
    if len(wrong) or (lengths < 0).any():
        raise ValueError(f"a run-length code of {[*wrong, *pixels][0]} pixels for an image of {height} x {width}")
    stops = lengths.cumsum() - owner * (height * width)
    inside = (place % 2 == 1) & (lengths > 0)
    return owner[inside], (stops - lengths)[inside], stops[inside]


def _columns(codes: Sequence[str | bytes], height: int, width: int) -> tuple[np.ndarray, ...]:
    """Return the runs inside masks, split where a column ends: number of the mask, column, first and last row + 1."""
    owner, starts, stops = _runs(codes, height, width)
    first, last = starts // height, (stops - 1) // height
    pieces = last - first + 1
    run = np.arange(len(pieces)).repeat(pieces)
    number = np.arange(len(run)) - (pieces.cumsum() - pieces)[run]
    columns = first[run] + number
    tops = np.where(number == 0, starts[run] % height, 0)
    return owner[run], columns, tops, np.where(columns == last[run], (stops[run] - 1) % height + 1, height)


def mask_areas(codes: Sequence[dict], first: np.ndarray, second: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """Count the pixels that pairs of masks of one image share, those of the first, and those of the second, (3, n).

    Args:
        codes: Masks in COCO's run-length code, to which `first` (n,) and `second` (n,) are indices.
        windows: Left, top, right and bottom of the part of the image in which to count, (n, 4).
    """
    used, index = np.unique(np.concatenate([first, second]), return_inverse=True)
    if not len(used):
        return np.zeros((3, 0))
    height, width = codes[used[0]]["size"]
    owner, columns, tops, bottoms = _columns([codes[number]["counts"] for number in used], height, width)
    offsets = np.searchsorted(owner, np.arange(len(used) + 1))

    def runs(index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return pair, position and length of the runs inside the windows. All pairs together have one axis."""
        count = np.diff(offsets)[index]
        pair = np.arange(len(index)).repeat(count)
        run = np.arange(len(pair)) + (offsets[index] - count.cumsum() + count)[pair]
        left, top, right, bottom = windows[pair].T
        starts, stops = np.maximum(tops[run], top), np.minimum(bottoms[run], bottom)
        inside = (columns[run] >= left) & (columns[run] < right) & (starts < stops)
        starts, lengths = starts + (pair * width + columns[run]) * (height + 1), stops - starts
        return pair[inside], starts[inside], lengths[inside]

    (one, starts, lengths), (two, *others) = runs(index[: len(first)]), runs(index[len(first) :])
    begins, sizes = (np.concatenate([[fill], values]) for fill, values in zip((-1, 0), others, strict=True))
    before = sizes.cumsum() - sizes

    def covered(position: np.ndarray) -> np.ndarray:
        """Return the number of the second masks' pixels before a position."""
        run = np.searchsorted(begins, position, side="right") - 1
        return before[run] + np.minimum(position - begins[run], sizes[run])

    both = covered(starts + lengths) - covered(starts)
    weights = (one, both), (one, lengths), (two, others[1])
    return np.stack([np.bincount(pair, weight, minlength=len(first)) for pair, weight in weights])


def decode_crop(counts: str | bytes, height: int, width: int) -> MaskCrop | None:
    """Decode a mask of an image in the memory of its bounding box, or return None if the mask is empty."""
    _, columns, tops, bottoms = _columns([counts], height, width)
    if not len(columns):
        return None
    top, left = tops.min(), columns.min()
    changes = np.zeros((columns.max() - left + 1, bottoms.max() - top + 1), np.int8)
    np.add.at(changes, (columns - left, tops - top), 1)
    np.add.at(changes, (columns - left, bottoms - top), -1)
    return MaskCrop(changes.cumsum(axis=1, dtype=np.int8)[:, :-1].T.astype(bool), int(top), int(left))
