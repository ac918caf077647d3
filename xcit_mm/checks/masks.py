"""Checks of the masks of COCO jsons: what mmdet drops, pycocotools cannot read, or lies elsewhere
than its box.
"""

from array import array
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from ..utils.coco import polygon_area
from .annotations import Annotations, Rule, report
from .findings import Finding

_NO_POLYGON = "have no list of polygons [x, y, x, y, ...] of at least three points"
_SHORT_PART = "have polygons of fewer than three points beside others, which are left out"
_OTHER_SIZE = "have RLE of another size than their image"
_RLE = "have RLE, which mmdet drops under poly2mask=False"
_NO_AREA = "have polygons without area"
_ELSEWHERE = "have polygons that lie elsewhere than their bbox"
_RULES = [
    Rule("D412", _NO_POLYGON, "segmentation=[[x1, y1, x2, y2, x3, y3, ...]]", fails_at=0),
    Rule("D412", _SHORT_PART, "remove these polygons", fails_at=0.5),
    Rule("D412", _OTHER_SIZE, "encode these masks in the size of the image", fails_at=0),
    Rule("D412", _RLE, "poly2mask=True in LoadAnnotations, or polygons", fails_at=0),
    Rule("D412", _NO_AREA, "list the points along the outline, in pixels", fails_at=0.5),
    Rule("D412", _ELSEWHERE, "polygons in pixels, around the object of the bbox", fails_at=0.5),
]


def compact(entry: dict[str, Any]) -> dict[str, Any]:
    """Store the polygons of an annotation as arrays, in a quarter of the memory."""
    polygons = entry.get("segmentation")
    if isinstance(polygons, list):
        entry["segmentation"] = [_to_array(polygon) for polygon in polygons]
    return entry


def _to_array(polygon: Any) -> Any:
    try:
        return array("d", polygon) if isinstance(polygon, list) else polygon
    except TypeError:  # not of numbers, which the check reports
        return polygon


def check_masks(annotations: Annotations, poly2mask: bool) -> Iterator[Finding]:
    """Check the masks of the annotations that mmdet loads, read with `compact`.

    Args:
        poly2mask: As in the `LoadAnnotations` of the pipeline.
    """
    faults = np.full(len(annotations.entries), "", object)
    for row in np.flatnonzero(annotations.loaded).tolist():
        entry = annotations.entries[row]
        mask = entry.get("segmentation")
        if not isinstance(mask, dict):
            faults[row] = _check_polygons(mask, entry["bbox"])
        elif not _is_rle(mask):
            faults[row] = _NO_POLYGON
        elif not _has_size(mask, annotations.sizes[row].tolist()):
            faults[row] = _OTHER_SIZE
        elif not poly2mask and not annotations.crowds[row]:
            faults[row] = _RLE
    for rule in _RULES:
        yield from report(rule, annotations, faults == rule.problem)


def is_polygon(part: Any) -> bool:
    """Return whether a part of a mask, read with `compact`, is a polygon."""
    return isinstance(part, array) and len(part) >= 6 and len(part) % 2 == 0


def _is_rle(mask: dict) -> bool:
    counts = mask.get("counts")
    return isinstance(counts, (str, list)) and bool(counts)


def _has_size(mask: dict, size: Sequence[float]) -> bool:
    """Return whether an RLE has the width and height of its image."""
    counts = mask["counts"]
    is_whole = isinstance(counts, str) or sum(counts) == prod(size)
    return mask.get("size") == size[::-1] and is_whole


def _check_polygons(mask: Any, box: Sequence[float]) -> str:
    """Return the fault of polygons with a box of x, y, width and height, or ''."""
    parts = mask if isinstance(mask, list) else []
    polygons = [part for part in parts if is_polygon(part)]
    # pycocotools reads all parts as it reads the first.
    if not polygons or not is_polygon(parts[0]):
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
    shared = max(shared_width, 0) * max(shared_height, 0)
    both = (right - left) * (bottom - top) + width * height - shared
    return _ELSEWHERE if shared < 0.5 * both else ""
