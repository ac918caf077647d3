"""Boxes of one image from the maps of mmdet's anchor heads: what mmdet computes, in a form that traces for any size."""

from typing import Any

import torch
from torch import Tensor

from .operators import nms

__all__ = ["batched_nms", "candidates", "decode", "propose"]

MAX_RATIO = 4.135166556742356  # |log(16 / 1000)|: no box is stretched further


def decode(anchors: Tensor, deltas: Tensor, coder: Any, size: tuple[int, int]) -> Tensor:
    """Boxes of a DeltaXYWHBBoxCoder.

    Args:
        anchors: (n, 4), x1, y1, x2, y2.
        deltas: (n, 4)
        coder: mmdet's, for its means, stds and whether it clips.
        size: Height and width of the image.

    Returns:
        (n, 4)
    """
    deltas = deltas * deltas.new_tensor(coder.stds) + deltas.new_tensor(coder.means)
    low, high = anchors[:, :2], anchors[:, 2:]
    center = (low + high) * 0.5 + (high - low) * deltas[:, :2]
    half = (high - low) * deltas[:, 2:].clamp(-MAX_RATIO, MAX_RATIO).exp() * 0.5
    x1, y1, x2, y2 = torch.cat([center - half, center + half], dim=1).unbind(1)
    if coder.clip_border:
        height, width = size
        x1, x2, y1, y2 = x1.clamp(0, width), x2.clamp(0, width), y1.clamp(0, height), y2.clamp(0, height)
    return torch.stack([x1, y1, x2, y2], dim=1)


def candidates(
    head: Any, maps: tuple[Tensor, ...], cfg: Any, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The best `nms_pre` pairs of anchor and class of each level of an anchor head with sigmoid scores.

    Args:
        head: mmdet's RPNHead or RetinaHead.
        maps: The features of one image, (1, C, h, w) each, padding included.
        cfg: The head's test_cfg.
        size: Height and width of the image.

    Returns:
        Boxes (n, 4); scores (n,), -1 for boxes that `min_bbox_size` leaves out; labels and levels (n,), int64.
    """
    scores, deltas = head(maps)
    if hasattr(head, "crop_to_image"):  # of an UnpaddedRPNHead
        scores, deltas = (head.crop_to_image(kind, size) for kind in (scores, deltas))
    anchors = head.prior_generator.grid_priors([level.shape[-2:] for level in scores], device=scores[0].device)
    found = []
    for level, (score, delta, anchor) in enumerate(zip(scores, deltas, anchors, strict=True)):
        # Scores of anchor 0's classes, then of anchor 1's, and so on, at one cell after the other.
        score = score[0].permute(1, 2, 0).reshape(-1).sigmoid()
        delta = delta[0].permute(1, 2, 0).reshape(-1, 4)
        count = torch.sym_min(cfg.nms_pre, score.shape[0]) if cfg.get("nms_pre", -1) > 0 else score.shape[0]
        score, index = score.topk(count)
        place = index // head.cls_out_channels
        boxes = decode(anchor[place], delta[place], head.bbox_coder, size)
        found.append((boxes, score, index % head.cls_out_channels, torch.full_like(index, level)))
    boxes, score, labels, levels = (torch.cat(parts) for parts in zip(*found, strict=True))
    if cfg.get("min_bbox_size", -1) >= 0:
        large = (boxes[:, 2:] - boxes[:, :2] > cfg.min_bbox_size).all(dim=1)
        score = score.where(large, -1.0)
    return boxes, score, labels, levels


def batched_nms(
    boxes: Tensor, scores: Tensor, groups: Tensor, iou_threshold: float, score_threshold: Tensor, max_num: int
) -> Tensor:
    """`nms` within each group (n,): as in mmcv, to its rounding, groups are shifted apart.

    Returns:
        Indices (kept,), best first.
    """
    chosen = boxes.where((scores > score_threshold)[:, None], 0.0)
    furthest = torch.cat([chosen, chosen.new_zeros(1, 4)]).amax(dim=(0, 1))  # 0 of none
    shifted = boxes + (groups.to(boxes) * (furthest + 1))[:, None]
    return nms(shifted, scores, iou_threshold, score_threshold, max_num)


def propose(head: Any, maps: tuple[Tensor, ...], size: tuple[int, int]) -> Tensor:
    """The proposals (n, 4) of an RPNHead for one image, n at most its test_cfg's `max_per_img`, best first."""
    cfg = head.test_cfg
    boxes, scores, _, levels = candidates(head, maps, cfg, size)
    everything = scores.new_full((1,), -0.5)  # that `min_bbox_size` has left in
    return boxes[batched_nms(boxes, scores, levels, cfg.nms.iou_threshold, everything, cfg.max_per_img)]
