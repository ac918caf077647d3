"""Sigmoid focal loss of integer labels and its gradient (arXiv 1708.02002), as mmcv computes them on a GPU."""

import torch
from torch import Tensor
from torch.nn import functional as F


def _signed(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mask (n, classes) of each row's own class, and the logits with the sign of the right answer.

    A label beyond the classes, such as the background's, has no class.
    """
    true = labels[:, None] == torch.arange(logits.shape[1], device=logits.device)
    return true, torch.where(true, logits, -logits)


def sigmoid_focal_loss(logits: Tensor, labels: Tensor, gamma: float, alpha: float) -> Tensor:
    """Compute the loss of each logit.

    Args:
        logits: (n, classes)
        labels: (n,), int64, from 0; `classes` is the background.
        gamma: Exponent that reduces the weight of a logit that is right already.
        alpha: Weight of the true class; the other classes have 1 - alpha.

    Returns:
        (n, classes)
    """
    true, signed = _signed(logits, labels)
    return -torch.where(true, alpha, 1 - alpha) * signed.neg().sigmoid().pow(gamma) * F.logsigmoid(signed)


def sigmoid_focal_loss_backward(logits: Tensor, labels: Tensor, gamma: float, alpha: float) -> Tensor:
    """Compute the derivative of each loss of `sigmoid_focal_loss` with respect to its logit, (n, classes)."""
    true, signed = _signed(logits, labels)
    right, wrong = signed.sigmoid(), signed.neg().sigmoid()
    slope = wrong.pow(gamma) * (gamma * right * F.logsigmoid(signed) - wrong)
    return torch.where(true, alpha * slope, (alpha - 1) * slope)
