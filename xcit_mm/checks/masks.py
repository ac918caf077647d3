"""Checks of the masks of objects: what mmdet drops, pycocotools cannot read, or lies elsewhere than
its box.
"""

from array import array
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from ..datasets.dataset import is_outline
from .findings import Finding
from .objects import CheckedObjects, Fault, report

_NO_POLYGON = Fault(
    "D412",
    "have no list of polygons [x, y, x, y, ...] of at least three points",
    "segmentation=[[x1, y1, x2, y2, x3, y3, ...]]",
    fails_at=0,
)
_SHORT_PART = Fault(
    "D412",
    "have polygons of fewer than three points beside others, which are left out",
    "remove these polygons",
    fails_at=0.5,
)
_OTHER_SIZE = Fault(
    "D412",
    "have RLE of another size than their image",
    "encode these masks in the size of the image",
    fails_at=0,
)
_RLE = Fault(
    "D412",
    "have RLE, which mmdet drops under poly2mask=False",
    "poly2mask=True in LoadAnnotations, or polygons",
    fails_at=0,
)
_NO_AREA = Fault(
    "D412",
    "have polygons without area",
    "list the points along the outline, in pixels",
    fails_at=0.5,
)
_ELSEWHERE = Fault(
    "D412",
    "have polygons that lie elsewhere than their box",
    "polygons in pixels, around the object of the box",
    fails_at=0.5,
)
_CHUNK = 10_000  # masks whose points are in memory at once


def check_masks(objects: CheckedObjects) -> Iterator[Finding]:
    """Check the masks of the objects that mmdet loads, if masks are trained or scored."""
    if not objects.needs_masks:
        return
    columns = objects.columns
    loaded = np.flatnonzero(objects.is_loaded)
    faults = np.full(len(columns), None, object)
    for start in range(0, len(loaded), _CHUNK):
        rows = loaded[start : start + _CHUNK]
        for row in rows.tolist():
            mask = columns.masks[row]
            if isinstance(mask, dict):
                needs_polygons = not objects.poly2mask and not columns.is_crowd[row]
                faults[row] = _check_rle(mask, objects.sizes[row].tolist(), needs_polygons)
            else:
                faults[row] = _check_parts(mask)
        is_polygon = [faults[row] is None and isinstance(columns.masks[row], list) for row in rows]
        rows = rows[is_polygon]
        if rows.size:
            masks = [columns.masks[row] for row in rows]
            faults[rows] = _compare_with_boxes(masks, objects.corners[rows])
    for fault in dict.fromkeys(faults[loaded]):
        if fault:
            yield from report(fault, objects, np.array([other is fault for other in faults]))


def _check_rle(mask: dict, size: Sequence[float], needs_polygons: bool) -> Fault | None:
    """Return the fault of an RLE in an image of this width and height."""
    counts = mask.get("counts")
    if not counts or not isinstance(counts, (str, list)):
        return _NO_POLYGON
    is_cut_off = isinstance(counts, list) and sum(counts) != prod(size)
    if mask.get("size") != size[::-1] or is_cut_off:
        return _OTHER_SIZE
    return _RLE if needs_polygons else None


def _check_parts(mask: Any) -> Fault | None:
    """Return the fault of polygons of which one has too few points."""
    parts = mask if isinstance(mask, list) else []
    are_outlines = [is_outline(part) for part in parts]
    if not parts or not are_outlines[0]:  # pycocotools reads all parts as it reads the first
        return _NO_POLYGON
    return None if all(are_outlines) else _SHORT_PART


def _compare_with_boxes(masks: Sequence[list[array]], corners: np.ndarray) -> np.ndarray:
    """Return the faults (n,) of n masks of polygons whose area or place is not that of the box."""
    polygons = [polygon for mask in masks for polygon in mask]
    points = np.concatenate([np.frombuffer(polygon) for polygon in polygons]).reshape(-1, 2)
    ends = np.cumsum([len(polygon) // 2 for polygon in polygons])
    starts = np.concatenate([[0], ends[:-1]])
    following = np.arange(1, len(points) + 1)
    following[ends - 1] = starts  # the outline is closed
    x, y = points.T
    doubled = np.add.reduceat(x * y[following] - y * x[following], starts)
    first = np.cumsum([0, *map(len, masks[:-1])])  # polygon of each mask
    areas = np.add.reduceat(np.abs(doubled), first) / 2
    lowest = np.minimum.reduceat(points, starts[first])
    highest = np.maximum.reduceat(points, starts[first])
    boxes = (corners[:, 2:] - corners[:, :2]).prod(axis=1)
    shared = np.minimum(highest, corners[:, 2:]) - np.maximum(lowest, corners[:, :2])
    intersections = shared.clip(0).prod(axis=1)
    unions = (highest - lowest).prod(axis=1) + boxes - intersections
    faults = np.full(len(masks), None, object)
    # A fault is a tuple, which numpy would take for a row.
    for row in np.flatnonzero(intersections < 0.5 * unions):
        faults[row] = _ELSEWHERE
    for row in np.flatnonzero(areas <= 0.01 * boxes):
        faults[row] = _NO_AREA
    return faults
