"""Non-maximum suppression, hard and soft, with the results of mmcv's compiled operators."""

import numpy as np
import torch
from torch import Tensor


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int = 0) -> Tensor:
    """Return the indices of the boxes that do not overlap a better box.

    Args:
        boxes: (n, 4), x1, y1, x2, y2 in pixels.
        scores: (n,)
        iou_threshold: A box is dropped if its intersection over union with a better box is larger.
        offset: 1 if x2 and y2 are the last pixels of the box, 0 if they are its border.

    Returns:
        (kept,), int64, by descending score.
    """
    order = scores.sort(descending=True).indices
    corners = _columns(boxes[order])
    index = np.arange(len(order))
    kept = []
    while len(index):
        kept.append(int(index[0]))
        free = ~(_iou(corners[:, :1], corners[:, 1:], offset) > iou_threshold)
        corners, index = corners[:, 1:][:, free], index[1:][free]
    return order[kept]


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
        boxes, scores, offset: See `nms`.
        iou_threshold: Overlap from which methods 0 and 1 lower a score.
        sigma: Width of the Gaussian of method 2.
        min_score: A box whose lowered score is smaller is dropped.
        method: 0 sets the score to 0, 1 multiplies it by 1 - IoU, 2 by exp(-IoU^2 / sigma).

    Returns:
        Boxes with their scores (kept, 5), float32, in the order in which they were chosen, and their indices (kept,).
    """
    table = _columns(torch.cat([boxes, scores[:, None]], dim=1)).astype(np.float32)
    index = np.arange(table.shape[1])
    chosen = 0
    while chosen < len(index):
        best = chosen + int(table[4, chosen:].argmax())
        for array in (table, index):  # mmcv swaps, which decides between ties
            array[..., [chosen, best]] = array[..., [best, chosen]]
        others = table[:, chosen + 1 :]
        iou = _iou(table[:4, chosen, None], others[:4], offset)
        hard = np.where(iou >= np.float32(iou_threshold), 0 if method == 0 else 1 - iou, np.float32(1))
        others[4] *= np.exp(-(iou * iou) / np.float32(sigma)) if method == 2 else hard
        chosen += 1
        dropped = others[4] < min_score
        # The last of the kept boxes fill the gaps, as in mmcv.
        kept = np.flatnonzero(~dropped)
        gaps = np.flatnonzero(dropped[: len(kept)])
        order = np.arange(len(kept))
        order[gaps] = kept[len(kept) - len(gaps) :][::-1]
        order = np.concatenate([np.arange(chosen), chosen + order])
        table, index = table[:, order], index[order]
    return torch.from_numpy(table.T.copy()), torch.from_numpy(index)


def _columns(boxes: Tensor) -> np.ndarray:
    return boxes.detach().to("cpu", torch.promote_types(boxes.dtype, torch.float32)).T.contiguous().numpy()


def _iou(a: np.ndarray, b: np.ndarray, offset: int) -> np.ndarray:
    """Return the intersection over union of boxes (4, 1) and (4, n), 0 for two boxes without area."""
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = a, b
    width = np.minimum(ax2, bx2) - np.maximum(ax1, bx1) + offset
    height = np.minimum(ay2, by2) - np.maximum(ay1, by1) + offset
    intersection = width.clip(min=0) * height.clip(min=0)
    areas = (ax2 - ax1 + offset) * (ay2 - ay1 + offset) + (bx2 - bx1 + offset) * (by2 - by1 + offset)
    union = areas - intersection
    return np.divide(intersection, union, out=np.zeros_like(union), where=union != 0)
