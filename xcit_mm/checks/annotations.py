"""The annotations of a COCO json as columns, and the faults that they may have."""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..utils.coco import Coco, to_corners
from ..utils.errors import preview
from .findings import Finding, fail, note

_NO_CATEGORY = -2  # label of a category that the json does not list
_BACKGROUND = -1  # label of a category that is not a class
_MANY = 20  # boxes that cannot be alike by chance
_SLACK = 2  # pixels by which a box may reach beyond its image
_MIN_FAR = 0.05  # share of boxes that start too far right or down to be as large as they state
_MAX_SCORED = 100  # objects of an image that COCO's mAP counts


class Annotations:
    """The annotations of a COCO json as columns of n rows.

    Attributes:
        images: Indices of their images in the list of the json, -1 for an unknown image_id.
        labels: Indices of their classes, negative for other and unknown categories.
        sizes: Width and height of their images (n, 2).
        corners: Left, top, right and bottom (n, 4).
        is_crowd: Whether iscrowd is set.
        is_unknown: Whether image or category is unknown.
        is_ignored: Whether `ignore` is set.
        is_thin: Whether the object has no area, or its box less than a pixel.
        is_outside: Whether the box is outside its image.
        is_loaded: Whether mmdet loads the annotation.
    """

    def __init__(self, path: str, coco: Coco, classes: Sequence[str]) -> None:
        self.path = path
        self.coco = coco
        indices = {image["id"]: index for index, image in enumerate(coco["images"])}
        numbers = {name: number for number, name in enumerate(classes)}
        labels = {
            category["id"]: numbers.get(category["name"], _BACKGROUND)
            for category in coco["categories"]
        }
        entries = coco["annotations"]
        self.entries = entries
        self.images = np.array([indices.get(entry["image_id"], -1) for entry in entries], int)
        self.labels = np.array(
            [labels.get(entry["category_id"], _NO_CATEGORY) for entry in entries], int
        )
        sizes = [(image["width"], image["height"]) for image in coco["images"]]
        self.sizes = np.array(sizes, float)[self.images]
        self.corners = to_corners([entry["bbox"] for entry in entries])
        areas = np.array([entry["area"] for entry in entries], float)
        starts = self.corners[:, :2]
        ends = self.corners[:, 2:]
        overlaps = np.minimum(ends, self.sizes) - np.maximum(starts, 0)
        self.is_crowd = np.array([bool(entry["iscrowd"]) for entry in entries], bool)
        self.is_unknown = (self.images < 0) | (self.labels == _NO_CATEGORY)
        self.is_ignored = np.array([bool(entry.get("ignore")) for entry in entries], bool)
        self.is_thin = (areas <= 0) | (ends - starts < 1).any(axis=1)
        self.is_outside = (overlaps <= 0).any(axis=1) & ~self.is_thin
        is_dropped = self.is_unknown | self.is_ignored | self.is_thin | self.is_outside
        self.is_loaded = (self.labels >= 0) & ~is_dropped

    def examples(self, rows: np.ndarray) -> str:
        """Name the first annotations by id and image, given the numbers of their rows."""
        names = []
        for row in rows.tolist():
            entry = self.entries[row]
            image = entry["image_id"]
            if self.images[row] >= 0:
                image = self.coco["images"][self.images[row]]["file_name"]
            names.append(f"id {entry['id']} (image {image})")
        return preview(names)


class Fault(NamedTuple):
    """A fault that annotations may have.

    Attributes:
        fails_at: The fault is a failure if at least this share of the annotations has it.
    """

    code: str
    problem: str
    fix: str
    fails_at: float


_CORRECT = "correct or remove them: mmdet drops them, and a score counts them as missed"
_PIXELS = "bbox=[x, y, width, height] in pixels"
_SINGLE = (
    "iscrowd=0 for single objects that CVAT exports as crowds. Objects that the edge of a raster's "
    "tile cuts are right"
)
_BORDER = f"{_PIXELS}, if the border of the image does not cut off objects"
_NEVER = 2  # above every share

