"""A detector's predictions as NumPy arrays."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mmengine.structures import BaseDataElement, InstanceData
from pycocotools import mask as rle
from torch import Tensor


class Instances(NamedTuple):
    """Objects in an image, in descending order of scores.

    Attributes:
        boxes: Left, top, right and bottom in pixels of the image, (n, 4).
        scores: (n,).
        labels: Class numbers from 0, (n,).
        masks: (n, H, W), bool, or if encoded, as from tiles, a list of n in COCO's run-length code. None for a model
            without masks.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | list[dict] | None

    def select(self, numbers: np.ndarray) -> "Instances":
        """Select instances by their numbers, in this order."""
        masks = self.masks
        masks = [masks[number] for number in numbers] if isinstance(masks, list) else masks
        masks = masks[numbers] if isinstance(masks, np.ndarray) else masks
        return Instances(self.boxes[numbers], self.scores[numbers], self.labels[numbers], masks)

    def to_coco(
        self, size: Sequence[int], image_id: int | str | None, category_ids: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Return COCO results of an image of `size` (height, width), for `COCO.loadRes`."""
        left, top, right, bottom = self.boxes.T
        boxes = np.stack([left, top, right - left, bottom - top], axis=1).tolist()
        values = zip(self.labels.tolist(), boxes, self.scores.tolist(), strict=True)
        results: list[dict[str, Any]] = [
            dict(image_id=image_id, category_id=category_ids[label], bbox=box, score=score)
            for label, box, score in values
        ]
        for number, result in enumerate(results):
            if self.masks is not None:
                mask: Any = self.masks[number]
                code = mask if isinstance(mask, dict) else rle.encode(np.asfortranarray(mask.view(np.uint8)))
                result["segmentation"] = dict(size=list(size), counts=code["counts"].decode())
        return results


def to_instances(sample: BaseDataElement) -> Instances:
    """Convert a prediction of mmdet, whose order depends on the head."""
    if "pred_instances" not in sample:
        raise ValueError("the model predicts no instances: only detectors of boxes or of instance masks are supported")
    found = sample.pred_instances.cpu()
    boxes, arrays = instance_boxes(found).numpy(), found.numpy()
    instances = Instances(boxes, arrays.scores, arrays.labels, arrays.get("masks"))
    is_sorted = (np.diff(arrays.scores) <= 0).all()
    return instances if is_sorted else instances.select(np.argsort(-arrays.scores, kind="stable"))


def instance_boxes(found: InstanceData) -> Tensor:
    """Return the boxes of instances, or those around the masks for SOLO, which predicts masks without boxes."""
    from mmdet.structures.mask import mask2bbox

    masks = found.get("masks")
    return mask2bbox(masks) if isinstance(masks, Tensor) and not found.bboxes.any() else found.bboxes
