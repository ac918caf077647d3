"""A detector's predictions as NumPy arrays."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from mmengine.structures import BaseDataElement, InstanceData
from torch import Tensor

from ..utils.run_lengths import encode_mask


class Instances(NamedTuple):
    """Objects in an image, in descending order of scores.

    Attributes:
        boxes: Left, top, right and bottom in pixels of the image, (n, 4).
        scores: (n,).
        labels: Class numbers from 0, (n,).
        masks: (n, H, W), bool, or if encoded, as from tiles, a list of n in COCO's run-length code. None for a model
            without masks.
        cut: Whether the edge of a tile may have cut an object, (n,), bool. None without tiles.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | list[dict] | None
    cut: np.ndarray | None = None

    def above(self, score: float) -> "Instances":
        """Select the instances with a higher score."""
        return self.select(np.flatnonzero(self.scores > score))

    def select(self, numbers: np.ndarray) -> "Instances":
        """Select instances by their numbers, in this order."""
        masks = self.masks
        masks = [masks[number] for number in numbers] if isinstance(masks, list) else masks
        masks = masks[numbers] if isinstance(masks, np.ndarray) else masks
        cut = None if self.cut is None else self.cut[numbers]
        return Instances(self.boxes[numbers], self.scores[numbers], self.labels[numbers], masks, cut)


def to_instances(sample: BaseDataElement, max_mask_bytes: float = math.inf) -> Instances:
    """Convert a prediction of mmdet or of `detect_in_tiles`, whose order depends on the head.

    Masks of more than `max_mask_bytes` in total are encoded.
    """
    if "pred_instances" not in sample:
        raise ValueError("the model predicts no instances: only detectors of boxes or of instance masks are supported")
    found = sample.pred_instances.cpu()
    boxes, arrays = instance_boxes(found).numpy(), found.numpy()
    masks = arrays.get("masks")
    if isinstance(masks, np.ndarray) and masks.nbytes > max_mask_bytes:
        masks = [encode_mask(mask) for mask in masks]
    instances = Instances(boxes, arrays.scores, arrays.labels, masks, arrays.get("cut"))
    is_sorted = (np.diff(arrays.scores) <= 0).all()
    return instances if is_sorted else instances.select(np.argsort(-arrays.scores, kind="stable"))


def instance_boxes(found: InstanceData) -> Tensor:
    """Return the boxes of instances, or those around the masks for SOLO, which predicts masks without boxes."""
    from mmdet.structures.mask import mask2bbox

    masks = found.get("masks")
    return mask2bbox(masks) if isinstance(masks, Tensor) and not found.bboxes.any() else found.bboxes


def encode_instances(instances: Instances) -> dict[str, Any]:
    """Return the fields of instances as lists, with masks as COCO's compressed run lengths."""
    boxes, scores, labels, masks, cut = instances
    codes = masks if masks is None else [mask if isinstance(mask, dict) else encode_mask(mask) for mask in masks]
    return dict(
        boxes=boxes.tolist(),
        scores=scores.tolist(),
        labels=labels.tolist(),
        masks=codes and [code["counts"].decode() for code in codes],
        cut=None if cut is None else cut.tolist(),
    )


def coco_results(
    encoded: Mapping[str, Any], image_id: int | float | str, category_ids: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Convert encoded instances, with `height` and `width` of the image, to COCO results for `COCO.loadRes`."""
    for number, (left, top, right, bottom) in enumerate(encoded["boxes"] or []):
        result: dict[str, Any] = dict(
            image_id=image_id,
            category_id=category_ids[encoded["labels"][number]],
            bbox=[left, top, right - left, bottom - top],
            score=encoded["scores"][number],
        )
        if encoded["masks"] is not None:
            result["segmentation"] = dict(size=[encoded["height"], encoded["width"]], counts=encoded["masks"][number])
        if encoded["cut"] is not None:
            result["cut"] = encoded["cut"][number]
        yield result
