"""Models in a form that can be traced to a graph for images of any size."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models import prepare_for_inference
from ..models.prepare import copy_sharing_weights
from ..utils.compat import without_resize_warning


class ExportableSegmentor(nn.Module):
    """Compute the logits of mmseg's segmentor at the size of the images.

    Shape: (B, C, H, W) -> (B, classes, H, W).
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model: Any = model
        self.outputs = ["logits"]

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits of the last head. In a cascade each head reads the one before it."""
        maps = self.model.extract_feat(image)
        inputs: list[Any] = [maps]
        *earlier, last = list_stages(self.model.decode_head)
        for head in earlier:
            inputs = [maps, head(*inputs)]
        meta = dict(img_shape=image.shape[2:])
        with without_resize_warning():
            return last.predict(*inputs, [meta], self.model.test_cfg)


def list_stages(part: Any) -> list[Any]:
    """Return the stages of a cascade's part, a module or a config, or else the part alone."""
    return list(part) if isinstance(part, nn.ModuleList | list | tuple) else [part]


class BinAverage(nn.Module):
    """`nn.AdaptiveAvgPool2d` as two matrix products, which runtimes support at any size.

    Shape: (B, C, H, W) -> (B, C, rows, columns).
    """

    def __init__(self, output_size: int | tuple[int, int]) -> None:
        super().__init__()
        size = (output_size, output_size) if isinstance(output_size, int) else output_size
        self.rows, self.columns = size

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        x = F.linear(x, _bin_weights(width, self.columns, x)).transpose(2, 3)
        return F.linear(x, _bin_weights(height, self.rows, x)).transpose(2, 3)


def _bin_weights(length: int, count: int, like: Tensor) -> Tensor:
    """Return the weights (count, length) with which adaptive pooling averages entries to bins.

    Bin i covers the length from i / count to (i + 1) / count, rounded outwards. The weights have
    the device and type of `like`.
    """
    bins = torch.arange(count, device=like.device)[:, None]
    entries = torch.arange(length, device=like.device)
    starts_before = bins * length < (entries + 1) * count
    ends_after = (bins + 1) * length > entries * count
    inside = (starts_before & ends_after).to(like.dtype)
    return inside / inside.sum(dim=1, keepdim=True)


def make_exportable(model: nn.Module) -> nn.Module:
    """Return a copy that is prepared for inference, and can be traced to one graph for all sizes.

    The copy shares the weights of the model, which stays as it is.
    """
    model = copy_sharing_weights(model).eval()
    # The detector or segmentor in an exportable, whose parts have known names.
    prepare_for_inference(getattr(model, "model", model))
    modules: list[Any] = list(model.modules())
    for module in modules:
        for name, child in module.named_children():
            if isinstance(child, nn.AdaptiveAvgPool2d):
                size: Any = child.output_size
                setattr(module, name, BinAverage(size))
            # mmseg's Upsample makes sizes constant by int().
            elif type(child).__name__ == "Upsample" and child.scale_factor:
                options = dict(mode=child.mode, align_corners=child.align_corners)
                setattr(module, name, nn.Upsample(scale_factor=child.scale_factor, **options))
    return model
