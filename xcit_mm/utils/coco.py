"""Boxes and masks of COCO jsons.

A box of an annotation is [x, y, width, height] in pixels, elsewhere [left, top, right, bottom].
"""

from typing import Any

import numpy as np


def from_corners(boxes: Any) -> np.ndarray:
    """Convert boxes (n, 4) of left, top, right and bottom into COCO's."""
    left, top, right, bottom = np.asarray(boxes).reshape(-1, 4).T
    return np.stack([left, top, right - left, bottom - top], axis=1)


def encode_mask(mask: np.ndarray) -> dict[str, Any]:
    """Encode a mask (H, W), bool or uint8, as the RLE of COCO jsons: `size` and `counts`."""
    from pycocotools import mask as rle  # which is needed for training only

    code: Any = rle.encode(np.asfortranarray(mask, np.uint8))
    return dict(size=code["size"], counts=code["counts"].decode())
