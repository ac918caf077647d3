"""Comparison of detections that are equal up to rounding."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

TOLERANCE = 3e-5  # of a box in the image's longer side, of a score in the highest


class Detections(NamedTuple):
    """Objects in an image: boxes (n, 4), scores and labels (n,), masks (n, H, W) or None."""

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | None


def assert_same(
    actual: Detections, expected: Detections, size: tuple[int, ...], cut: float, pixels: float
) -> int:
    """Check that each detection has a match of its class, and return their number.

    Args:
        size: Height and width of the image.
        cut: Score below which detections are left out. Rounding decides at about `cut`.
        pixels: Share of the pixels of all masks that may be in one of two matching masks alone.
    """
    top = max(actual.scores.max(initial=0), expected.scores.max(initial=0), 1e-12)
    boxes = np.abs(actual.boxes[:, None] - expected.boxes).max(axis=2) / max(size)
    scores = np.abs(actual.scores[:, None] - expected.scores) / top
    fits = np.maximum(boxes, scores) <= TOLERANCE
    fits &= actual.labels[:, None] == expected.labels
    rows, columns = linear_sum_assignment(np.where(fits, boxes + scores, 1))
    rows, columns = (pairs[fits[rows, columns]] for pairs in (rows, columns))
    alone = np.concatenate([np.delete(actual.scores, rows), np.delete(expected.scores, columns)])
    assert (np.abs(alone - cut) <= TOLERANCE * top).all(), f"without a match: scores {alone}"
    if actual.masks is not None and expected.masks is not None:
        masks = actual.masks[rows], expected.masks[columns]
        assert (masks[0] ^ masks[1]).sum() <= max(pixels * (masks[0] | masks[1]).sum(), 4)
    return len(rows)
