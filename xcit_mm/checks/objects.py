"""Checks of the objects of a split, of any format: what mmdet drops, and where boxes are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..datasets import Split
from ..utils.errors import preview
from .findings import Finding, fail, note

_MANY = 20  # boxes that cannot be alike by chance
_SLACK = 2  # pixels by which a box may reach beyond its image
_FRACTION = 2  # pixels in which fractions of an image lie: Pascal VOC's 0.5 to 1 is -0.5 to 1
_MIN_SIDE = 10 * _FRACTION  # pixels of an image that is too large for objects there
_MIN_FAR = 0.05  # share of boxes that start too far right or down to be as large as they state
_MAX_SCORED = 100  # objects of an image that COCO's mAP counts


@dataclass
class CheckedObjects:
    """The objects of a split, how a run uses them, and what follows from their columns of n rows.

    Attributes:
        owner: The file or folder of the split, for messages.
        needs_masks: Whether masks are trained or scored.
        loading: The step of the pipeline that loads the photos. Default: mmcv's.
        poly2mask: As in the `LoadAnnotations` of the pipeline.
        has_meant_crowds: Whether crowds are meant, as in COCO's own files.
        sizes: Width and height of their images (n, 2).
        corners: Left, top, right and bottom (n, 4).
        is_counted: Whether their class is among the classes.
        is_fraction: Whether they lie within the first pixels of a large image.
        is_thin: Whether they have no area, or their box less than a pixel.
        is_outside: Whether the box is outside its image.
        is_loaded: Whether mmdet loads them.
    """

    split: Split
    owner: str
    classes: Sequence[str]
    is_training: bool
    needs_masks: bool
    loading: dict[str, Any] | None = None
    poly2mask: bool = True
    has_meant_crowds: bool = False

    def __post_init__(self) -> None:
        assert self.split.objects is not None
        self.columns = self.split.objects
        sizes = np.array([(image.width, image.height) for image in self.split.images], float)
        self.sizes = sizes[self.columns.images]
        self.corners = self.columns.corners
        starts = self.corners[:, :2]
        ends = self.corners[:, 2:]
        overlaps = np.minimum(ends, self.sizes) - np.maximum(starts, 0)
        is_near = (np.abs(self.corners) <= _FRACTION).all(axis=1)
        self.is_counted = self.columns.labels >= 0
        self.is_fraction = is_near & (self.sizes >= _MIN_SIDE).all(axis=1)
        self.is_thin = (self.columns.areas <= 0) | (ends - starts < 1).any(axis=1)
        self.is_outside = (overlaps <= 0).any(axis=1) & ~self.is_thin
        is_dropped = self.columns.is_ignored | self.is_thin | self.is_outside
        self.is_loaded = self.is_counted & ~is_dropped


class Fault(NamedTuple):
    """A fault that objects may have.

    Attributes:
        fails_at: The fault is a failure if at least this share of the objects has it.
    """

    code: str
    problem: str
    fix: str
    fails_at: float


_CORRECT = "correct or remove them: mmdet drops them, and a score counts them as missed"
_PIXELS = "boxes in pixels of the image"
_XYWH = f"{_PIXELS}, in COCO's format [x, y, width, height]"
_SINGLE = (
    "iscrowd=0 for single objects that CVAT exports as crowds. Objects that the edge of a raster's "
    "tile cuts are right"
)
_BORDER = f"{_XYWH}, if the border of the image does not cut off objects"
_NEVER = 2  # above every share

_IGNORED = Fault("D408", "have ignore=1", _CORRECT, fails_at=0.5)
_FRACTIONS = Fault(
    "D408", "lie in the first two pixels, like fractions with no area", _PIXELS, fails_at=0.5
)
_OUTSIDE = Fault("D408", "lie outside their image", _CORRECT, fails_at=0.5)
_THIN = Fault("D408", "have no area, or less than a pixel", _CORRECT, fails_at=0.5)
_CROWDS = Fault("D409", "have iscrowd=1: mmdet does not train them", _SINGLE, fails_at=1)
_CORNERS = Fault("D411", "are [x1, y1, x2, y2]", _XYWH, fails_at=0)
_CUT_OFF = Fault("D411", "reach beyond their image", _BORDER, fails_at=_NEVER)
_REPEATED = Fault(
    "D413", "have image, class and box of another", "remove the copies", fails_at=_NEVER
)


def report(fault: Fault, objects: CheckedObjects, has_fault: np.ndarray) -> Iterator[Finding]:
    """Report objects with a fault (n,), unless their categories are not classes."""
    rows = np.flatnonzero(has_fault & objects.is_counted)
    if rows.size:
        number = objects.is_counted.sum()
        level = fail if rows.size >= fault.fails_at * number else note
        examples = preview([objects.split.name_object(row) for row in rows[:3].tolist()])
        more = f" and {rows.size - 3} more" if rows.size > 3 else ""
        count = f"{rows.size} of {number} objects of {objects.owner}"
        yield level(fault.code, f"{count} {fault.problem}: {examples}{more}", fault.fix)


def check_objects(objects: CheckedObjects) -> Iterator[Finding]:
    """Check what mmdet drops, where the boxes are, and that each class has objects."""
    if not objects.is_counted.any():
        yield fail("D408", f"{objects.owner} has no objects of the classes", "annotate objects")
        return
    columns = objects.columns
    yield from report(_IGNORED, objects, columns.is_ignored)
    yield from report(_FRACTIONS, objects, objects.is_fraction)
    yield from report(_OUTSIDE, objects, objects.is_outside)
    yield from report(_THIN, objects, objects.is_thin & ~objects.is_fraction)
    if not objects.has_meant_crowds:
        yield from report(_CROWDS, objects, columns.is_crowd)
    is_trained = objects.is_loaded & ~columns.is_crowd
    yield from _check_borders(objects, is_trained)
    yield from report(_REPEATED, objects, _find_repeated(objects))
    labels = set(columns.labels[is_trained].tolist())
    missing = [name for label, name in enumerate(objects.classes) if label not in labels]
    if labels and missing:
        problem = f"{objects.owner} has no objects of {preview(missing)}"
        yield note("D410", problem, "annotate objects, or remove the classes")


def _check_borders(objects: CheckedObjects, is_trained: np.ndarray) -> Iterator[Finding]:
    """Check that boxes are inside their images. If some are not, the reason may be that they hold
    two corners, x1, y1, x2, y2.
    """
    starts = objects.corners[is_trained, :2]
    ends = objects.corners[is_trained, 2:]
    last_values = ends - starts  # of the box: width and height, or the second corner
    sizes = objects.sizes[is_trained]
    are_valid_ends = (last_values > starts).all() and (last_values <= sizes + _SLACK).all()
    # If a box starts beyond half of its image, a width or height above x or y reaches beyond it.
    is_far = (starts > sizes / 2).any(axis=1)
    are_corners = len(starts) >= _MANY and are_valid_ends and is_far.mean() > _MIN_FAR
    is_beyond = is_trained.copy()
    is_beyond[is_trained] = ((starts < -_SLACK) | (ends > sizes + _SLACK)).any(axis=1)
    yield from report(_CORNERS if are_corners else _CUT_OFF, objects, is_beyond)


def _find_repeated(objects: CheckedObjects) -> np.ndarray:
    """Return which loaded objects have image, class and box of an earlier one (n,)."""
    rows = np.flatnonzero(objects.is_loaded)
    columns = objects.columns
    keys = np.stack([*columns.boxes[rows].T, columns.labels[rows], columns.images[rows]])
    order = np.lexsort(keys)  # which keeps the order of equal keys
    keys = keys[:, order]
    is_repeated = np.zeros(len(columns), bool)
    is_repeated[rows[order[1:]]] = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    return is_repeated


def check_counts(objects: CheckedObjects) -> Iterator[Finding]:
    """Check that COCO's mAP counts all objects of an image that is scored."""
    if objects.is_training:
        return
    counts = np.bincount(objects.columns.images, minlength=1)
    if counts.max() > _MAX_SCORED:
        problem = f"an image of {objects.owner} has {counts.max()} objects"
        limit = f"COCO's mAP counts the {_MAX_SCORED} best predictions of an image"
        fix = "score as in docs/prediction.md, COCO; proposal_nums does not raise mAP"
        yield note("D419", f"{problem}, {limit}", fix)
