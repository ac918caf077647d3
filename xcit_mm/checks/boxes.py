"""Checks of the boxes, polygons and areas of a COCO json."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .findings import Finding, fail, note

__all__ = ["MAX_WRONG", "check_boxes"]

MAX_WRONG = 0.05  # fraction of the annotations of a data set that is otherwise correct
MIN_BOXES = 20  # boxes that cannot be alike by chance
SLACK = 2  # pixels by which a box may reach beyond its image, or a polygon beyond its box


class Boxes(NamedTuple):
    """Annotations as arrays.

    Attributes:
        starts: (N, 2), x and y.
        extents: (N, 2), width and height.
        ends: (N, 2), x + width and y + height.
        sizes: (N, 2), width and height of their images.
        areas: (N,).
        points: First points of the polygons, x and y. None for an annotation without a polygon.
    """

    starts: np.ndarray
    extents: np.ndarray
    ends: np.ndarray
    sizes: np.ndarray
    areas: np.ndarray
    points: list[tuple[float, float] | None]


def check_boxes(split: str, path: str, annotations: Sequence[dict], images: Sequence[dict]) -> Iterator[Finding]:
    """Check boxes against their images, polygons and areas, up to the first failure, which may cause others.

    Args:
        annotations: At least one annotation. Its image must be in `images`.
    """
    by_id = {image["id"]: (image["width"], image["height"]) for image in images}
    given = _array((annotation["bbox"] for annotation in annotations), 4)
    boxes = Boxes(
        starts=given[:, :2],
        extents=given[:, 2:],
        ends=given[:, :2] + given[:, 2:],
        sizes=_array((by_id[annotation["image_id"]] for annotation in annotations), 2),
        areas=np.array([annotation["area"] for annotation in annotations], float),
        points=[_first_point(annotation.get("segmentation")) for annotation in annotations],
    )
    for check in (_beyond_image, _in_a_corner, _polygons, _areas):
        finding = check(boxes)
        if finding:
            yield finding._replace(text=f"{split}: {finding.text} in {path}")
            if finding.level == "FAIL":
                return


def _array(rows: Iterable[Iterable[float]], columns: int) -> np.ndarray:
    """Return an array of rows. For a million rows this is several times faster than np.array."""
    return np.fromiter(itertools.chain.from_iterable(rows), float).reshape(-1, columns)


def _first_point(segmentation: Any) -> tuple[float, float] | None:
    match segmentation:
        case [[x, y, *_], *_]:
            return x, y
    return None


def _beyond_image(boxes: Boxes) -> Finding | None:
    """Report boxes beyond their image, which is right for the whole extent of objects that the border cuts off."""
    beyond = np.any((boxes.starts < -SLACK) | (boxes.ends > boxes.sizes + SLACK), axis=1)
    text = f"{beyond.sum()} of {len(beyond)} boxes reach beyond their image"
    fix = "bbox=[x, y, width, height] in pixels of the image"
    corners = (boxes.extents > boxes.starts).all() and (boxes.extents <= boxes.sizes + SLACK).all()
    halfway = (boxes.starts > boxes.sizes / 2).any(axis=1)  # boxes wider than that would all be cut off
    if len(beyond) >= MIN_BOXES and corners and halfway.mean() > MAX_WRONG:
        return fail("D411", text, f"{fix}: these are [x1, y1, x2, y2]")
    return note("D411", text, f"{fix}, if they are not of objects that the border cuts off") if beyond.any() else None


def _in_a_corner(boxes: Boxes) -> Finding | None:
    """Report boxes that all lie in the upper left, such as boxes in percent or of smaller copies of the images."""
    reach = (boxes.ends / boxes.sizes).max()
    if len(boxes.ends) < MIN_BOXES or reach > 0.5:
        return None
    text = f"all {len(boxes.ends)} boxes lie in the upper left {reach:.0%} of width and height"
    return note("D412", text, "bbox=[x, y, width, height] in pixels of the image, if they are of another size")


def _polygons(boxes: Boxes) -> Finding | None:
    drawn = [place for place, point in enumerate(boxes.points) if point]
    points = _array((boxes.points[place] or () for place in drawn), 2)
    outside = ((points < boxes.starts[drawn] - SLACK) | (points > boxes.ends[drawn] + SLACK)).any(1)
    if outside.sum() <= MAX_WRONG * len(drawn):
        return None
    return (fail if outside.mean() > 0.5 else note)(  # the box of the visible part is smaller than a whole polygon
        "D413",
        f"{outside.sum()} of {len(drawn)} polygons do not begin in their box",
        "bbox=[x, y, width, height] around the polygon, both in pixels of the image",
    )


def _areas(boxes: Boxes) -> Finding | None:
    full = boxes.extents.prod(1)
    relative = (boxes.areas <= 1) & (full > 4)
    wrong = (boxes.areas > 1.1 * full + 1) | relative
    if wrong.mean() <= MAX_WRONG:
        return None
    (width, height), area = boxes.extents[wrong][0], boxes.areas[wrong][0]
    return note(
        "D414",
        f"{wrong.sum()} of {len(full)} areas, such as {area:g} for {width:g}x{height:g}, do not fit their box",
        "area=width * height, or the area of the mask, in pixels: scores sort objects by area into small and large",
    )
