"""Checks of the boxes of COCO jsons, and which annotations mmdet drops without a message."""

import json
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from ..utils.coco import Coco, to_corners
from ..utils.errors import preview
from .findings import Finding, fail, note

MIN_BOXES = 20  # boxes that cannot be alike by chance
SLACK = 2  # pixels by which a box may reach beyond its image
MAX_SCORED = 100  # objects of an image that COCO's mAP counts


class Boxes:
    """The annotations of a COCO json as columns of n rows.

    Attributes:
        images: Places of their images in the list of the json, -1 for an unknown image_id.
        labels: Numbers of their classes, -1 for another category, -2 for an unknown one.
        sizes: Width and height of their images (n, 2).
        corners: Left, top, right and bottom (n, 4).
        dropped: Rows that mmdet drops, by the reason.
    """

    def __init__(self, path: str, coco: Coco, classes: Sequence[str]) -> None:
        self.path = path
        self.coco = coco
        self.annotations = annotations = coco["annotations"]
        places = {image["id"]: place for place, image in enumerate(coco["images"])}
        numbers = {name: number for number, name in enumerate(classes)}
        labels = {each["id"]: numbers.get(each["name"], -1) for each in coco["categories"]}
        self.images = self._column(places.get(each["image_id"], -1) for each in annotations)
        self.labels = self._column(labels.get(each["category_id"], -2) for each in annotations)
        self.crowds = self._column(bool(each["iscrowd"]) for each in annotations).astype(bool)
        sizes = [(image["width"], image["height"]) for image in coco["images"]]
        self.sizes = np.array(sizes, float)[self.images]
        self.corners = to_corners([each["bbox"] for each in annotations])
        self.dropped = self._find_dropped()

    def _column(self, values: Iterator[int]) -> np.ndarray:
        return np.fromiter(values, int, len(self.annotations))

    def _find_dropped(self) -> dict[str, np.ndarray]:
        areas = np.array([each["area"] for each in self.annotations], float)
        ignored = self._column(bool(each.get("ignore")) for each in self.annotations)
        extents = self.corners[:, 2:] - self.corners[:, :2]
        inside = np.minimum(self.corners[:, 2:], self.sizes) - np.maximum(self.corners[:, :2], 0)
        return {
            "with an unknown image_id or category_id": (self.images < 0) | (self.labels == -2),
            "with ignore=1": ignored.astype(bool),
            "outside their image": (inside <= 0).any(axis=1),
            "without area or thinner than a pixel": (areas <= 0) | (extents < 1).any(axis=1),
        }

    @cached_property
    def kept(self) -> np.ndarray:
        """Whether mmdet loads a row (n,)."""
        return (self.labels >= 0) & ~np.any(list(self.dropped.values()), axis=0)

    def named(self, rows: np.ndarray) -> str:
        """Name annotations by the numbers of their rows."""
        names = []
        for row in rows:
            annotation = self.annotations[row]
            names.append(f"id {annotation['id']} (image {annotation['image_id']})")
        return preview(names)


def check_boxes(boxes: Boxes, classes: Sequence[str], is_scored: bool) -> Iterator[Finding]:
    """Check the annotations of a json; those of a validation or test are scored."""
    yield from _check_dropped(boxes, is_scored)
    yield from _check_crowds(boxes)
    yield from _check_classes(boxes, classes)
    if is_scored:
        yield from _check_numbers(boxes)
    yield from _check_places(boxes)


