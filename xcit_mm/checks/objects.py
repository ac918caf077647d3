"""Checks of the objects of a split, of any format: what mmdet drops, and where boxes are."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..datasets import Split
from .findings import Finding, fail, note

_MANY = 20  # boxes that cannot be alike by chance
_SLACK = 2  # pixels by which a box may reach beyond its image
_FRACTION = 2  # pixels in which fractions of an image lie: x + width is at most 2
_MIN_SIDE = 10 * _FRACTION  # pixels of an image that is too large for objects there
_MIN_FAR = 0.05  # share of boxes that start too far right or down to be as large as they state
_XYWH = "boxes in pixels of the image, as COCO's [x, y, width, height]"


@dataclass
class CheckedObjects:
    """The objects of a split, how a run uses them, and what follows from their columns of n rows.

    Attributes:
        owner: The file or folder of the split, for messages.
        needs_masks: Whether masks are trained or scored.
        image_sizes: Width and height of their images (n, 2).
        corners: Left, top, right and bottom (n, 4).
        is_counted: Whether their class is among the classes (n,).
        is_dropped: Whether mmdet drops them, whatever their class (n,).
        is_loaded: Whether mmdet loads them (n,).
    """

    split: Split
    owner: str
    needs_masks: bool
    poly2mask: bool = True

    def __post_init__(self) -> None:
        assert self.split.objects is not None
        columns = self.split.objects
        sizes = np.array([(image.width, image.height) for image in self.split.images], float)
        self.columns = columns
        self.image_sizes = sizes[columns.images]
        self.corners = columns.corners
        starts = self.corners[:, :2]
        ends = self.corners[:, 2:]
        overlaps = np.minimum(ends, self.image_sizes) - np.maximum(starts, 0)
        self.is_counted = columns.labels >= 0
        is_thin = (columns.areas <= 0) | (ends - starts < 1).any(axis=1)
        self.is_dropped = columns.is_ignored | is_thin | (overlaps <= 0).any(axis=1)
        self.is_loaded = self.is_counted & ~self.is_dropped

    def report(
        self, has_fault: np.ndarray, code: str, problem: str, fix: str, fails_at: float = 0.5
    ) -> Iterator[Finding]:
        """Report objects with a fault (n,), unless their categories are not classes: as a failure
        if at least the share `fails_at` of the objects has it.
        """
        rows = np.flatnonzero(has_fault & self.is_counted).tolist()
        if rows:
            number = self.is_counted.sum()
            level = fail if len(rows) >= fails_at * number else note
            examples = ", ".join(map(self.split.name_object, rows[:3]))
            count = f"{len(rows)} of {number} objects of {self.owner}"
            yield level(code, f"{count} {problem}, such as {examples}", fix)


def check_objects(objects: CheckedObjects) -> Iterator[Finding]:
    """Check the objects that mmdet drops, and where boxes are."""
    if not objects.is_counted.any():
        yield fail("D408", f"{objects.owner} has no objects of the classes", "annotate objects")
        return
    is_near = (np.abs(objects.corners) <= _FRACTION).all(axis=1)
    is_fraction = is_near & (objects.image_sizes >= _MIN_SIDE).all(axis=1)
    problem = "lie in the first two pixels with almost no area, like fractions of the image"
    yield from objects.report(is_fraction, "D408", problem, _XYWH)
    problem = "lie outside their image, have less than a pixel, no area, or ignore=1"
    fix = "correct or remove them: mmdet drops them, and a score counts them as missed"
    is_crowd = objects.columns.is_crowd  # which is not trained anyway
    is_lost = objects.is_dropped & ~is_fraction & ~is_crowd
    yield from objects.report(is_lost, "D408", problem, fix)
    yield from _check_borders(objects, objects.is_loaded & ~is_crowd)


def _check_borders(objects: CheckedObjects, is_trained: np.ndarray) -> Iterator[Finding]:
    """Check that boxes are inside their images. If some are not, the reason may be that they hold
    two corners, x1, y1, x2, y2.
    """
    starts = objects.corners[is_trained, :2]
    ends = objects.corners[is_trained, 2:]
    last_values = ends - starts  # of the box: width and height, or the second corner
    sizes = objects.image_sizes[is_trained]
    are_valid_ends = (last_values > starts).all() and (last_values <= sizes + _SLACK).all()
    # If a box starts beyond half of its image, a width or height above x or y reaches beyond it.
    is_far = (starts > sizes / 2).any(axis=1)
    is_beyond = is_trained.copy()
    is_beyond[is_trained] = ((starts < -_SLACK) | (ends > sizes + _SLACK)).any(axis=1)
    if len(starts) >= _MANY and are_valid_ends and is_far.mean() > _MIN_FAR:
        yield from objects.report(is_beyond, "D411", "are [x1, y1, x2, y2]", _XYWH, fails_at=0)
    else:
        fix = f"{_XYWH}, if the border of the image does not cut off objects"
        yield from objects.report(is_beyond, "D411", "reach beyond their image", fix, np.inf)
