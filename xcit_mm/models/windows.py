"""How an axis of a large image is divided into tiles, or into windows of neck and heads."""

import math
from itertools import pairwise
from typing import NamedTuple

from ..utils.errors import ArgumentError

# Windows of neck and heads start at its multiples, so that their cells are those of the image at
# all strides of heads. It is also the minimum margin in which a window sees its neighbours.
CELL = 128  # pixels


class Window(NamedTuple):
    """A tile or a window along one axis of an image, in pixels.

    Attributes:
        start: First pixel.
        stop: Pixel after the last.
        inside: The interior. The interiors of all windows cover the axis, each pixel once.
        margin: Minimum number of pixels that it sees on each side of its interior, unless the
            image ends there.
        edges: Whether the image continues beyond the start, and beyond the stop.
    """

    start: int
    stop: int
    inside: slice
    margin: float
    edges: tuple[bool, bool]

    @property
    def span(self) -> slice:
        """All of its pixels."""
        return slice(self.start, self.stop)


def tiles_along(length: int, tile: int, overlap: int) -> list[Window]:
    """Spread tiles of `tile` pixels evenly over an axis of `length` pixels.

    Neighbours share at least `overlap` pixels. An axis shorter than a tile is one tile. Interiors
    end in the middle of the shared pixels. `check_overlap` must have accepted both.
    """
    tile = min(tile, length)
    count = 1 if length == tile else -((overlap - length) // (tile - overlap))
    starts = [round(number * (length - tile) / max(count - 1, 1)) for number in range(count)]
    overlaps = [start + tile - next_start for start, next_start in pairwise(starts)]
    margin = min(overlaps, default=0) / 2
    seams = [start + shared // 2 for start, shared in zip(starts[1:], overlaps, strict=True)]
    spread = []
    for start, ends in zip(starts, pairwise([0, *seams, length]), strict=True):
        edges = (start > 0, start + tile < length)
        spread.append(Window(start, start + tile, slice(*ends), margin, edges))
    return spread


def check_overlap(tile: int, overlap: int) -> None:
    """Raise ArgumentError if tiles cannot overlap by so many pixels."""
    if tile < 1:
        raise ArgumentError("tile", f"{tile} pixels: must be positive")
    if not 0 <= overlap < tile:
        problem = f"{overlap} for tiles of {tile} pixels"
        raise ArgumentError("overlap", f"{problem}: give at least 0, and less than a tile")


def windows_along(span: slice, length: int, side: int, overlap: int) -> list[Window]:
    """Divide a part of an axis of `length` pixels into windows of neck and heads.

    Their interiors are of about `side` pixels and end at multiples of `CELL`. A window sees half of
    the overlap beyond its interior, at least `CELL` pixels, as far as the image reaches.
    """
    first = span.start // CELL
    last = math.ceil(span.stop / CELL)
    margin = max(1, math.ceil(overlap / 2 / CELL))
    count = math.ceil((last - first) / max(1, round(side / CELL)))
    seams = [first + round(number * (last - first) / count) for number in range(count + 1)]
    spread: list[Window] = []
    for start, stop in pairwise(seams):
        low = max(start - margin, 0) * CELL
        high = min((stop + margin) * CELL, length)
        inside = slice(max(start * CELL, span.start), min(stop * CELL, span.stop))
        if spread and spread[-1].span == slice(low, high):  # it sees the same
            spread[-1] = spread[-1]._replace(inside=slice(spread[-1].inside.start, inside.stop))
            continue
        edges = (low > 0, high < length)
        spread.append(Window(low, high, inside, margin * CELL, edges))
    return spread


def in_cells(pixels: slice, size: int) -> slice:
    """Return the cells of `size` pixels that cover a span of an axis, which starts at a cell."""
    return slice(pixels.start // size, pixels.stop // size)
