"""Masks in their boxes and maps by groups of classes, in less memory than the libraries need.

mmdet pastes each mask into an image of its own: 100 objects of 8000 x 6000 pixels take 4.8 GB.
mmseg resizes the logits of all classes: 150 classes of 4000 x 3000 pixels take 7.2 GB.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import supervision as sv
import torch
from mmengine.structures import InstanceData

CLASSES = 16  # whose logits are resized together
LESS_MEMORY = "less_memory"  # in the metainfo of an image that asks for it


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
    """Return a mask of an array (n, H, W), whole, or of compact masks, in its box."""
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


def prepare_for_less_memory(model: Any, min_score: float | None) -> None:
    """Let the mask heads of a Mask R-CNN return a `Crop` of each object instead of a mask, and a
    segmentor return labels without logits, for images with `LESS_MEMORY` in their metainfo.

    Args:
        min_score: Score below which objects get no mask, or None for the model's own.
    """
    if hasattr(model, "postprocess_result"):
        model.postprocess_result = partial(_predict_labels, model.postprocess_result)
    if not hasattr(model, "roi_head"):
        return
    from mmdet.models.roi_heads.mask_heads import FCNMaskHead

    test_cfg = getattr(model.roi_head, "test_cfg", None)
    if test_cfg is not None and min_score is not None:
        # NMS never lets an object change one of a higher score. mmdet keeps scores above the
        # threshold, `min_score` those equal to it too.
        just_below = float(np.nextafter(np.float32(min_score), -1))
        test_cfg.score_thr = max(test_cfg.score_thr, just_below)
    for module in model.modules():
        # Subclasses with a method of their own stay.
        if getattr(type(module), "predict_by_feat", None) is FCNMaskHead.predict_by_feat:
            module.predict_by_feat = partial(_predict_crops, module.predict_by_feat)


def _predict_labels(postprocess: Any, logits: torch.Tensor, samples: list[Any]) -> list[Any]:
    """Call mmseg's `postprocess_result` for groups of classes, and keep each pixel's best class."""
    classes = logits.shape[1]
    if classes == 1 or not all(LESS_MEMORY in sample for sample in samples):
        return postprocess(logits, samples)
    # Of about equal size: mmseg takes a group of one class for a model of two.
    groups = logits.tensor_split(-(-classes // CLASSES), dim=1)
    for number, sample in enumerate(samples):
        best_scores = torch.tensor(-torch.inf, device=logits.device)
        best_labels = torch.tensor(0, device=logits.device)
        first = 0
        for group in groups:
            postprocess(group[number : number + 1], [sample])
            scores = sample.seg_logits.data.amax(dim=0, keepdim=True)
            labels = sample.pred_sem_seg.data + first
            best_labels = torch.where(scores > best_scores, labels, best_labels)
            best_scores = torch.maximum(scores, best_scores)
            first += group.shape[1]
        sample.pred_sem_seg.data = best_labels
        del sample.seg_logits
    return samples


def _predict_crops(
    predict: Any,
    mask_preds: Sequence[torch.Tensor],
    results_list: list[InstanceData],
    batch_img_metas: list[dict],
    rcnn_test_cfg: Any,
    rescale: bool = False,
    activate_map: bool = False,
) -> list[InstanceData]:
    """Call `FCNMaskHead.predict_by_feat` (`predict`) for each object, as if the image were its box,
    and set `results.masks` to crops.
    """
    options = dict(rescale=rescale, activate_map=activate_map)
    if not rescale or not all(LESS_MEMORY in meta for meta in batch_img_metas):
        return predict(mask_preds, results_list, batch_img_metas, rcnn_test_cfg, **options)
    for scores, results, meta in zip(mask_preds, results_list, batch_img_metas, strict=True):
        boxes = results.bboxes
        boxes /= boxes.new_tensor(meta["scale_factor"]).repeat((1, 2))
        image_size = boxes.new_tensor(meta["ori_shape"][1::-1])
        # Interpolation reaches one pixel beyond a box.
        corners = (boxes[:, :2].floor() - 1).clamp(min=0)
        sizes = (torch.minimum(boxes[:, 2:].ceil() + 1, image_size) - corners).clamp(min=1)
        crops = []
        for number, (corner, size) in enumerate(zip(corners, sizes, strict=True)):
            only = slice(number, number + 1)
            moved = InstanceData(bboxes=boxes[only] - corner.repeat(2), labels=results.labels[only])
            width, height = size.int().tolist()
            crop_meta = dict(ori_shape=(height, width), scale_factor=(1.0, 1.0))
            (pasted,) = predict([scores[only]], [moved], [crop_meta], rcnn_test_cfg, **options)
            left, top = corner.int().tolist()
            crops.append(Crop(left, top, pasted.masks[0].cpu().numpy()))
        results.masks = crops
    return results_list
