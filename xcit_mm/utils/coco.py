"""Boxes and masks of COCO jsons.

A box of an annotation is [x, y, width, height] in pixels, elsewhere [left, top, right, bottom].
"""

from collections.abc import Sequence
from operator import mul
from typing import Any

import numpy as np


def to_corners(boxes: Any) -> np.ndarray:
    """Convert COCO's boxes (n, 4) into left, top, right and bottom."""
    x, y, width, height = np.asarray(boxes, float).reshape(-1, 4).T
    return np.stack([x, y, x + width, y + height], axis=1)


def from_corners(boxes: Any) -> np.ndarray:
    """Convert boxes (n, 4) of left, top, right and bottom into COCO's."""
    left, top, right, bottom = np.asarray(boxes).reshape(-1, 4).T
    return np.stack([left, top, right - left, bottom - top], axis=1)


def polygon_area(polygon: Sequence[float]) -> float:
    """Return the area in pixels of a polygon x, y, x, y, ..., by the shoelace formula."""
    x = polygon[::2]
    y = polygon[1::2]
    clockwise = sum(map(mul, x[1:], y)) + x[0] * y[-1]
    counterclockwise = sum(map(mul, x, y[1:])) + x[-1] * y[0]
    return abs(counterclockwise - clockwise) / 2


def encode_mask(mask: np.ndarray) -> dict[str, Any]:
    """Encode a mask (H, W), bool or uint8, as the RLE of COCO jsons: `size` and `counts`."""
    from pycocotools import mask as rle  # which is needed for training only

    code: Any = rle.encode(np.asfortranarray(mask, np.uint8))
    return dict(size=code["size"], counts=code["counts"].decode())
