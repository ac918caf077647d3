"""mmdet's instances as supervision's detections, with masks in the memory of their boxes.

mmdet's masks are as large as the image: 100 objects of 8000 x 6000 pixels take 4.8 GB.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import supervision as sv
import torch
from mmengine.structures import InstanceData

from ..datasets.coco import encode_mask


def place_mask(mask: np.ndarray, left: int, top: int, size: tuple[int, int]) -> sv.CompactMask:
    """Return the mask of one object in an image.

    Args:
        mask: (h, w), bool.
        left, top: Place of the mask in the image, in pixels.
        size: Height and width of the image.
    """
    height, width = mask.shape
    box = np.array([[0, 0, width - 1, height - 1]])
    return sv.CompactMask.from_dense(mask[None], box, mask.shape).with_offset(left, top, size)


def merge_masks(masks: Iterable[sv.CompactMask], size: tuple[int, int]) -> sv.CompactMask:
    """Return the masks of objects in an image of this height and width as one."""
    none = sv.CompactMask.from_dense(np.zeros((0, *size), bool), np.zeros((0, 4)), size)
    return sv.CompactMask.merge([none, *masks])


def to_detections(instances: InstanceData, size: tuple[int, int]) -> sv.Detections:
    """Return instances as detections in descending order of scores, with compact masks.

    Not all heads ensure this order. Masks of instances are a tensor (n, H, W), or a list with the
    compact mask of each.

    Args:
        size: Height and width of the image.
    """
    from mmdet.structures.mask import mask2bbox

    instances = instances.cpu()
    boxes = instances.bboxes
    masks = instances.get("masks")
    if isinstance(masks, list):
        masks = merge_masks(masks, size)
    elif masks is not None:
        masks = masks.bool()  # without objects, SOLO's masks and labels are floats
        enclosing = mask2bbox(masks)
        if not boxes.any():  # SOLO predicts no boxes
            boxes = enclosing
        masks = sv.CompactMask.from_dense(masks.numpy(), enclosing.numpy(), size)
    scores = instances.scores.numpy()
    labels = instances.labels.long().numpy()
    detections: Any = sv.Detections(boxes.numpy(), masks, scores, labels)
    return detections[np.argsort(-scores, kind="stable")]


def return_crops(model: Any, encodes: bool = False) -> None:
    """Let the mask heads of a Mask R-CNN return compact masks.

    Args:
        encodes: Whether they return the RLE of each mask, which mmdet's CocoMetric takes, instead.
    """
    if not any(hasattr(part, "roi_head") for part in model.modules()):  # also in a wrapper
        return
    from mmdet.models.roi_heads.mask_heads import FCNMaskHead

    for module in model.modules():
        # Subclasses with a method of their own stay.
        if getattr(type(module), "predict_by_feat", None) is FCNMaskHead.predict_by_feat:
            module.predict_by_feat = partial(_predict_crops, module.predict_by_feat, encodes)


def _predict_crops(
    predict: Any,
    encodes: bool,
    mask_preds: Sequence[torch.Tensor],
    results_list: list[InstanceData],
    batch_img_metas: list[dict],
    **options: Any,
) -> list[InstanceData]:
    """Call `predict_by_feat` for each object, as if the image were its box."""
    for scores, results, meta in zip(mask_preds, results_list, batch_img_metas, strict=True):
        height, width = meta["ori_shape"][:2]
        boxes = results.bboxes
        boxes /= boxes.new_tensor(meta["scale_factor"]).repeat((1, 2))
        # Interpolation reaches one pixel beyond a box.
        corners = (boxes[:, :2].floor() - 1).clamp(min=0)
        ends = torch.minimum(boxes[:, 2:].ceil() + 1, boxes.new_tensor([width, height]))
        sizes = (ends - corners).clamp(min=1)
        masks: list[Any] = []
        for number, (corner, size) in enumerate(zip(corners, sizes, strict=True)):
            only = slice(number, number + 1)
            moved = InstanceData(bboxes=boxes[only] - corner.repeat(2), labels=results.labels[only])
            crop_meta = dict(ori_shape=size.int().tolist()[::-1], scale_factor=(1.0, 1.0))
            (pasted,) = predict([scores[only]], [moved], [crop_meta], **options)
            left, top = corner.int().tolist()
            mask = place_mask(pasted.masks[0].cpu().numpy(), left, top, (height, width))
            masks.append(encode_mask(mask[0]) if encodes else mask)
        results.masks = masks
    return results_list
