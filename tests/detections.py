"""Comparison of detections that are equal up to rounding."""

from typing import Any, NamedTuple

import numpy as np

TOLERANCE = 1e-3  # of a box in the image's longer side, of a score in the highest


class Detections(NamedTuple):
    """Objects in an image: boxes (n, 4), scores and labels (n,), masks (n, H, W) or None."""

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | None


class Comparison:
    """Differences between detections of several images.

    Attributes:
        detections: Number on both sides.
        unmatched: Number without a match: of the same class, with box and score within the tolerance.
        boxes: Largest difference of a coordinate of two matches, in the image's longer side.
        scores: Largest difference of their scores, in the image's highest score.
        pixels: In the union of their masks.
        different_pixels: In one of their masks alone.
    """

    def __init__(self) -> None:
        self.boxes = self.scores = 0.0
        self.detections = self.unmatched = self.pixels = self.different_pixels = 0

    def add(self, found: Detections, expected: Detections, size: tuple[int, ...], cut: float) -> None:
        """Compare the detections of one image.

        A detection without a match does not count if its score is within the tolerance of `cut`, since rounding decides
        whether it is above.
        """
        top = max(found.scores.max(initial=0), expected.scores.max(initial=0))
        boxes = np.abs(found.boxes[:, None] - expected.boxes).max(axis=2) / max(size)
        scores = np.abs(found.scores[:, None] - expected.scores) / max(top, 1e-12)
        fits = (boxes <= TOLERANCE) & (scores <= TOLERANCE) & (found.labels[:, None] == expected.labels)
        distance, pairs = np.where(fits, boxes + scores, np.inf), []
        while distance.size and distance.min() < np.inf:  # the closest pair first
            i, j = np.unravel_index(distance.argmin(), distance.shape)
            distance[i], distance[:, j] = np.inf, np.inf
            pairs.append((i, j))
            self.boxes, self.scores = max(self.boxes, float(boxes[i, j])), max(self.scores, float(scores[i, j]))
            if found.masks is not None and expected.masks is not None:
                self.pixels += int((found.masks[i] | expected.masks[j]).sum())
                self.different_pixels += int((found.masks[i] ^ expected.masks[j]).sum())
        for side, values in enumerate((found.scores, expected.scores)):
            alone = np.delete(values, [pair[side] for pair in pairs])
            unmatched = int((np.abs(alone - cut) > TOLERANCE * top).sum())
            self.unmatched += unmatched
            self.detections += len(pairs) + unmatched


def to_detections(instances: Any) -> Detections:
    """Convert mmdet's detections."""
    values = instances.numpy()
    return Detections(values.bboxes, values.scores, values.labels, values.get("masks"))
