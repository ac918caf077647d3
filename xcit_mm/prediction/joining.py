"""Predictions of overlapping windows become that of the image: each contributes its interior."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import shapely
import supervision as sv

from ..models.windows import Window
from .masks import merge_masks, place_mask
from .prediction import Prediction
from .seams import Objects, concatenate, merge_objects, outline

Scale: TypeAlias = tuple[float, float]
"""Factors of height and width from an image to what the model sees."""


class Part(NamedTuple):
    """The prediction of a tile or window.

    Attributes:
        rows, columns: Its place, in pixels as the model sees the image.
        prediction: The window's prediction. Its image is not the user's image.
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
    masks = instances.mask
    if masks is not None:
        for position, number in enumerate(np.flatnonzero(keep)):
            left, top = masks.offsets[number].tolist()
            mask = masks.crop(number)
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


def to_image(objects: Objects, scale: Scale) -> Objects:
    """Return the objects of windows in pixels of the image."""
    factors = np.array(scale[::-1])  # of x and y
    corners = np.tile(factors, 2)
    return objects._replace(
        shapes=shapely.transform(objects.shapes, lambda points: points / factors),
        boxes=objects.boxes / corners,
        tiles=objects.tiles / corners,
    )


def join_objects(objects: Objects, rows: slice, columns: slice) -> Objects:
    """Merge what windows report in a part of an image, in pixels of the image.

    Objects with their centre in the part are kept, and cut to it.
    """
    objects = merge_objects(objects)
    low = np.array([columns.start, rows.start])
    high = np.array([columns.stop, rows.stop])
    centres = (objects.boxes[:, :2] + objects.boxes[:, 2:]) / 2
    boxes = objects.boxes.clip(np.tile(low, 2), np.tile(high, 2))
    shapes = shapely.intersection(objects.shapes, shapely.box(*low, *high))
    is_inside = ((centres >= low) & (centres < high)).all(axis=1) & (shapely.area(shapes) > 0)
    return objects._replace(boxes=boxes, shapes=shapes).select(is_inside)


def join_detections(
    parts: Iterable[Part], rows: slice, columns: slice, scale: Scale
) -> sv.Detections:
    """Join the predictions of windows to the objects in a part of an image, in its pixels."""
    has_masks = True  # also of no objects, where no window has data
    reported = []
    for part in parts:
        instances: Any = part.prediction.instances
        has_masks &= instances.mask is not None
        reported.append(reported_objects(part))
    objects = join_objects(to_image(concatenate(reported), scale), rows, columns)
    corner = np.array([columns.start, rows.start])
    masks = None
    if has_masks:
        size = rows.stop - rows.start, columns.stop - columns.start
        shapes = shapely.transform(objects.shapes, lambda points: points - corner)
        masks = merge_masks((_to_mask(shape, size) for shape in shapes), size)
    boxes = objects.boxes - np.tile(corner, 2)
    return sv.Detections(boxes, masks, objects.scores, objects.labels)


def _to_mask(polygons: shapely.Geometry, size: tuple[int, int]) -> sv.CompactMask:
    left, top = map(math.floor, polygons.bounds[:2])
    right, bottom = map(math.ceil, polygons.bounds[2:])
    shapely.prepare(polygons)
    y, x = np.mgrid[top:bottom, left:right] + 0.5
    return place_mask(shapely.contains_xy(polygons, x, y), left, top, size)


def pixels_in(span: slice, factor: float) -> slice:
    """Return the pixels of an image with their centre in a span of what the model sees."""
    first, last = (math.ceil(end / factor - 0.5) for end in (span.start, span.stop))
    return slice(first, last)


def join_labels(
    labels: np.ndarray,
    parts: Iterable[Part],
    rows: slice,
    columns: slice,
    scale: Scale,
    nodata: int | None = None,
) -> None:
    """Write the classes that windows predict into `labels`, those of a part of an image.

    A pixel has the class at its centre.

    Args:
        nodata: The class of pixels without data. Default: what the model predicts there.
    """
    for part in parts:
        classes: Any = part.prediction.segmentation
        if nodata is not None:
            classes = np.where(part.valid, classes, nodata)
        place = []
        for axis, (window, wanted) in enumerate(((part.rows, rows), (part.columns, columns))):
            inside = pixels_in(window.inside, scale[axis])
            first = max(inside.start, wanted.start)
            last = max(first, min(inside.stop, wanted.stop))
            seen = np.floor((np.arange(first, last) + 0.5) * scale[axis]).astype(int)
            # Rounding may move the centre of a pixel out of its window.
            classes = classes.take(seen - window.start, axis, mode="clip")
            place.append(slice(first - wanted.start, last - wanted.start))
        labels[tuple(place)] = classes
