"""Large images as overlapping tiles: the windows along each axis, and the tiles' way through a model in batches."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

PredictBatch = Callable[[list[np.ndarray]], list[Any]]
"""Function from images of one size, at most a batch of them, to one result per image."""

ReadTile = Callable[[slice, slice], np.ndarray | None]
"""Function from rows and columns to that part of an image (h, w, C), or to None where nothing is to be predicted."""


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

    def rising(pixels: int) -> Tensor:
        return ((torch.arange(tile, dtype=torch.float64) + 0.5) / max(pixels, 0.5)).clamp(max=1)

    ramps = torch.ones(count, tile, dtype=torch.float64)
    sums = torch.zeros(length, dtype=torch.float64)
    for number, start in enumerate(starts):
        if number > 0:
            ramps[number] *= rising(shared[number - 1])
        if number < count - 1:
            ramps[number] *= rising(shared[number]).flip(0)
        sums[start : start + tile] += ramps[number]
    seams = [-torch.inf, *((left + tile + right) / 2 for left, right in pairwise(starts)), torch.inf]
    # Neighbours may disagree on an object's centre, so a tile also looks this far beyond its interior.
    margin = min(shared, default=0) / 8
    weights = [(ramp / sums[start : start + tile]).float() for start, ramp in zip(starts, ramps, strict=True)]
    return [
        Window(start, start + tile, interior, margin, weight)
        for start, interior, weight in zip(starts, pairwise(seams), weights, strict=True)
    ]


def check_tile(tile: int, overlap: int) -> None:
    """Raise ValueError if the tile is not positive or the overlap not between 0 and the tile."""
    if not 0 <= overlap < tile:
        raise ValueError(f"tiles of {tile} pixels with an overlap of {overlap}: must be 0 <= overlap < tile")


class TiledImage:
    """An image of a `shape` (H, W) that is read tile by tile, in `rows` and `columns` of windows."""

    def __init__(self, read: ReadTile, shape: tuple[int, int], tile: int, overlap: int) -> None:
        self._read, self.shape = read, shape
        self.rows, self.columns = (windows(length, tile, overlap) for length in shape)

    def iter_predicted(
        self, predict: PredictBatch, tiles: list[tuple[Window, Window]], batch_size: int
    ) -> Iterator[Any]:
        """Yield the result of each tile in order, or None for a tile in which nothing is to be predicted."""
        for first in range(0, len(tiles), batch_size):
            crops = [
                self._read(slice(rows.start, rows.stop), slice(columns.start, columns.stop))
                for rows, columns in tiles[first : first + batch_size]
            ]
            present = [crop for crop in crops if crop is not None]
            results = iter(predict(present) if present else [])
            for crop in crops:
                yield None if crop is None else next(results)
