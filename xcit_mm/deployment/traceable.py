"""Models in a form whose traced graph takes images of any size."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from mmcv.cnn import fuse_conv_bn
from torch import Tensor, nn

from ..models.attention import XCA
from ..utils.compat import without_resize_warning

__all__ = ["BinAverage", "Enlarge", "ExportableSegmentor", "exportable"]


class ExportableSegmentor(nn.Module):
    """Compute the logits of a segmentor of mmseg for whole images, at their size, from which it takes the argmax.

    Shape: (B, C, H, W) -> (B, classes, H, W).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, image: Tensor) -> Tensor:
        with without_resize_warning():
            return self.model.encode_decode(image, [dict(img_shape=image.shape[2:])])


class BinAverage(nn.Module):
    """`nn.AdaptiveAvgPool2d` as two matrix products, which runtimes support at any size.

    Shape: (B, C, H, W) -> (B, C, rows, columns).
    """

    def __init__(self, output_size: int | tuple[int, int]) -> None:
        super().__init__()
        self.rows, self.columns = (output_size, output_size) if isinstance(output_size, int) else output_size

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        x = F.linear(x, _bins(width, self.columns, x)).transpose(2, 3)
        return F.linear(x, _bins(height, self.rows, x)).transpose(2, 3)


def _bins(length: int, count: int, like: Tensor) -> Tensor:
    """Return weights (count, length) of averages over bins: bin i is i L / C to (i + 1) L / C, rounded outwards."""
    bin_ = torch.arange(count, device=like.device)[:, None]
    entry = torch.arange(length, device=like.device)
    inside = ((bin_ * length < (entry + 1) * count) & ((bin_ + 1) * length > entry * count)).to(like.dtype)
    return inside / inside.sum(dim=1, keepdim=True)


class Enlarge(nn.Module):
    """`Upsample` of mmseg or torch by a whole number. mmseg's calls int() on a size, which makes it a constant.

    Shape: (B, C, H, W) -> (B, C, factor * H, factor * W).
    """

    def __init__(self, factor: int, mode: str, align_corners: bool | None) -> None:
        super().__init__()
        self.factor, self.mode, self.align_corners = factor, mode, align_corners

    def forward(self, x: Tensor) -> Tensor:
        size = [self.factor * length for length in x.shape[2:]]
        return F.interpolate(x, size, mode=self.mode, align_corners=self.align_corners)


def exportable(model: nn.Module) -> nn.Module:
    """Return an equivalent copy for tracing, with variable sizes, one implementation of attention, folded BatchNorm.

    An implementation of attention that the config sets is kept.
    """
    model = copy.deepcopy(model).eval()
    modules: list[Any] = list(model.modules())
    for module in modules:
        if isinstance(module, XCA) and module.implementation == "auto":
            module.implementation = "covariance"
        if hasattr(module, "fold_batch_norm"):
            module.fold_batch_norm()
        if hasattr(module, "ignore_padding"):
            module.ignore_padding = False  # an image fills its tensor
        for name, child in module.named_children():
            if isinstance(child, nn.AdaptiveAvgPool2d):
                size: Any = child.output_size
                setattr(module, name, BinAverage(size))
            elif type(child).__name__ == "Upsample" and child.scale_factor in (2.0, 4.0, 8.0):
                setattr(module, name, Enlarge(int(child.scale_factor), child.mode, child.align_corners))
    return fuse_conv_bn(model)
