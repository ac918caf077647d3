"""Checks of the masks of COCO jsons: what mmdet drops, pycocotools cannot read, or lies elsewhere
than its box.
"""

from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from .boxes import Boxes
from .findings import Finding, fail, note

_CHUNK = 50_000  # polygons whose points are in memory at a time
_NO_POLYGON = "are no lists of polygons [x, y, x, y, ...] of at least three points"
_SHORT_PART = "have polygons of fewer than three points beside others, which are left out"
_OTHER_SIZE = "are RLE of another size than their image"
_RLE = "are RLE, which mmdet drops under poly2mask=False"
_NO_AREA = "have polygons without area"
_ELSEWHERE = "lie elsewhere than their bbox"
_FIXES = {
    _NO_POLYGON: "segmentation=[[x1, y1, x2, y2, x3, y3, ...]], or remove these annotations",
    _SHORT_PART: "remove these polygons",
    _OTHER_SIZE: "size=[height, width] of the image; encode these masks again",
    _RLE: "poly2mask=True in LoadAnnotations, or polygons",
    _NO_AREA: "list the points along the outline, in pixels",
    _ELSEWHERE: "polygons in pixels of the image, around the object of the bbox",
}


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


def check_masks(boxes: Boxes, poly2mask: bool) -> Iterator[Finding]:
    """Check the masks of the annotations that mmdet loads, read with `compact`.

    Args:
        poly2mask: As in the `LoadAnnotations` of the pipeline.
    """
    faults: dict[str, list[int]] = {problem: [] for problem in _FIXES}
    polygons: list[array] = []
    owners: list[int] = []
    rows = np.flatnonzero(boxes.kept)
    for row in rows.tolist():
        mask = boxes.annotations[row].get("segmentation")
        if isinstance(mask, dict):
            fault = _check_rle(mask, boxes.sizes[row])
            if not fault and not poly2mask and not boxes.crowds[row]:
                fault = _RLE
        else:
            parts = mask if isinstance(mask, list) else []
            valid = [part for part in parts if is_polygon(part)]
            polygons += valid
            owners += [row] * len(valid)
            # pycocotools reads all parts as it reads the first.
            is_read = bool(valid) and is_polygon(parts[0])
            fault = "" if is_read else _NO_POLYGON
            if is_read and len(valid) < len(parts):
                fault = _SHORT_PART
        if fault:
            faults[fault].append(row)
    areas, corners = _measure(polygons, owners, len(boxes.annotations))
    drawn = np.unique(np.array(owners, int))
    extents = boxes.corners[drawn, 2:] - boxes.corners[drawn, :2]
    has_area = areas[drawn] > 0.01 * extents.prod(axis=1)
    faults[_NO_AREA] = drawn[~has_area].tolist()
    agree = _overlap(corners[drawn], boxes.corners[drawn]) >= 0.5
    faults[_ELSEWHERE] = drawn[has_area & ~agree].tolist()
    for problem, faulty in faults.items():
        if faulty:
            is_doubtful = problem in (_SHORT_PART, _NO_AREA, _ELSEWHERE)
            level = note if is_doubtful and len(faulty) <= len(rows) / 2 else fail
            count = f"{len(faulty)} of {len(rows)} masks of {boxes.path}"
            named = boxes.named(np.array(faulty))
            yield level("D412", f"{count} {problem}: {named}", _FIXES[problem])


def is_polygon(part: Any) -> bool:
    """Return whether a part of a mask, read with `compact`, is a polygon."""
    return isinstance(part, array) and len(part) >= 6 and len(part) % 2 == 0


def _check_rle(mask: dict, size: np.ndarray) -> str:
    """Return what is wrong with an RLE in an image of a width and height, or ''."""
    counts = mask.get("counts")
    if not isinstance(counts, (str, list)) or not counts:
        return _NO_POLYGON
    height_and_width = size[::-1].tolist()
    is_whole = isinstance(counts, str) or sum(counts) == np.prod(size)
    return "" if mask.get("size") == height_and_width and is_whole else _OTHER_SIZE


def _measure(
    polygons: list[array], owners: list[int], number: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the areas (n,) and corners (n, 4) of `number` masks, of which polygons are parts."""
    areas = np.zeros(number)
    corners = np.full((number, 4), (np.inf, np.inf, -np.inf, -np.inf))
    rest = iter(zip(polygons, owners, strict=True))
    while chunk := list(islice(rest, _CHUNK)):
        rows = np.array([row for _, row in chunk])
        points = np.frombuffer(b"".join(part for part, _ in chunk)).reshape(-1, 2)
        lengths = np.array([len(part) // 2 for part, _ in chunk])
        starts = np.cumsum(lengths) - lengths
        following = np.roll(points, -1, axis=0)
        following[starts + lengths - 1] = points[starts]
        cross = points[:, 0] * following[:, 1] - points[:, 1] * following[:, 0]
        np.add.at(areas, rows, np.abs(np.add.reduceat(cross, starts)) / 2)
        np.minimum.at(corners[:, :2], rows, np.minimum.reduceat(points, starts))
        np.maximum.at(corners[:, 2:], rows, np.maximum.reduceat(points, starts))
    return areas, corners


def _overlap(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return intersection over union of boxes (n, 4) with boxes (n, 4)."""
    starts = np.maximum(ours[:, :2], theirs[:, :2])
    ends = np.minimum(ours[:, 2:], theirs[:, 2:])
    intersection = np.clip(ends - starts, 0, None).prod(axis=1)
    area = (ours[:, 2:] - ours[:, :2]).prod(axis=1)
    other = (theirs[:, 2:] - theirs[:, :2]).prod(axis=1)
    return intersection / (area + other - intersection)