_UNKNOWN = Fault("D408", "have an unknown image_id or category_id", _CORRECT, fails_at=0)
_IGNORED = Fault("D408", "have ignore=1", _CORRECT, fails_at=0.5)
_OUTSIDE = Fault("D408", "lie outside their image", _CORRECT, fails_at=0.5)
_THIN = Fault("D408", "have no area, or less than a pixel", _CORRECT, fails_at=0.5)
_CROWDS = Fault("D409", "have iscrowd=1: mmdet does not train them", _SINGLE, fails_at=1)
_CORNERS = Fault("D411", "are [x1, y1, x2, y2]", _PIXELS, fails_at=0)
_CUT_OFF = Fault("D411", "reach beyond their image", _BORDER, fails_at=_NEVER)


def report(fault: Fault, annotations: Annotations, has_fault: np.ndarray) -> Iterator[Finding]:
    """Report annotations with a fault (n,), unless their categories are not classes."""
    is_counted = annotations.labels != _BACKGROUND
    rows = np.flatnonzero(has_fault & is_counted)
    if rows.size:
        number = is_counted.sum()
        level = fail if rows.size >= fault.fails_at * number else note
        count = f"{rows.size} of {number} annotations of {annotations.path}"
        examples = annotations.examples(rows)
        yield level(fault.code, f"{count} {fault.problem}: {examples}", fault.fix)


def check_boxes(annotations: Annotations, classes: Sequence[str]) -> Iterator[Finding]:
    """Check what mmdet drops, where the boxes are, and that each class has objects."""
    path = annotations.path
    if (annotations.labels == _BACKGROUND).all():
        yield fail("D408", f"{path} has no annotations of the classes", "annotate objects")
        return
    yield from report(_UNKNOWN, annotations, annotations.is_unknown)
    yield from report(_IGNORED, annotations, annotations.is_ignored)
    yield from report(_OUTSIDE, annotations, annotations.is_outside)
    yield from report(_THIN, annotations, annotations.is_thin)
    if '"COCO' not in json.dumps(annotations.coco.get("info")):  # COCO's own crowds are meant
        yield from report(_CROWDS, annotations, annotations.is_crowd)
    is_trained = annotations.is_loaded & ~annotations.is_crowd
    yield from _check_borders(annotations, is_trained)
    labels = set(annotations.labels[is_trained].tolist())
    missing = [name for label, name in enumerate(classes) if label not in labels]
    if labels and missing:
        problem = f"{path} has no objects of {preview(missing)}"
        yield note("D410", problem, "annotate objects, or remove the classes")


def _check_borders(annotations: Annotations, is_trained: np.ndarray) -> Iterator[Finding]:
    """Check that boxes are inside their images. If some are not, the reason may be that `bbox`
    holds two corners, x1, y1, x2, y2.
    """
    starts = annotations.corners[is_trained, :2]
    ends = annotations.corners[is_trained, 2:]
    last_values = ends - starts  # of bbox: width and height, or the second corner
    sizes = annotations.sizes[is_trained]
    are_valid_ends = (last_values > starts).all() and (last_values <= sizes + _SLACK).all()
    # If a box starts beyond half of its image, a width or height above x or y reaches beyond it.
    is_far = (starts > sizes / 2).any(axis=1)
    are_corners = len(starts) >= _MANY and are_valid_ends and is_far.mean() > _MIN_FAR
    is_beyond = is_trained.copy()
    is_beyond[is_trained] = ((starts < -_SLACK) | (ends > sizes + _SLACK)).any(axis=1)
    yield from report(_CORNERS if are_corners else _CUT_OFF, annotations, is_beyond)


def check_counts(annotations: Annotations) -> Iterator[Finding]:
    """Check that COCO's mAP counts all objects of an image."""
    counts = np.bincount(annotations.images[annotations.images >= 0], minlength=1)
    if counts.max() > _MAX_SCORED:
        problem = f"an image of {annotations.path} has {counts.max()} objects"
        limit = f"COCO's mAP counts the {_MAX_SCORED} best predictions of an image"
        fix = "score as in docs/prediction.md, COCO; proposal_nums does not raise mAP"
        yield note("D419", f"{problem}, {limit}", fix)
