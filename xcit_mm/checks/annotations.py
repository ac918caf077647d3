"""The annotations of a COCO json as columns, and a table of the rules that each should keep."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..utils.coco import Coco, to_corners
from ..utils.errors import preview
from .findings import Finding, fail, note

UNKNOWN = -2  # label of a category that the json does not list
OTHER = -1  # label of a category that is not a class
_MANY = 20  # boxes that cannot be alike by chance
_SLACK = 2  # pixels by which a box may reach beyond its image
_MAX_SCORED = 100  # objects of an image that COCO's mAP counts


class Annotations:
    """The annotations of a COCO json as columns of n rows.

    Attributes:
        images: Places of their images in the list of the json, -1 for an unknown image_id.
        labels: Numbers of their classes, or OTHER or UNKNOWN.
        crowds: Whether iscrowd is set.
        sizes: Width and height of their images (n, 2).
        corners: Left, top, right and bottom (n, 4).
    """

    def __init__(self, path: str, coco: Coco, classes: Sequence[str]) -> None:
        self.path = path
        self.coco = coco
        self.entries = coco["annotations"]
        places = {image["id"]: place for place, image in enumerate(coco["images"])}
        numbers = {name: number for number, name in enumerate(classes)}
        labels = {entry["id"]: numbers.get(entry["name"], OTHER) for entry in coco["categories"]}
        self.images = self._column(places.get(entry["image_id"], -1) for entry in self.entries)
        self.labels = self._column(
            labels.get(entry["category_id"], UNKNOWN) for entry in self.entries
        )
        self.crowds = self._column(bool(entry["iscrowd"]) for entry in self.entries) > 0
        sizes = [(image["width"], image["height"]) for image in coco["images"]]
        self.sizes = np.array(sizes, float)[self.images]
        self.corners = to_corners([entry["bbox"] for entry in self.entries])

    def _column(self, values: Iterable[int]) -> np.ndarray:
        return np.fromiter(values, int, len(self.entries))

    @property
    def wanted(self) -> np.ndarray:
        """Whether a row is of a class, or may be (n,)."""
        return self.labels != OTHER

    @cached_property
    def loaded(self) -> np.ndarray:
        """Whether mmdet loads a row (n,)."""
        return (self.labels >= 0) & ~np.any([find(self) for find in _DROPPED], axis=0)

    @property
    def trained(self) -> np.ndarray:
        """Whether mmdet trains on a row (n,)."""
        return self.loaded & ~self.crowds

    def named(self, rows: np.ndarray) -> str:
        """Name annotations by the numbers of their rows."""
        names = []
        for row in rows.tolist():
            entry = self.entries[row]
            image = entry["image_id"]
            if self.images[row] >= 0:
                image = self.coco["images"][self.images[row]]["file_name"]
            names.append(f"id {entry['id']} (image {image})")
        return preview(names)


class Rule(NamedTuple):
    """A fault that annotations may have.

    Attributes:
        fails_at: Share of the annotations from which on the fault is a failure: 0 for any.
    """

    code: str
    problem: str
    fix: str
    fails_at: float


def report(rule: Rule, annotations: Annotations, has_fault: np.ndarray) -> Iterator[Finding]:
    """Return a finding if rows of the classes have a fault (n,)."""
    rows = np.flatnonzero(has_fault & annotations.wanted)
    if rows.size:
        number = annotations.wanted.sum()
        level = fail if rows.size >= rule.fails_at * number else note
        count = f"{rows.size} of {number} annotations of {annotations.path}"
        named = annotations.named(rows)
        yield level(rule.code, f"{count} {rule.problem}: {named}", rule.fix)


def check_boxes(annotations: Annotations, classes: Sequence[str]) -> Iterator[Finding]:
    """Check what mmdet drops, the places of the boxes, and that all classes have objects."""
    if not annotations.wanted.any():
        problem = f"{annotations.path} has no annotations of the classes"
        yield fail("D408", problem, "annotate objects")
        return
    for find, rule in (_DROPPED | _TRAINED).items():
        yield from report(rule, annotations, find(annotations))
    labels = set(annotations.labels[annotations.trained].tolist())
    missing = [name for label, name in enumerate(classes) if label not in labels]
    if labels and missing:
        problem = f"{annotations.path} has no objects of {preview(missing)}"
        yield note("D410", problem, "annotate objects, or remove the classes")


def check_numbers(annotations: Annotations) -> Iterator[Finding]:
    """Check that COCO's mAP counts all objects of an image."""
    counts = np.bincount(annotations.images[annotations.images >= 0], minlength=1)
    if counts.max() > _MAX_SCORED:
        problem = f"an image of {annotations.path} has {counts.max()} objects"
        limit = f"COCO's mAP counts the {_MAX_SCORED} best predictions of an image"
        fix = "score as in docs/prediction.md, COCO; proposal_nums does not raise mAP"
        yield note("D419", f"{problem}, {limit}", fix)


