"""Feature maps of strides 4, 8, 16 and 32, as an FPN expects, from feature maps of one stride."""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .chunks import in_chunks
from .norms import build_norm

STRIDES = (4, 8, 16, 32)


class Upsample2x(nn.ConvTranspose2d):
    """2x2 stride-2 transposed convolution, computed as one matrix product in which each cell becomes four.

    As with every convolution of torch, the output is in the channels-last layout if the weight is.

    Shape: (B, C, h, w) -> (B, C, 2h, 2w).
    """

    bias: nn.Parameter

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # without output_size
        if torch.compiler.is_dynamo_compiling():
            return super().forward(x)  # Inductor fuses neither product nor copy, and takes a quarter longer with them
        batch, channels, height, width = x.shape
        if not self.weight.is_contiguous():
            weight = self.weight.permute(2, 3, 1, 0).flatten(0, 2).to(x.dtype)  # (2 * 2 * C, C), copied and cast once
            bias = self.bias.repeat(4).to(x.dtype)
            cells = in_chunks(self, partial(_split_last, weight, bias), x.permute(0, 2, 3, 1))
            return cells.reshape(batch, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)
        weight = self.weight.flatten(1).T.contiguous().to(x.dtype)  # (C * 2 * 2, C)
        bias = self.bias.repeat_interleave(4)[:, None].to(x.dtype)
        cells = in_chunks(self, partial(_split_first, weight, bias), x, dim=2)
        return cells.reshape(batch, channels, 2 * height, 2 * width)


# Both return a view, which is copied once, to its place in the map. pixel_shuffle is 3 times slower on a CPU.


def _split_first(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """Return the cells (B, C, h, 2, w, 2) of a map (B, C, h, w)."""
    # Not unflatten, whose sizes TorchScript's exporter to ONNX takes for constants.
    batch, channels, height, width = x.shape
    cells = torch.baddbmm(bias, weight.expand(batch, -1, -1), x.flatten(2))
    return cells.view(batch, channels, 2, 2, height, width).permute(0, 1, 4, 2, 5, 3)


def _split_last(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """Return the cells (B, h, 2, w, 2, C) of a channels-last map (B, h, w, C)."""
    batch, height, width, channels = x.shape
    return F.linear(x, weight, bias).view(batch, height, width, 2, 2, channels).permute(0, 1, 3, 2, 4, 5)


def pyramid_levels(channels: int, patch_size: int, strides: Sequence[int], norm_cfg: dict) -> dict[str, nn.Sequential]:
    """Build modules that bring feature maps of stride `patch_size` to the given strides.

    A level upsamples by 2x2 stride-2 transposed convolutions, with BatchNorm and GELU between two of them, or
    downsamples by max-pooling (paper, section 4.2 and appendix B.2). The keys, 'fpn1' for stride 4 to 'fpn4' for 32,
    and the positions within a level are the published parameter names. The levels serve any backbone whose feature
    maps have one stride: `nn.ModuleDict(pyramid_levels(...))`.

    Shape of a level: (B, channels, h, w) -> (B, channels, h * r, w * r), with r = patch_size / stride, rounded down
    where r < 1.

    Args:
        patch_size: Stride of the input maps in pixels, a power of two.
        strides: Strides of the levels, from `STRIDES`.
    """
    levels = {}
    for stride in strides:
        name, level = f"fpn{1 + STRIDES.index(stride)}", nn.Sequential()
        if stride > patch_size:
            level.append(nn.MaxPool2d(stride // patch_size))
        while stride < patch_size:
            if len(level):
                level.append(build_norm(norm_cfg, channels))
                level.append(nn.GELU())
            level.append(Upsample2x(channels))
            stride *= 2
        levels[name] = level
    return levels
