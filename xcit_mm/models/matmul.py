"""Linear layers and transposed convolutions by faster products of matrices.

`FastLinear` and `linear_by_image` multiply float32 in inference on a CPU by oneDNN. torch itself
uses MKL, which needs twice the time on AMD's processors with AVX512. Elsewhere, with gradients, in
half precision and while a model is traced, they call torch's own functions.

`upsample` is a transposed convolution as a product. The results are those of torch to rounding.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual

from ..utils.compat import autocast_dtype, has_hooks, is_compiling, is_exporting, onednn_linear

# Positions of a map that `upsample` computes at a time.
CPU_POSITIONS = 512
GPU_POSITIONS = 32768


def is_traced() -> bool:
    """Return whether torch compiles, exports or traces: a graph must fit other sizes too."""
    return is_compiling() or torch.jit.is_tracing()


def is_exported() -> bool:
    """Return whether torch exports or traces a graph, which may run elsewhere and in float16."""
    return is_exporting() or torch.jit.is_tracing()


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which torch multiplies a tensor by a weight.

    Autocast may lower it, but leaves float64 alone.
    """
    device = x.device.type
    if device == "meta" or x.dtype == torch.float64:
        return x.dtype
    return autocast_dtype(device) or x.dtype


@cache
def has_slow_mkl() -> bool:
    """Return whether oneDNN multiplies float32 faster than MKL: on AMD's processors with AVX512."""
    if not (hasattr(torch.cpu, "get_capabilities") and torch.backends.mkldnn.is_available()):
        return False
    capabilities = torch.cpu.get_capabilities()
    is_amd = str(capabilities.get("cpu_name", "")).startswith("AMD")
    return is_amd and bool(capabilities.get("avx512_f"))


def uses_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether to multiply by oneDNN: float32 in inference where MKL is slow."""
    if torch.is_grad_enabled() or is_traced() or not x.is_cpu or x.numel() == 0:
        return False
    if not x.dtype == weight.dtype == product_dtype(x) == torch.float32:
        return False
    if unpack_dual(x).tangent is not None:  # of forward-mode derivatives
        return False
    # A quantized weight is a tensor of another class.
    return type(weight) in (Tensor, nn.Parameter) and has_slow_mkl()


class FastLinear(nn.Linear):
    """`nn.Linear`, by oneDNN where MKL is slow.

    Code that looks for the class `nn.Linear` alone, such as torch's `quantize_dynamic`, leaves
    these layers out. Give the class back first:

        for layer in model.modules():
            if type(layer) is FastLinear:
                layer.__class__ = nn.Linear
    """

    def forward(self, input: Tensor) -> Tensor:
        if uses_onednn(input, self.weight):
            return onednn_linear(input, self.weight, self.bias)
        return F.linear(input, self.weight, self.bias)


def linear_by_image(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `F.linear` with a weight (B, O, C) and a bias (B, O) of each image.

    Args:
        x: (B, N, C), or (N, C) for all images if there is no bias.
    """
    if uses_onednn(x, weight) and len(weight):  # len() fixes the batch of a trace
        products = []
        for image in range(len(weight)):
            tokens = x if x.ndim == 2 else x[image]
            offset = None if bias is None else bias[image]
            products.append(onednn_linear(tokens, weight[image], offset))
        return torch.stack(products)
    matrices = weight.transpose(1, 2).to(x.dtype)
    if bias is None:
        return x @ matrices
    return torch.baddbmm(bias.unsqueeze(1).to(x.dtype), x, matrices)


def is_unmodified(layer: nn.Module) -> bool:
    """Return whether the parameters of XCA or a transposed convolution alone give its results.

    Adapters such as LoRA, quantized and parametrized layers are of other classes. Pruning is a
    hook.
    """
    plain = nn.Linear, FastLinear, nn.Dropout
    if any(type(part) not in plain for part in layer.children()):
        return False
    lacks_bias = any(getattr(part, "bias", 0) is None for part in layer.modules())
    return not lacks_bias and has_own_parameters(layer)


def has_own_parameters(layer: nn.Module) -> bool:
    """Return whether a layer has no hooks, and parameters of torch's own class."""
    # A tracer replaces parameters by its own tensors.
    is_own = is_traced() or all(type(parameter) is nn.Parameter for parameter in layer.parameters())
    return is_own and not has_hooks(layer)


def upsample(conv: Any, x: Tensor) -> Tensor:
    """Compute a 2x2 stride-2 transposed convolution of a map (B, C, h, w) by products.

    Without gradients it computes a few rows at a time, so that the values before their ordering by
    place take little memory.
    """
    is_plain = not is_traced() and is_unmodified(conv)
    if not is_plain or conv.weight.is_contiguous(memory_format=torch.channels_last):
        return nn.ConvTranspose2d.forward(conv, x)
    dtype = product_dtype(x)
    x = x.to(dtype)
    batch, _, height, width = x.shape
    channels = conv.weight.shape[1]
    matrix = conv.weight.to(dtype).flatten(1).T.expand(batch, -1, -1)  # (B, channels * 2 * 2, C)
    offset = conv.bias.to(dtype).repeat_interleave(4)[:, None]

    def upsample_rows(rows: Tensor) -> Tensor:
        """Map rows (B, C, n, w) to the four values of each cell, (B, channels, n, 2, w, 2)."""
        product = torch.baddbmm(offset, matrix, rows.flatten(2))
        cells = product.view(batch, channels, 2, 2, rows.shape[2], width)
        return cells.permute(0, 1, 4, 2, 5, 3)

    if torch.is_grad_enabled():
        out = upsample_rows(x)
    else:
        positions = CPU_POSITIONS if x.is_cpu else GPU_POSITIONS
        length = max(1, positions // width)
        out = x.new_empty(batch, channels, height, 2, width, 2)
        for rows, values in zip(x.split(length, 2), out.split(length, 2), strict=True):
            values.copy_(upsample_rows(rows))
    return out.reshape(batch, channels, 2 * height, 2 * width)