def _find_unknown(annotations: Annotations) -> np.ndarray:
    return (annotations.images < 0) | (annotations.labels == UNKNOWN)


def _find_ignored(annotations: Annotations) -> np.ndarray:
    return np.array([bool(entry.get("ignore")) for entry in annotations.entries], bool)


def _find_outside(annotations: Annotations) -> np.ndarray:
    ends = np.minimum(annotations.corners[:, 2:], annotations.sizes)
    inside = ends - np.maximum(annotations.corners[:, :2], 0)
    return (inside <= 0).any(axis=1) & ~_find_thin(annotations)


def _find_thin(annotations: Annotations) -> np.ndarray:
    areas = np.array([entry["area"] for entry in annotations.entries], float)
    extents = annotations.corners[:, 2:] - annotations.corners[:, :2]
    return (areas <= 0) | (extents < 1).any(axis=1)


def _find_crowds(annotations: Annotations) -> np.ndarray:
    is_cocos_own = '"COCO' in json.dumps(annotations.coco.get("info"))  # whose crowds are meant
    return annotations.crowds & (not is_cocos_own)


def _find_beyond(annotations: Annotations) -> np.ndarray:
    starts = annotations.corners[:, :2]
    ends = annotations.corners[:, 2:]
    beyond = (starts < -_SLACK) | (ends > annotations.sizes + _SLACK)
    return beyond.any(axis=1) & annotations.trained


def _are_corners(annotations: Annotations) -> bool:
    """Return whether boxes would be inside their images if their values were corners."""
    rows = annotations.trained
    starts = annotations.corners[rows, :2]
    extents = annotations.corners[rows, 2:] - starts
    sizes = annotations.sizes[rows]
    fit = (extents > starts).all() and (extents <= sizes + _SLACK).all()
    far = (starts > sizes / 2).any(axis=1)  # as a width, all of these would be cut off
    return len(starts) >= _MANY and fit and far.mean() > 0.05


def _find_corners(annotations: Annotations) -> np.ndarray:
    return _find_beyond(annotations) & _are_corners(annotations)


def _find_cut_off(annotations: Annotations) -> np.ndarray:
    return _find_beyond(annotations) & (not _are_corners(annotations))


_CORRECT = "correct or remove them: mmdet drops them, and a score counts them as missed"
_PIXELS = "bbox=[x, y, width, height] in pixels"
_BORDER = "if the border of the image does not cut off objects"
_SINGLE = (
    "iscrowd=0 for single objects that CVAT exports as crowds; the edge of a tile makes others"
)
_NEVER = 2  # more than all

_DROPPED = {
    _find_unknown: Rule("D408", "have an unknown image_id or category_id", _CORRECT, fails_at=0),
    _find_ignored: Rule("D408", "have ignore=1", _CORRECT, fails_at=0.5),
    _find_outside: Rule("D408", "lie outside their image", _CORRECT, fails_at=0.5),
    _find_thin: Rule("D408", "have no area, or less than a pixel", _CORRECT, fails_at=0.5),
}
_TRAINED = {
    _find_crowds: Rule("D409", "have iscrowd=1: mmdet does not train them", _SINGLE, fails_at=1),
    _find_corners: Rule("D411", "are [x1, y1, x2, y2]", _PIXELS, fails_at=0),
    _find_cut_off: Rule("D411", "reach beyond their image", f"{_PIXELS}, {_BORDER}", _NEVER),
}
