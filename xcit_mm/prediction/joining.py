"""Predictions of overlapping windows become that of the image: each contributes its interior."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import shapely
import supervision as sv

from ..models.windows import Window
from .masks import Crop, crop_of, to_compact
from .prediction import Prediction, label_type
from .seams import Objects, concatenate, merge_objects, outline

Scale: TypeAlias = tuple[float, float]
"""Factors of height and width from an image to what the model sees."""


class Part(NamedTuple):
    """The prediction of a tile or window.

    Attributes:
        rows, columns: Its place, in pixels as the model sees the image.
        prediction: Of the window. Its image is not that of the user.
        valid: Which of its pixels have data, (h, w), bool.
    """

    rows: Window
    columns: Window
    prediction: Prediction
    valid: np.ndarray


def reported_objects(part: Part) -> Objects:
    """Select the objects of a window that it reports. Masks are cut to pixels with data.

    Their centre has data, and lies in the interior, or near it if the window's edge does not cut
    the object. So an object that is not larger than the overlap comes from a window that contains
    it whole.
    """
    rows = part.rows
    columns = part.columns
    boxes = part.prediction.boxes.astype(float)
    keep = _has_data(boxes, part.valid)
    boxes += np.tile([columns.start, rows.start], 2)
    is_open = np.zeros((len(boxes), 4), bool)  # whether the tile may cut the object
    for axis, window in enumerate((columns, rows)):
        low = boxes[:, axis]
        high = boxes[:, axis + 2]
        # If this tile cuts an object whose centre lies beyond a seam, the next tile sees more.
        below = window.inside.start - (low + high) / 2
        above = (low + high) / 2 - window.inside.stop
        # Neighbours may disagree on an object near a seam.
        tolerance = window.margin / 4
        is_near = np.maximum(below, above) <= tolerance
        is_cut_below = (below > 0) & (low <= window.start + 1)
        is_cut_above = (above > 0) & (high >= window.stop - 1)
        keep &= is_near & ~is_cut_below & ~is_cut_above
        is_open[:, axis] = (low <= window.start + tolerance) & window.edges[0]
        is_open[:, axis + 2] = (high >= window.stop - tolerance) & window.edges[1]
    shapes = shapely.box(*boxes[keep].T)
    instances: Any = part.prediction.instances
    if instances.mask is not None:
        for position, number in enumerate(np.flatnonzero(keep)):
            left, top, mask = crop_of(instances.mask, int(number))
            height, width = mask.shape
            mask = mask & part.valid[top : top + height, left : left + width]
            shapes[position] = outline(mask, (columns.start + left, rows.start + top))
    tiles = np.tile([columns.start, rows.start, columns.stop, rows.stop], (keep.sum(), 1))
    scores = part.prediction.scores[keep].astype(float)
    labels = part.prediction.labels[keep]
    return Objects(shapes, boxes[keep], scores, labels, tiles, is_open[keep])


def _has_data(boxes: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Return whether the centre of each box has data."""
    x, y = ((boxes[:, :2] + boxes[:, 2:]) / 2).astype(int).T
    height, width = valid.shape
    return valid[y.clip(0, height - 1), x.clip(0, width - 1)]


def interior(
    labels: Any, rows: Window, columns: Window, scale: Scale = (1.0, 1.0)
) -> tuple[tuple[int, int], np.ndarray]:
    """Return where the interior of a tile begins in the image, and the classes of its pixels.

    Args:
        labels: The classes of the tile, as the model sees it.

    Returns:
        The first row and column of the interior in the image, and the classes there, (h, w).
    """
    corner = []
    for axis, window in enumerate((rows, columns)):
        ends = (window.inside.start, window.inside.stop)
        first, last = (math.ceil(end / scale[axis] - 0.5) for end in ends)
        centres = (np.arange(first, last) + 0.5) * scale[axis]
        positions = np.floor(centres).astype(int) - window.start
        labels = labels.take(positions.clip(0), axis)
        corner.append(first)
    return (corner[0], corner[1]), labels


def join(
    parts: Iterable[Part],
    image: np.ndarray,
    corner: tuple[int, int],
    scale: Scale,
    predictor: Any,
) -> Prediction:
    """Join the predictions of windows to that of a part of an image.

    Args:
        image: The part, (H, W, C).
        corner: Its first row and column in the image.
        predictor: The `Predictor`, which knows the classes.
    """
    size = image.shape[:2]
    names = predictor.names
    if predictor.is_detector:
        detections = _join_objects(parts, size, corner, scale)
        return Prediction(image, detections, None, names, predictor.palette)
    labels = np.zeros(size, label_type(names))
    for part in parts:
        place = interior(part.prediction.segmentation, part.rows, part.columns, scale)
        _paste(labels, *place, corner)
    return Prediction(image, None, labels, names, predictor.palette)


def _join_objects(
    parts: Iterable[Part],
    size: tuple[int, int],
    corner: tuple[int, int],
    scale: Scale,
) -> sv.Detections:
    """Join the objects of windows. Those with their centre in the part of the image are kept."""
    has_masks = False
    reported = []
    for part in parts:
        instances: Any = part.prediction.instances
        has_masks |= instances.mask is not None
        reported.append(reported_objects(part))
    merged = merge_objects(to_image(concatenate(reported), scale))
    origin = np.array(corner[::-1])  # x and y
    shapes = shapely.transform(merged.shapes, lambda points: points - origin)
    shapes = shapely.intersection(shapes, shapely.box(0, 0, *size[::-1]))
    boxes = (merged.boxes - np.tile(origin, 2)).clip(0, np.tile(size[::-1], 2))
    centres = (merged.boxes[:, :2] + merged.boxes[:, 2:]) / 2 - origin
    is_inside = ((centres >= 0) & (centres < size[::-1])).all(axis=1) & (shapely.area(shapes) > 0)
    masks = to_compact(map(_rasterize, shapes[is_inside]), size) if has_masks else None
    scores = merged.scores[is_inside]
    return sv.Detections(boxes[is_inside], masks, scores, merged.labels[is_inside])


def _paste(
    labels: np.ndarray, place: tuple[int, int], inside: np.ndarray, corner: tuple[int, int]
) -> None:
    """Write classes that begin at `place` in the image into `labels` that begin at `corner`."""
    top, left = (start - origin for start, origin in zip(place, corner, strict=True))
    inside = inside[max(-top, 0) :, max(-left, 0) :]
    target = labels[max(top, 0) :, max(left, 0) :][: len(inside), : inside.shape[1]]
    target[:] = inside[: len(target), : target.shape[1]]


def to_image(objects: Objects, scale: Scale) -> Objects:
    """Return the objects of tiles in pixels of the image."""
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
