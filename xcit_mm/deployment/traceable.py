"""Models in a form whose traced graph takes images of any size."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmcv.cnn import fuse_conv_bn
from torch import Tensor, nn

from ..models import MIN_SIZE, XCA, XCiT
from ..utils.compat import without_resize_warning


class ExportableSegmentor(nn.Module):
    """Compute the logits of a segmentor of mmseg, at the images' size, from which it takes the argmax.

    With `ignore_padding` the module pads the images itself, as mmseg's preprocessor does.

    Shape: (B, C, H, W) -> (B, classes, H, W).
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model: Any = model
        self.ignore_padding = False
        test_cfg = getattr(model.data_preprocessor, "test_cfg", None) or {}
        self.divisor = (test_cfg.get("size_divisor") or 1) if self.ignore_padding else 1

    def forward(self, image: Tensor) -> Tensor:
        height, width = image.shape[2:]
        size = (height + -height % self.divisor, width + -width % self.divisor)
        maps = extract_maps(self.model, image, size, self.ignore_padding)
        *earlier, last = stages(self.model.decode_head)
        given: tuple[Any, ...] = (maps,)
        for head in earlier:
            given = (maps, head(*given))
        with without_resize_warning():
            logits = last.predict(*given, [dict(img_shape=size)], self.model.test_cfg)
        # Not a slice, which would fix at tracing whether there is something to remove.
        return _pad(logits, (height, width)) if self.ignore_padding else logits


def stages(part: Any) -> list[Any]:
    """Return the stages of a cascade's part, or the part alone."""
    return list(part) if isinstance(part, nn.ModuleList) else [part]


def extract_maps(
    model: Any, image: Tensor, size: tuple[int, int], ignore_padding: bool, pad_value: float = 0.0
) -> tuple[Tensor, ...]:
    """Compute the maps of images (B, C, h, w) that are padded at the right and the bottom to `size`, (H, W).

    With `ignore_padding` the backbone computes on the images alone, and its maps are padded by zeros: this is
    `forward_unpadded` for a size that is known beforehand.
    """
    inner = size
    if ignore_padding:
        inner = (torch.sym_max(image.shape[2], MIN_SIZE), torch.sym_max(image.shape[3], MIN_SIZE))
    maps = model.backbone(_pad(image, inner, pad_value))
    if ignore_padding:
        patch = model.backbone.patch_size
        # Not -(side // -patch): ONNX rounds the quotient of a negative number upwards.
        whole = [(side + patch - 1) // patch * patch for side in size]
        sizes = ([side // stride for side in whole] for stride in model.backbone.strides)
        maps = tuple(map(_pad, maps, sizes))
    return model.neck(maps) if model.with_neck else maps


def _pad(x: Tensor, size: Sequence[int], value: float = 0.0) -> Tensor:
    """Pad or crop maps (B, C, h, w) at the right and the bottom to `size`, (H, W)."""
    return F.pad(x, (0, size[1] - x.shape[3], 0, size[0] - x.shape[2]), value=value)


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
        if isinstance(module, XCiT):
            pass
        for name, child in module.named_children():
            if isinstance(child, nn.AdaptiveAvgPool2d):
                size: Any = child.output_size
                setattr(module, name, BinAverage(size))
            elif type(child).__name__ == "Upsample" and child.scale_factor in (2.0, 4.0, 8.0):
                setattr(module, name, Enlarge(int(child.scale_factor), child.mode, child.align_corners))
    return fuse_conv_bn(model)
