"""Checks of the boxes, polygons and areas of a COCO json."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .findings import Finding, fail, note

MAX_WRONG = 0.05  # fraction of the annotations of a data set that is otherwise correct
MIN_BOXES = 20  # boxes that cannot be alike by chance
SLACK = 2  # pixels by which a box may reach beyond its image, or a polygon beyond its box


def check_boxes(path: str, annotations: Sequence[dict], images: Sequence[dict]) -> Iterator[Finding]:
    """Check boxes against their images, polygons and areas, up to the first failure, which may cause others."""
    by_id = {image["id"]: (image["width"], image["height"]) for image in images}
    sizes = np.array([by_id[annotation["image_id"]] for annotation in annotations], float)
    boxes = np.array([annotation["bbox"] for annotation in annotations], float)
    starts, extents = boxes[:, :2], boxes[:, 2:]
    ends = starts + extents
    points = [_first_point(annotation.get("segmentation")) for annotation in annotations]
    areas = np.array([annotation["area"] for annotation in annotations], float)
    findings = (
        _beyond_image(starts, extents, ends, sizes),
        _in_a_corner(ends, sizes),
        _polygons(points, starts, ends),
        _areas(areas, extents),
    )
    for finding in filter(None, findings):
        yield finding._replace(text=f"{finding.text} in {path}")
        if finding.level == "FAIL":
            return


def _first_point(segmentation: Any) -> tuple[float, float] | None:
    """Return x and y of a polygon's first point, or None for an annotation without a polygon."""
    match segmentation:
        case [[x, y, *_], *_]:
            return x, y
    return None


def _beyond_image(starts: np.ndarray, extents: np.ndarray, ends: np.ndarray, sizes: np.ndarray) -> Finding | None:
    """Report boxes beyond their image, which is right for the whole extent of objects that the border cuts off."""
    beyond = np.any((starts < -SLACK) | (ends > sizes + SLACK), axis=1)
    text = f"{beyond.sum()} of {len(beyond)} boxes reach beyond their image"
    fix = "bbox=[x, y, width, height] in pixels of the image"
    corners = (extents > starts).all() and (extents <= sizes + SLACK).all()
    halfway = (starts > sizes / 2).any(axis=1)  # boxes wider than that would all be cut off
    if len(beyond) >= MIN_BOXES and corners and halfway.mean() > MAX_WRONG:
        return fail("D411", text, f"{fix}: these are [x1, y1, x2, y2]")
    return note("D411", text, f"{fix}, if they are not of objects that the border cuts off") if beyond.any() else None


def _in_a_corner(ends: np.ndarray, sizes: np.ndarray) -> Finding | None:
    """Report boxes that all lie in the upper left, such as boxes in percent or of smaller copies of the images."""
    reach = (ends / sizes).max()
    if len(ends) < MIN_BOXES or reach > 0.5:
        return None
    text = f"all {len(ends)} boxes lie in the upper left {reach:.0%} of width and height"
    return note("D412", text, "bbox=[x, y, width, height] in pixels of the image, if they are of another size")


def _polygons(points: list[tuple[float, float] | None], starts: np.ndarray, ends: np.ndarray) -> Finding | None:
    drawn = [place for place, point in enumerate(points) if point]
    first = np.array([points[place] for place in drawn], float).reshape(-1, 2)
    outside = ((first < starts[drawn] - SLACK) | (first > ends[drawn] + SLACK)).any(axis=1)
    if outside.sum() <= MAX_WRONG * len(drawn):
        return None
    text = f"{outside.sum()} of {len(drawn)} polygons do not begin in their box"
    level = fail if outside.mean() > 0.5 else note  # the box of the visible part is smaller than a whole polygon
    return level("D413", text, "bbox=[x, y, width, height] around the polygon, both in pixels of the image")


def _areas(areas: np.ndarray, extents: np.ndarray) -> Finding | None:
    full = extents.prod(axis=1)
    relative = (areas <= 1) & (full > 4)
    wrong = (areas > 1.1 * full + 1) | relative
    if wrong.mean() <= MAX_WRONG:
        return None
    (width, height), area = extents[wrong][0], areas[wrong][0]
    return note(
        "D414",
        f"{wrong.sum()} of {len(full)} areas, such as {area:g} for {width:g}x{height:g}, do not fit their box",
        "area=width * height, or the area of the mask, in pixels: scores sort objects by area into small and large",
    )
