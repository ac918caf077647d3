"""Checks of the objects of a COCO json: boxes and masks that mmdet drops or misunderstands."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from ..datasets.coco import Annotation, CocoFile, CocoImage
from .findings import Finding, fail, note

_SLACK = 2  # pixels by which a box may reach beyond its image


class _Rle(msgspec.Struct):
    size: tuple[float, float]
    counts: str | list[float]


_MASKS = msgspec.json.Decoder(list[list[float]] | _Rle)


class CheckedObjects:
    """The objects of a json that are of the classes, as n annotations and their n images."""

    def __init__(self, path: str, coco: CocoFile, classes: Sequence[str]) -> None:
        images = {image.id: image for image in coco.images}
        learned = {category.id for category in coco.categories if category.name in classes}
        self.path = path
        self.annotations = [entry for entry in coco.annotations if entry.category_id in learned]
        self.images = [images[entry.image_id] for entry in self.annotations]

    def check(self, annotation_step: dict[str, Any], needs_masks: bool) -> Iterator[Finding]:
        """Check boxes, and masks if they are trained or scored.

        Args:
            annotation_step: mmdet's LoadAnnotations.
        """
        boxes = np.array([entry.bbox for entry in self.annotations], float).reshape(-1, 4)
        sizes = [(image.width, image.height) for image in self.images]
        borders = np.array(sizes, float).reshape(-1, 2)
        starts = boxes[:, :2]
        ends = starts + boxes[:, 2:]
        overlaps = np.minimum(ends, borders) - np.maximum(starts, 0)
        is_empty = [entry.area <= 0 or bool(entry.ignore) for entry in self.annotations]
        is_thin = (boxes[:, 2:] < 1).any(axis=1) | (overlaps <= 0).any(axis=1)
        is_dropped = np.array(is_empty, bool) | is_thin
        problem = "lie outside their image, have less than a pixel, no area, or ignore=1"
        form = "[x, y, width, height] in pixels of the image"
        fix = f"correct or remove them, which mmdet drops; give boxes as {form}, not as fractions"
        yield from self._report(is_dropped, "D408", problem, fix)
        is_beyond = ((starts < -_SLACK) | (ends > borders + _SLACK)).any(axis=1) & ~is_dropped
        fix = f"give boxes as {form}, not as [x1, y1, x2, y2]"
        yield from self._report(is_beyond, "D411", "reach beyond their image", fix)
        if needs_masks:
            poly2mask = annotation_step.get("poly2mask", True)
            has_no_mask = np.zeros(len(boxes), bool)
            for row in np.flatnonzero(~is_dropped):
                is_read = _has_mask(self.annotations[row], self.images[row], poly2mask)
                has_no_mask[row] = not is_read
            problem = "have no polygon of three points, RLE of another size than the image, or RLE "
            problem += "that mmdet drops under poly2mask=False"
            fix = "segmentation=[[x1, y1, x2, y2, x3, y3, ...]] in pixels, or RLE of the image's "
            fix += "size under poly2mask=True in LoadAnnotations"
            yield from self._report(has_no_mask, "D412", problem, fix, fails_at=0)

    def _report(
        self, has_fault: np.ndarray, code: str, problem: str, fix: str, fails_at: float = 0.5
    ) -> Iterator[Finding]:
        """Report objects with a fault (n,): a failure if at least the share `fails_at` has it."""
        rows = np.flatnonzero(has_fault)
        if rows.size:
            first = f"id {self.annotations[rows[0]].id} (image {self.images[rows[0]].file_name})"
            count = f"{rows.size} of {len(has_fault)} objects of {self.path}"
            level = fail if rows.size >= fails_at * len(has_fault) else note
            yield level(code, f"{count} {problem}, the first {first}", fix)


def _has_mask(annotation: Annotation, image: CocoImage, poly2mask: bool) -> bool:
    """Return whether mmdet and pycocotools can read the mask of an object."""
    try:
        mask = _MASKS.decode(annotation.segmentation)
    except msgspec.MsgspecError:
        return False
    if isinstance(mask, _Rle):
        is_kept = poly2mask or bool(annotation.iscrowd)  # a crowd is not trained anyway
        return is_kept and mask.size == (image.height, image.width)
    points = mask[0] if mask else []  # pycocotools reads all parts as it reads the first
    return len(points) >= 6 and len(points) % 2 == 0
