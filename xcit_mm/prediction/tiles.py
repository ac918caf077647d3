"""Large images as overlapping tiles, each of which contributes its interior."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import shapely
import supervision as sv

from .masks import Crop, crop_of, to_compact
from .prediction import Prediction
from .seams import Objects, concatenate, merge_objects, outline


class Window(NamedTuple):
    """A tile along one axis of an image, in pixels.

    Attributes:
        start: First pixel.
        stop: Pixel after the last.
        inside: The interior. The interiors of all tiles cover the axis, each pixel once.
        margin: Tolerance around a seam, in which neighbours may disagree on an object.
        edges: Whether the image continues beyond the start, and beyond the stop.
    """

    start: int
    stop: int
    inside: slice
    margin: float
    edges: tuple[bool, bool]


def windows(length: int, tile: int, overlap: int) -> list[Window]:
    """Spread tiles of `tile` pixels evenly over `length` pixels, so that neighbours share at least
    `overlap` pixels.

    An axis shorter than a tile is one window. Interiors end in the middle of the shared pixels.

    Raises:
        ValueError: If the tile is not positive or the overlap not between 0 and the tile.
    """
    if not 0 <= overlap < tile:
        raise ValueError(
            f"tiles of {tile} pixels with an overlap of {overlap}: must be 0 <= overlap < tile"
        )
    tile = min(tile, length)
    count = 1 if length == tile else -((overlap - length) // (tile - overlap))
    starts = [round(number * (length - tile) / max(count - 1, 1)) for number in range(count)]
    overlaps = [start + tile - next_start for start, next_start in pairwise(starts)]
    margin = min(overlaps, default=0) / 8
    seams = [start + shared // 2 for start, shared in zip(starts[1:], overlaps, strict=True)]
    spread = []
    for start, ends in zip(starts, pairwise([0, *seams, length]), strict=True):
        edges = (start > 0, start + tile < length)
        spread.append(Window(start, start + tile, slice(*ends), margin, edges))
    return spread


def overlap_of_tiles(tile: int, overlap: int | None) -> int:
    """Return the minimum overlap of tiles, by default a quarter, or raise as `windows` does."""
    overlap = tile // 4 if overlap is None else overlap
    windows(tile, tile, overlap)
    return overlap


def reported_objects(prediction: Prediction, rows: Window, columns: Window) -> Objects:
    """Select the objects of a tile whose centre lies in its interior, or in the margin around it if
    the tile's edge does not cut the object.

    So an object that is not larger than the overlap comes from a tile that contains it whole.
    """
    boxes = prediction.boxes.astype(float) + np.tile([columns.start, rows.start], 2)
    keep = np.ones(len(boxes), bool)
    is_open = np.zeros((len(boxes), 4), bool)  # whether the tile may cut the object
    for axis, window in enumerate((columns, rows)):
        low = boxes[:, axis]
        high = boxes[:, axis + 2]
        # If this tile cuts an object whose centre lies beyond a seam, the next tile sees more.
        below = window.inside.start - (low + high) / 2
        above = (low + high) / 2 - window.inside.stop
        is_near = np.maximum(below, above) <= window.margin
        is_cut_below = (below > 0) & (low <= window.start + 1)
        is_cut_above = (above > 0) & (high >= window.stop - 1)
        keep &= is_near & ~is_cut_below & ~is_cut_above
        is_open[:, axis] = (low <= window.start + window.margin) & window.edges[0]
        is_open[:, axis + 2] = (high >= window.stop - window.margin) & window.edges[1]
    shapes = shapely.box(*boxes[keep].T)
    instances: Any = prediction.instances
    masks = instances.mask
    if masks is not None:
        for position, number in enumerate(np.flatnonzero(keep)):
            left, top, mask = crop_of(masks, int(number))
            shapes[position] = outline(mask, (columns.start + left, rows.start + top))
    tiles = np.tile([columns.start, rows.start, columns.stop, rows.stop], (keep.sum(), 1))
    scores = prediction.scores[keep].astype(float)
    labels = prediction.labels[keep]
    return Objects(shapes, boxes[keep], scores, labels, tiles, is_open[keep])


def interior(
    labels: np.ndarray, rows: Window, columns: Window, scale: tuple[float, float] = (1.0, 1.0)
) -> tuple[tuple[int, int], np.ndarray]:
    """Return the first row and column of the image's pixels in the interior of a tile, and their
    classes (h, w).

    Args:
        labels: Of the tile.
        scale: Factors of height and width between the image and what the tiles divide.
    """
    corner = []
    for axis, window in enumerate((rows, columns)):
        ends = (window.inside.start, window.inside.stop)
        first, last = (math.ceil(end / scale[axis] - 0.5) for end in ends)
        centres = (np.arange(first, last) + 0.5) * scale[axis]
        labels = labels.take(np.floor(centres).astype(int) - window.start, axis)
        corner.append(first)
    return (corner[0], corner[1]), labels


def predict_tiled(
    predict: Callable[[list[np.ndarray]], Iterable[Prediction]],
    image: np.ndarray,
    tile: int,
    overlap: int,
) -> Prediction:
    """Predict an image (H, W, C) tile by tile, by a function that predicts a list of crops."""
    tiles = list(product(*(windows(length, tile, overlap) for length in image.shape[:2])))
    crops = [image[rows.start : rows.stop, columns.start : columns.stop] for rows, columns in tiles]
    return join_tiles(image, zip(tiles, predict(crops), strict=True))


def join_tiles(
    image: np.ndarray,
    predictions: Iterable[tuple[tuple[Window, ...], Any]],
    scale: tuple[float, float] = (1.0, 1.0),
) -> Prediction:
    """Join the predictions of tiles, given with their rows and columns, to that of the image.

    Args:
        scale: As of `interior`.
    """
    labels = np.zeros(image.shape[:2], np.uint16)
    reported = []
    for (rows, columns), prediction in predictions:
        if prediction.segmentation is None:
            reported.append(reported_objects(prediction, rows, columns))
        else:
            (top, left), inside = interior(prediction.segmentation, rows, columns, scale)
            height, width = inside.shape
            labels[top : top + height, left : left + width] = inside
    joined = replace(prediction, image=image)  # with the names of the last tile's prediction
    if prediction.segmentation is not None:
        return replace(joined, segmentation=labels.astype(prediction.segmentation.dtype))
    merged = merge_objects(to_image(concatenate(reported), scale))
    masks = None
    if prediction.instances.mask is not None:
        masks = to_compact(map(_rasterize, merged.shapes), image.shape[:2])
    detections = sv.Detections(merged.boxes, masks, merged.scores, merged.labels)
    return replace(joined, instances=detections)


def to_image(objects: Objects, scale: tuple[float, float]) -> Objects:
    """Return the objects of tiles in pixels of the image, with `scale` as of `interior`."""
    if scale == (1.0, 1.0):
        return objects
    factors = np.array(scale[::-1])  # of x and y
    corners = np.tile(factors, 2)
    return objects._replace(
        shapes=shapely.transform(objects.shapes, lambda points: points / factors),
        boxes=objects.boxes / corners,
        tiles=objects.tiles / corners,
    )


def _rasterize(polygons: shapely.Geometry) -> Crop:
    box = (0, 0, 1, 1) if polygons.is_empty else polygons.bounds
    left, top = map(math.floor, box[:2])
    right, bottom = map(math.ceil, box[2:])
    shapely.prepare(polygons)
    y, x = np.mgrid[top:bottom, left:right] + 0.5
    return Crop(left, top, shapely.contains_xy(polygons, x, y))
