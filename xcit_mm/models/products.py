"""Products of float32 in inference at the rate of the processor.

torch multiplies float32 on a CPU by MKL alone, though oneDNN takes half the time on AMD's
processors with AVX512. Elsewhere, with gradients, in half precision and while a model is traced,
the functions call torch's own. The results are the same to rounding.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..utils.compat import (
    autocast_dtype,
    is_compiling,
    is_exporting,
    is_transformed,
    onednn_linear,
)


def is_traced() -> bool:
    """Return whether torch traces a graph for other sizes, or adds dimensions to an image.

    Compiling, exporting and tracing make such a graph. torch.func adds dimensions, as in vmap.
    """
    return is_compiling() or torch.jit.is_tracing() or is_transformed()


def is_exported() -> bool:
    """Return whether torch exports or traces: the graph may run elsewhere, and in float16."""
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
    # A quantized or sparse weight is a tensor of another class or layout.
    is_plain = type(weight) in (Tensor, nn.Parameter) and weight.layout == torch.strided
    return is_plain and has_slow_mkl()


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
        x: (B, N, C), or (N, C) for all images.
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