def _check_dropped(boxes: Boxes, is_scored: bool) -> Iterator[Finding]:
    wanted = boxes.labels != -1
    lost = wanted & ~boxes.kept
    kept = boxes.kept.sum()
    if kept and not lost.any():
        return
    if not wanted.any():
        yield fail("D408", f"{boxes.path} has no annotations of the classes", "annotate objects")
        return
    problem = f"mmdet drops {lost.sum()} of {wanted.sum()} annotations of {boxes.path}"
    reasons = []
    for reason, rows in boxes.dropped.items():
        if (rows & wanted).any():
            reasons.append(f"{(rows & wanted).sum()} {reason}")
    details = f"{', '.join(reasons)}, such as {boxes.named(np.flatnonzero(lost))}"
    if is_scored:
        details = f"{details}; the score counts those with image and category as missed"
    is_unknown = (boxes.images < 0) | (boxes.labels == -2)
    level = fail if is_unknown.any() or kept <= wanted.sum() / 2 else note
    yield level("D408", f"{problem}: {details}", "correct these annotations, or remove them")


def _check_crowds(boxes: Boxes) -> Iterator[Finding]:
    crowds = boxes.crowds.sum()
    is_cocos_own = '"COCO' in json.dumps(boxes.coco.get("info"))  # whose crowds are meant
    if crowds and not is_cocos_own:
        problem = f"{crowds} of {len(boxes.crowds)} annotations of {boxes.path} have iscrowd=1"
        tool = "which CVAT exports as crowds if they are drawn by brush"
        fix = f"iscrowd=0 for single objects, {tool}"
        level = fail if boxes.crowds.all() else note
        yield level("D409", f"{problem}, and mmdet does not train on them", fix)


def _check_classes(boxes: Boxes, classes: Sequence[str]) -> Iterator[Finding]:
    labels = set(boxes.labels[boxes.kept & ~boxes.crowds].tolist())
    missing = [name for label, name in enumerate(classes) if label not in labels]
    if labels and missing:
        problem = f"{boxes.path} has no objects of {preview(missing)}"
        yield note("D410", problem, "annotate objects, or remove the classes")


def _check_numbers(boxes: Boxes) -> Iterator[Finding]:
    """Check that COCO's mAP counts all objects of an image."""
    counts = np.bincount(boxes.images[boxes.images >= 0], minlength=1)
    if counts.max() > MAX_SCORED:
        problem = f"an image of {boxes.path} has {counts.max()} objects"
        limit = f"COCO's mAP counts the {MAX_SCORED} best predictions of an image"
        fix = "score as in docs/prediction.md, COCO; proposal_nums does not raise mAP"
        yield note("D419", f"{problem}, {limit}", fix)


def _check_places(boxes: Boxes) -> Iterator[Finding]:
    """Check that boxes are in pixels of their images."""
    rows = np.flatnonzero(boxes.kept & ~boxes.crowds)
    if not rows.size:
        return
    sizes = boxes.sizes[rows]
    starts = boxes.corners[rows, :2]
    ends = boxes.corners[rows, 2:]
    beyond = ((starts < -SLACK) | (ends > sizes + SLACK)).any(axis=1)
    fix = "bbox=[x, y, width, height] in pixels"
    if beyond.any():
        named = boxes.named(rows[beyond])
        count = f"{beyond.sum()} of {len(rows)} boxes of {boxes.path}"
        problem = f"{count} reach beyond their image: {named}"
        if _are_corners(starts, ends, sizes):
            yield fail("D411", problem, f"{fix}: these are [x1, y1, x2, y2]")
        else:
            border = "if the border of the image does not cut off objects"
            yield note("D411", problem, f"{fix}, {border}")
        return
    part = (ends / sizes).max()
    if part <= 0.5 and len(rows) >= MIN_BOXES:
        place = f"the upper left {part:.0%} of width and height"
        problem = f"all {len(rows)} boxes of {boxes.path} lie in {place}"
        fix = f"{fix} of the image, if they are of a smaller copy of the images"
        yield note("D411", problem, fix)


def _are_corners(starts: np.ndarray, ends: np.ndarray, sizes: np.ndarray) -> bool:
    """Return whether boxes would be inside their images if their values were corners."""
    extents = ends - starts
    fit = (extents > starts).all() and (extents <= sizes + SLACK).all()
    far = (starts > sizes / 2).any(axis=1)  # as a width, all of these would be cut off
    return len(starts) >= MIN_BOXES and fit and far.mean() > 0.05
