"""Non-maximum suppression in torch, with the results of mmcv's compiled operators."""

import numpy as np
import torch
from torch import Tensor

BLOCK = 256  # boxes to compare with the kept boxes at a time
MAX_ROUNDS = 16  # of `_first_of_overlapping`, before a block is decided box by box


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int = 0) -> Tensor:
    """Return the indices of the boxes that do not overlap a better box.

    Boxes are compared in blocks, best first: with the boxes kept so far, then within the block. The time grows with
    boxes times kept boxes, and the memory with the kept boxes alone.

    Args:
        boxes: (n, 4), x1, y1, x2, y2 in pixels.
        scores: (n,)
        iou_threshold: A box is dropped if its intersection over union with a better box is larger.
        offset: 1 if x2 and y2 are the last pixels of the box, 0 if they are its border.

    Returns:
        (kept,), int64, by descending score.
    """
    order = scores.sort(descending=True).indices
    corners = boxes[order].to(torch.promote_types(boxes.dtype, torch.float32)).T.contiguous()
    kept = corners[:, :0]
    indices = []
    for start in range(0, len(order), BLOCK):
        block, index = corners[:, start : start + BLOCK], order[start : start + BLOCK]
        free = ~(_iou(kept, block, offset) > iou_threshold).any(0)
        block, index = block[:, free], index[free]
        chosen = _first_of_overlapping(_iou(block, block, offset) > iou_threshold)
        kept = torch.cat([kept, block[:, chosen]], dim=1)
        indices.append(index[chosen])
    return torch.cat(indices) if indices else order


def _first_of_overlapping(overlaps: Tensor) -> Tensor:
    """Return the mask (n,) of the boxes that do not overlap a chosen box before them, from a matrix (n, n).

    The number of rounds is the length of the longest chain of overlaps, which is short except for rows of objects.
    """
    overlaps = overlaps.triu(1)
    chosen = ~overlaps.any(0)
    for _ in range(MAX_ROUNDS):
        updated = ~(overlaps & chosen[:, None]).any(0)
        if torch.equal(updated, chosen):
            return chosen
        chosen = updated
    later = overlaps.cpu().numpy()
    free = np.ones(len(later), bool)
    for n, overlapped in enumerate(later):
        if free[n]:
            free &= ~overlapped
    return torch.from_numpy(free).to(overlaps.device)


def _iou(a: Tensor, b: Tensor, offset: int) -> Tensor:
    """Return the intersection over union (n, m) of boxes (4, n) and (4, m), NaN for two boxes without area."""
    ax1, ay1, ax2, ay2 = a[:, :, None]
    bx1, by1, bx2, by2 = b[:, None, :]
    # In place, since memory traffic takes most of the time.
    width = torch.minimum(ax2, bx2).sub_(torch.maximum(ax1, bx1)).add_(offset).clamp_(min=0)
    height = torch.minimum(ay2, by2).sub_(torch.maximum(ay1, by1)).add_(offset).clamp_(min=0)
    intersection = width.mul_(height)
    area_a, area_b = (ax2 - ax1 + offset) * (ay2 - ay1 + offset), (bx2 - bx1 + offset) * (by2 - by1 + offset)
    union = torch.add(area_a, area_b, out=height).sub_(intersection)
    return intersection.div_(union)


def soft_nms(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int = 0,
) -> tuple[Tensor, Tensor]:
    """Lower the scores of boxes that overlap better boxes ("Soft-NMS", arXiv 1704.04503).

    Args:
        boxes: (n, 4), x1, y1, x2, y2 in pixels, finite.
        scores: (n,), finite.
        iou_threshold: Overlap from which methods 0 and 1 lower a score.
        sigma: Width of the Gaussian of method 2.
        min_score: A box whose lowered score is smaller is dropped.
        method: 0 sets the score to 0, 1 multiplies it by 1 - IoU, 2 by exp(-IoU^2 / sigma).
        offset: See `nms`.

    Returns:
        Boxes with their scores (kept, 5), float32, in the order in which they were chosen, and their indices (kept,).
    """
    columns = torch.cat([boxes, scores[:, None]], dim=1).detach().cpu().float().T.numpy().copy()
    index = np.arange(columns.shape[1])
    chosen = 0
    while chosen < len(index):
        best = chosen + int(np.nan_to_num(columns[4, chosen:], nan=-np.inf, posinf=np.inf).argmax())
        for table in (columns, index):
            table[..., [chosen, best]] = table[..., [best, chosen]]
        remaining = columns[:, chosen + 1 :]
        remaining[4] *= _decay(columns[:4, chosen, None], remaining[:4], iou_threshold, sigma, method, offset)
        chosen += 1
        dropped = remaining[4] < min_score
        if dropped.any():
            order = np.concatenate([np.arange(chosen), chosen + _close_gaps(dropped)])
            columns, index = columns[:, order], index[order]
    return torch.from_numpy(columns.T.copy()), torch.from_numpy(index)


def _decay(
    box: np.ndarray, remaining: np.ndarray, iou_threshold: float, sigma: float, method: int, offset: int
) -> np.ndarray:
    """Return the factors (n,) for the scores of boxes (4, n) beside a chosen box (4, 1)."""
    x1, y1, x2, y2 = remaining
    width = np.minimum(box[2], x2) - np.maximum(box[0], x1) + offset
    height = np.minimum(box[3], y2) - np.maximum(box[1], y1) + offset
    intersection = width.clip(min=0) * height.clip(min=0)
    area = (box[2] - box[0] + offset) * (box[3] - box[1] + offset)
    with np.errstate(invalid="ignore"):  # 0 / 0 of two boxes without area is NaN, and lowers no score
        iou = intersection / (area + (x2 - x1 + offset) * (y2 - y1 + offset) - intersection)
    if method == 2:
        return np.exp(-(iou * iou) / np.float32(sigma))
    return np.where(iou >= np.float32(iou_threshold), 0 if method == 0 else 1 - iou, np.float32(1))


def _close_gaps(dropped: np.ndarray) -> np.ndarray:
    """Return the order of the kept boxes, in which the last fill the gaps, as in mmcv. It decides between ties."""
    kept = np.flatnonzero(~dropped)
    gaps = np.flatnonzero(dropped[: len(kept)])
    order = np.arange(len(kept))
    order[gaps] = kept[len(kept) - len(gaps) :][::-1]
    return order
