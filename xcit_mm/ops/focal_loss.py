"""Sigmoid focal loss of hard labels and its gradient (arXiv 1708.02002), as mmcv computes them on a GPU."""

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["sigmoid_focal_loss", "sigmoid_focal_loss_backward"]


def _true_class(logits: Tensor, labels: Tensor) -> Tensor:
    """Mask (n, classes) of each row's own class; a label that is no class, such as the background's, has none."""
    return labels[:, None] == torch.arange(logits.shape[1], device=logits.device)


def sigmoid_focal_loss(logits: Tensor, labels: Tensor, gamma: float, alpha: float) -> Tensor:
    """Return the loss of each logit.

    Args:
        logits: (n, classes)
        labels: (n,), int64, from 0; `classes` is the background.
        gamma: How much less a logit counts that is right already.
        alpha: Weight of the true class; the other classes have 1 - alpha.

    Returns:
        (n, classes)
    """
    # The probability of the wrong answer and the log of the right one's, of logits that count for their class.
    true = _true_class(logits, labels)
    signed = torch.where(true, logits, -logits)
    return -torch.where(true, alpha, 1 - alpha) * signed.neg().sigmoid().pow(gamma) * F.logsigmoid(signed)


def sigmoid_focal_loss_backward(logits: Tensor, labels: Tensor, gamma: float, alpha: float) -> Tensor:
    """Return the derivative of each loss of `sigmoid_focal_loss` by its logit, (n, classes)."""
    true = _true_class(logits, labels)
    signed = torch.where(true, logits, -logits)
    right, wrong = signed.sigmoid(), signed.neg().sigmoid()
    slope = wrong.pow(gamma) * (gamma * right * F.logsigmoid(signed) - wrong)
    return torch.where(true, alpha * slope, (alpha - 1) * slope)
