"""Large images as overlapping tiles: the windows along each axis, and the tiles' way through a model in batches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["PredictBatch", "ReadTile", "Tile", "TiledImage", "Window", "check_tile", "windows"]

PredictBatch = Callable[[list[np.ndarray]], list[Any]]
"""Function from images of one size, at most a batch of them, to one result per image."""

ReadTile = Callable[[slice, slice], np.ndarray | None]
"""Function from rows and columns to that part of an image (h, w, C), or to None where nothing is to be predicted."""

# Neighbours may disagree on an object's centre, so a tile also looks this part of the overlap beyond its interior.
_MARGIN = 1 / 8


class Window(NamedTuple):
    """A tile along one axis of an image, in pixels.

    Attributes:
        start: First pixel.
        stop: Pixel after the last.
        interior: Start and end of the pixels to which no other tile's middle is nearer.
        margin: Width beside the interior, inside neighbouring interiors, in which the tile also reports objects.
        weight: Weight of each pixel, (stop - start,). The weights of all tiles at a pixel sum to 1.
    """

    start: int
    stop: int
    interior: tuple[float, float]
    margin: float
    weight: Tensor


Tile = tuple[Window, Window]
"""Rows and columns of a tile."""


def windows(length: int, tile: int, overlap: int) -> list[Window]:
    """Spread tiles of `tile` pixels evenly over `length` pixels, so that neighbours share at least `overlap` pixels.

    An axis shorter than a tile is one window. Weights fall linearly towards edges where a tile has a neighbour.

    Raises:
        ValueError: If the tile is not positive or the overlap not between 0 and the tile.
    """
    check_tile(tile, overlap)
    tile = min(tile, length)
    count = 1 if length == tile else -((overlap - length) // (tile - overlap))
    starts = [round(number * (length - tile) / max(count - 1, 1)) for number in range(count)]
    shared = [left + tile - right for left, right in pairwise(starts)]
    ramps = torch.ones(count, tile, dtype=torch.float64)
    sums = torch.zeros(length, dtype=torch.float64)
    for number, start in enumerate(starts):
        if number > 0:
            ramps[number] *= _ramp(tile, shared[number - 1])
        if number < count - 1:
            ramps[number] *= _ramp(tile, shared[number]).flip(0)
        sums[start : start + tile] += ramps[number]
    seams = [-torch.inf, *((left + tile + right) / 2 for left, right in pairwise(starts)), torch.inf]
    margin = _MARGIN * min(shared, default=0)
    weights = [(ramp / sums[start : start + tile]).float() for start, ramp in zip(starts, ramps, strict=True)]
    return [
        Window(start, start + tile, interior, margin, weight)
        for start, interior, weight in zip(starts, pairwise(seams), weights, strict=True)
    ]


def check_tile(tile: int, overlap: int) -> None:
    """Raise ValueError if the tile is not positive or the overlap not between 0 and the tile."""
    if not 0 <= overlap < tile:
        raise ValueError(f"tiles of {tile} pixels with an overlap of {overlap}: must be 0 <= overlap < tile")


def _ramp(tile: int, shared: int) -> Tensor:
    """Return weights that rise over the first `shared` pixels."""
    return ((torch.arange(tile, dtype=torch.float64) + 0.5) / max(shared, 0.5)).clamp(max=1)


@dataclass(frozen=True)
class TiledImage:
    """An image that is read tile by tile.

    Attributes:
        read: Reads a tile.
        shape: Height and width of the image.
        tile: Side of a tile, in pixels.
        overlap: Minimum overlap of neighbouring tiles, in pixels.
    """

    read: ReadTile
    shape: tuple[int, int]
    tile: int
    overlap: int

    @classmethod
    def from_array(cls, image: np.ndarray, tile: int, overlap: int) -> "TiledImage":
        """Tile an image (H, W, C) in memory."""
        return cls(lambda rows, columns: image[rows, columns], image.shape[:2], tile, overlap)

    @cached_property
    def rows(self) -> list[Window]:
        """Windows from the top to the bottom."""
        return windows(self.shape[0], self.tile, self.overlap)

    @cached_property
    def columns(self) -> list[Window]:
        """Windows from the left to the right."""
        return windows(self.shape[1], self.tile, self.overlap)

    def iter_predicted(self, predict: PredictBatch, tiles: list[Tile], batch_size: int) -> Iterator[Any]:
        """Yield the result of each tile in order, or None for a tile in which nothing is to be predicted."""
        for first in range(0, len(tiles), batch_size):
            crops = [
                self.read(slice(rows.start, rows.stop), slice(columns.start, columns.stop))
                for rows, columns in tiles[first : first + batch_size]
            ]
            present = [crop for crop in crops if crop is not None]
            results = iter(predict(present) if present else [])
            for crop in crops:
                yield None if crop is None else next(results)
