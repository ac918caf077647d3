"""Checks of the masks of objects: what mmdet drops, pycocotools cannot read, or lies elsewhere than
its box.
"""

from array import array
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from pycocotools import mask as rle

from ..datasets.old_dataset import is_outline
from ..utils.coco import to_corners
from .findings import Finding
from .objects import CheckedObjects

_POLYGONS = "segmentation=[[x1, y1, x2, y2, x3, y3, ...]] in pixels, around the object of the box"
# Of each fault the problem, its remedy, and the share of objects from which on it is a failure.
_FAULTS = {
    "unreadable": (
        "have no polygon [x, y, x, y, ...] of three points, or RLE of another size than the image",
        f"{_POLYGONS}, or RLE in the size of the image",
        0,
    ),
    "RLE": (
        "have RLE, which mmdet drops under poly2mask=False",
        "poly2mask=True in LoadAnnotations, or polygons",
        0,
    ),
    "doubtful": (
        "have masks without area, of fewer than three points, or elsewhere than their box",
        _POLYGONS,
        0.5,
    ),
}
_CHUNK = 10_000  # masks whose points are in memory at once


def check_masks(objects: CheckedObjects) -> Iterator[Finding]:
    """Check the masks of the objects that mmdet loads, if masks are trained or scored."""
    if not objects.needs_masks:
        return
    masks: list[Any] = objects.columns.masks
    loaded = np.flatnonzero(objects.is_loaded)
    faults = np.full(len(masks), "", object)
    for start in range(0, len(loaded), _CHUNK):
        rows = loaded[start : start + _CHUNK]
        faults[rows] = [_find_fault(objects, row) for row in rows.tolist()]
        readable = rows[faults[rows] == ""]
        for mask_type, lie_in_boxes in ((list, _lie_in_boxes), (dict, _lie_in_boxes_by_rle)):
            rows = readable[[isinstance(masks[row], mask_type) for row in readable]]
            if rows.size:
                is_inside = lie_in_boxes([masks[row] for row in rows], objects.corners[rows])
                faults[rows[~is_inside]] = "doubtful"
    for fault, (problem, fix, fails_at) in _FAULTS.items():
        yield from objects.report(faults == fault, "D412", problem, fix, fails_at)


def _find_fault(objects: CheckedObjects, row: int) -> str:
    """Return the fault, of `_FAULTS`, that a mask has whatever its box is, or ''."""
    mask: Any = objects.columns.masks[row]
    if isinstance(mask, dict):
        size = objects.image_sizes[row].tolist()
        counts = mask.get("counts")
        is_complete = isinstance(counts, str) or (
            isinstance(counts, list)
            and all(isinstance(count, int | float) and count >= 0 for count in counts)
            and sum(counts) == prod(size)
        )
        if not counts or not is_complete or mask.get("size") != size[::-1]:
            return "unreadable"
        return "" if objects.poly2mask or objects.columns.is_crowd[row] else "RLE"
    are_outlines = list(map(is_outline, mask)) if isinstance(mask, list) else []
    if not are_outlines or not are_outlines[0]:  # pycocotools reads all parts as it reads the first
        return "unreadable"
    return "" if all(are_outlines) else "doubtful"


def _lie_in_boxes(masks: Sequence[list[array]], corners: np.ndarray) -> np.ndarray:
    """Return which masks of polygons have an area and an extent that overlaps their box (n,)."""
    polygons = [polygon for mask in masks for polygon in mask]
    points = np.frombuffer(b"".join(polygons)).reshape(-1, 2)
    ends = np.cumsum([len(polygon) // 2 for polygon in polygons])
    starts = np.concatenate([[0], ends[:-1]])
    following = np.arange(1, len(points) + 1)
    following[ends - 1] = starts  # the outline is closed
    x, y = points.T
    doubled_areas = np.add.reduceat(x * y[following] - y * x[following], starts)  # of polygons
    first = np.cumsum([0, *map(len, masks[:-1])])  # polygon of each mask
    areas = np.add.reduceat(np.abs(doubled_areas), first) / 2
    lowest = np.minimum.reduceat(points, starts[first])
    highest = np.maximum.reduceat(points, starts[first])
    return _are_boxes_filled(areas, np.hstack([lowest, highest]), corners)


def _lie_in_boxes_by_rle(masks: Sequence[dict], corners: np.ndarray) -> np.ndarray:
    """Return whether RLE has an area, at the place of its box (n,)."""
    codes = [
        rle.frPyObjects(mask, *map(int, mask["size"])) if isinstance(mask["counts"], list) else mask
        for mask in masks
    ]
    return _are_boxes_filled(rle.area(codes), to_corners(rle.toBbox(codes)), corners)


def _are_boxes_filled(areas: np.ndarray, around: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Return whether masks, of areas (n,) and with these boxes around them, fill their own boxes
    (n, 4) at least in part (n,).
    """
    lowest = around[:, :2]
    highest = around[:, 2:]
    boxes = (corners[:, 2:] - corners[:, :2]).prod(axis=1)
    shared = np.minimum(highest, corners[:, 2:]) - np.maximum(lowest, corners[:, :2])
    intersections = shared.clip(0).prod(axis=1)
    unions = (highest - lowest).prod(axis=1) + boxes - intersections
    return (areas > 0.01 * boxes) & (intersections >= 0.5 * unions)  # neither holds for NaN
