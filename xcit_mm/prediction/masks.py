"""mmdet's instances as supervision's detections, with masks in the memory of their boxes.

mmdet's masks are as large as the image: 100 objects of 8000 x 6000 pixels take 4.8 GB.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import supervision as sv
import torch
from mmengine.structures import InstanceData

from ..datasets.coco import encode_mask


class Crop(NamedTuple):
    """A mask in the part of the image that holds its object.

    Attributes:
        left, top: Position in the image, in pixels.
        mask: (h, w), bool.
    """

    left: int
    top: int
    mask: np.ndarray


def crop_of(masks: np.ndarray | sv.CompactMask, number: int) -> Crop:
    """Return mask `number`: from an array (n, H, W) in full size, or if compact in its box."""
    if isinstance(masks, np.ndarray):
        return Crop(0, 0, masks[number])
    left, top = masks.offsets[number].tolist()
    return Crop(left, top, masks.crop(number))


def to_compact(crops: Iterable[Crop], size: tuple[int, int]) -> sv.CompactMask:
    """Return crops as the masks of an image of this height and width."""
    no_corners = np.zeros((0, 2), np.int32)
    masks = [sv.CompactMask([], no_corners, no_corners, size)]
    for left, top, mask in crops:
        height, width = mask.shape
        box = np.array([[0, 0, width - 1, height - 1]])
        crop = sv.CompactMask.from_dense(mask[None], box, mask.shape)
        masks.append(crop.with_offset(left, top, size))
    return sv.CompactMask.merge(masks)


def to_detections(instances: InstanceData, size: tuple[int, int]) -> sv.Detections:
    """Return instances as detections in descending order of scores, with compact masks.

    Not all heads ensure this order. Masks of instances are a tensor (n, H, W) or a list of `Crop`.

    Args:
        size: Height and width of the image.
    """
    from mmdet.structures.mask import mask2bbox

    instances = instances.cpu()
    boxes = instances.bboxes
    masks = instances.get("masks")
    if isinstance(masks, list):
        masks = to_compact(masks, size)
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
    """Let the mask heads of a Mask R-CNN return a `Crop` of each object instead of a mask.

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
        boxes = results.bboxes
        boxes /= boxes.new_tensor(meta["scale_factor"]).repeat((1, 2))
        image_size = boxes.new_tensor(meta["ori_shape"][1::-1])
        # Interpolation reaches one pixel beyond a box.
        corners = (boxes[:, :2].floor() - 1).clamp(min=0)
        sizes = (torch.minimum(boxes[:, 2:].ceil() + 1, image_size) - corners).clamp(min=1)
        masks: list[Any] = []
        for number, (corner, size) in enumerate(zip(corners, sizes, strict=True)):
            only = slice(number, number + 1)
            moved = InstanceData(bboxes=boxes[only] - corner.repeat(2), labels=results.labels[only])
            width, height = size.int().tolist()
            crop_meta = dict(ori_shape=(height, width), scale_factor=(1.0, 1.0))
            (pasted,) = predict([scores[only]], [moved], [crop_meta], **options)
            left, top = corner.int().tolist()
            crop = Crop(left, top, pasted.masks[0].cpu().numpy())
            masks.append(_encode_crop(crop, meta["ori_shape"]) if encodes else crop)
        results.masks = masks
    return results_list


def _encode_crop(crop: Crop, shape: Sequence[int]) -> dict[str, Any]:
    """Encode a mask in an image of this height and width as RLE."""
    mask = np.zeros(shape[:2], np.uint8, order="F")
    height, width = crop.mask.shape
    mask[crop.top : crop.top + height, crop.left : crop.left + width] = crop.mask
    return encode_mask(mask)
