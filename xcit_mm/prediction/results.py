"""A detector's predictions in plain numbers."""

from typing import NamedTuple

import numpy as np
import torch
from mmengine.structures import BaseDataElement

from .tiling import encode_mask

__all__ = ["Instances", "instances_of", "run_length_codes"]


class Instances(NamedTuple):
    """Objects found in an image, best first.

    Attributes:
        boxes: Left, top, right and bottom in pixels of the image, (n, 4).
        scores: (n,).
        labels: Class numbers from 0, (n,).
        masks: (n, H, W), bool, or after tiles a list of n in COCO's run-length code; None of a model without masks.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | list[dict] | None

    def above(self, score: float) -> "Instances":
        """Those of a higher score."""
        keep = np.flatnonzero(self.scores > score)
        masks = self.masks[keep] if isinstance(self.masks, np.ndarray) else self.masks
        masks = [masks[number] for number in keep] if isinstance(masks, list) else masks
        return Instances(self.boxes[keep], self.scores[keep], self.labels[keep], masks)


def instances_of(sample: BaseDataElement) -> Instances:
    """What mmdet or `detect_in_tiles` found in an image.

    Raises:
        ValueError: If the model predicts no instances.
    """
    if "pred_instances" not in sample:
        raise ValueError("the model predicts no instances: only detectors of boxes or of instance masks are shown")
    from mmdet.structures.mask import mask2bbox

    found = sample.pred_instances.cpu().numpy()
    masks, boxes = found.get("masks"), found.bboxes
    if isinstance(masks, np.ndarray) and not boxes.any():  # as of SOLO, which has no boxes
        boxes = mask2bbox(torch.from_numpy(masks)).numpy()
    return Instances(boxes, found.scores, found.labels, masks)


def run_length_codes(found: Instances) -> list[str] | None:
    """COCO's run-length codes of the masks, as text; None of a model without masks."""
    if found.masks is None:
        return None
    codes = (mask if isinstance(mask, dict) else encode_mask(mask, (0, 0), mask.shape) for mask in found.masks)
    return [code["counts"].decode() for code in codes]
