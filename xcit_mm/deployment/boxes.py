"""Boxes of one image from the maps of mmdet's anchor heads, as mmdet computes them, traceable for any size."""

from typing import Any

import torch
from torch import Tensor

from .operators import nms

__all__ = ["batched_nms", "candidates", "decode", "propose"]

MAX_LOG_RATIO = 4.135166556742356  # |log(16 / 1000)|, the limit of scaling a side


def decode(anchors: Tensor, deltas: Tensor, coder: Any, size: tuple[int, int]) -> Tensor:
    """Decode boxes as a DeltaXYWHBBoxCoder does.

    Args:
        anchors: (n, 4), x1, y1, x2, y2.
        deltas: (n, 4)
        coder: mmdet's coder, with means, stds and `clip_border`.
        size: Height and width of the image.

    Returns:
        (n, 4)
    """
    deltas = deltas * deltas.new_tensor(coder.stds) + deltas.new_tensor(coder.means)
    low, high = anchors[:, :2], anchors[:, 2:]
    center = (low + high) * 0.5 + (high - low) * deltas[:, :2]
    half = (high - low) * deltas[:, 2:].clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp() * 0.5
    x1, y1, x2, y2 = torch.cat([center - half, center + half], dim=1).unbind(1)
    if coder.clip_border:
        height, width = size
        x1, x2, y1, y2 = x1.clamp(0, width), x2.clamp(0, width), y1.clamp(0, height), y2.clamp(0, height)
    return torch.stack([x1, y1, x2, y2], dim=1)


def candidates(
    head: Any, maps: tuple[Tensor, ...], cfg: Any, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the best `nms_pre` pairs of anchor and class of each level of an anchor head with sigmoid scores.

    Args:
        head: mmdet's RPNHead or RetinaHead.
        maps: Feature maps of one image with its padding, (1, C, h, w) each.
        cfg: The head's test_cfg.
        size: Height and width of the image.

    Returns:
        Boxes (n, 4); scores (n,), -1 for boxes smaller than `min_bbox_size`; labels and levels (n,), int64.
    """
    scores, deltas = head(maps)
    if hasattr(head, "crop_to_image"):  # of an UnpaddedRPNHead
        scores, deltas = (head.crop_to_image(kind, size) for kind in (scores, deltas))
    anchors = head.prior_generator.grid_priors([level.shape[-2:] for level in scores], device=scores[0].device)
    found = []
    for level, (score, delta, anchor) in enumerate(zip(scores, deltas, anchors, strict=True)):
        # Ordered by cell, then by anchor, then by class.
        score = score[0].permute(1, 2, 0).reshape(-1).sigmoid()
        delta = delta[0].permute(1, 2, 0).reshape(-1, 4)
        count = torch.sym_min(cfg.nms_pre, score.shape[0]) if cfg.get("nms_pre", -1) > 0 else score.shape[0]
        score, index = score.topk(count)
        cell = index // head.cls_out_channels
        boxes = decode(anchor[cell], delta[cell], head.bbox_coder, size)
        found.append((boxes, score, index % head.cls_out_channels, torch.full_like(index, level)))
    boxes, score, labels, levels = (torch.cat(parts) for parts in zip(*found, strict=True))
    if cfg.get("min_bbox_size", -1) >= 0:
        large = (boxes[:, 2:] - boxes[:, :2] > cfg.min_bbox_size).all(dim=1)
        score = score.where(large, -1.0)
    return boxes, score, labels, levels


def batched_nms(
    boxes: Tensor, scores: Tensor, groups: Tensor, iou_threshold: float, score_threshold: Tensor, max_num: int
) -> Tensor:
    """Apply `nms` within each group (n,), by shifting groups apart as mmcv does, with its rounding.

    Returns:
        Indices (kept,), best first.
    """
    chosen = boxes.where((scores > score_threshold)[:, None], 0.0)
    furthest = torch.cat([chosen, chosen.new_zeros(1, 4)]).amax(dim=(0, 1))  # 0 if there is none
    shifted = boxes + (groups.to(boxes) * (furthest + 1))[:, None]
    return nms(shifted, scores, iou_threshold, score_threshold, max_num)


def propose(head: Any, maps: tuple[Tensor, ...], size: tuple[int, int]) -> Tensor:
    """Return an RPNHead's proposals (n, 4) for one image, best first, at most `max_per_img` of its test_cfg."""
    cfg = head.test_cfg
    boxes, scores, _, levels = candidates(head, maps, cfg, size)
    score_threshold = scores.new_full((1,), -0.5)  # excludes boxes smaller than `min_bbox_size`
    return boxes[batched_nms(boxes, scores, levels, cfg.nms.iou_threshold, score_threshold, cfg.max_per_img)]
