"""Checks of the masks of objects: what mmdet drops, pycocotools cannot read, or lies elsewhere than
its box.
"""

from array import array
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from ..datasets.dataset import is_outline
from ..utils.coco import polygon_area
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


def check_masks(objects: CheckedObjects, poly2mask: bool = True) -> Iterator[Finding]:
    """Check the masks of the objects that mmdet loads.

    Args:
        poly2mask: As in the `LoadAnnotations` of the pipeline.
    """
    columns = objects.columns
    rows_by_fault: dict[Fault, list[int]] = {}
    for row in np.flatnonzero(objects.is_loaded).tolist():
        mask = columns.masks[row]
        if isinstance(mask, dict):
            needs_polygons = not poly2mask and not columns.is_crowd[row]
            fault = _check_rle(mask, objects.sizes[row].tolist(), needs_polygons)
        else:
            fault = _check_polygons(mask, columns.boxes[row].tolist())
        if fault:
            rows_by_fault.setdefault(fault, []).append(row)
    for fault, rows in rows_by_fault.items():
        has_fault = np.zeros(len(columns), bool)
        has_fault[rows] = True
        yield from report(fault, objects, has_fault)


def _check_rle(mask: dict, size: Sequence[float], needs_polygons: bool) -> Fault | None:
    """Return the fault of an RLE in an image of this width and height."""
    counts = mask.get("counts")
    if not counts or not isinstance(counts, (str, list)):
        return _NO_POLYGON
    is_cut_off = isinstance(counts, list) and sum(counts) != prod(size)
    if mask.get("size") != size[::-1] or is_cut_off:
        return _OTHER_SIZE
    return _RLE if needs_polygons else None


def _check_polygons(mask: Any, box: Sequence[float]) -> Fault | None:
    """Return the fault of polygons with a box of x, y, width and height."""
    parts = mask if isinstance(mask, list) else []
    polygons: list[array] = [part for part in parts if is_outline(part)]
    # pycocotools reads all parts as it reads the first.
    if not polygons or not is_outline(parts[0]):
        return _NO_POLYGON
    if len(polygons) < len(parts):
        return _SHORT_PART
    x, y, width, height = box
    if sum(map(polygon_area, polygons)) <= 0.01 * width * height:
        return _NO_AREA
    left = min(min(polygon[::2]) for polygon in polygons)
    top = min(min(polygon[1::2]) for polygon in polygons)
    right = max(max(polygon[::2]) for polygon in polygons)
    bottom = max(max(polygon[1::2]) for polygon in polygons)
    shared_width = min(right, x + width) - max(left, x)
    shared_height = min(bottom, y + height) - max(top, y)
    intersection = max(shared_width, 0) * max(shared_height, 0)
    union = (right - left) * (bottom - top) + width * height - intersection
    return _ELSEWHERE if intersection < 0.5 * union else None
