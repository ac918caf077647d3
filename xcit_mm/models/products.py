"""Products of float32 in inference at the rate of the processor.

torch multiplies float32 on a CPU by MKL alone, though oneDNN takes half the time on AMD's
processors with AVX512. Elsewhere, with gradients, in half precision and while a model is traced,
the functions call torch's own. The results are the same to rounding.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..utils.compat import autocast_dtype, is_compiling, onednn_linear


def is_traced() -> bool:
    """Return whether torch compiles, exports or traces: the graph must serve other sizes too."""
    return is_compiling() or torch.jit.is_tracing()


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which torch multiplies a tensor by a weight, which autocast may lower."""
    device = x.device.type
    return x.dtype if device == "meta" else autocast_dtype(device) or x.dtype


@cache
def has_slow_mkl() -> bool:
    """Return whether oneDNN multiplies float32 faster than MKL: on AMD's processors with AVX512."""
    if not (hasattr(torch.cpu, "get_capabilities") and torch.backends.mkldnn.is_available()):
        return False
    capabilities = torch.cpu.get_capabilities()
    is_amd = str(capabilities.get("cpu_name", "")).startswith("AMD")
    return is_amd and bool(capabilities.get("avx512_f"))


def uses_onednn(x: Tensor) -> bool:
    """Return whether to multiply a tensor by oneDNN: float32 in inference where MKL is slow."""
    if torch.is_grad_enabled() or is_traced() or not x.is_cpu or x.numel() == 0:
        return False
    return x.dtype == product_dtype(x) == torch.float32 and has_slow_mkl()


class FastLinear(nn.Linear):
    """`nn.Linear`, by oneDNN where MKL is slow."""

    def forward(self, input: Tensor) -> Tensor:
        if uses_onednn(input) and self.weight.dtype == torch.float32:
            return onednn_linear(input, self.weight, self.bias)
        return F.linear(input, self.weight, self.bias)


def linear_by_image(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `F.linear` with a weight (B, O, C) and a bias (B, O) of each image.

    Args:
        x: (B, N, C), or (N, C) for all images.
    """
    if uses_onednn(x) and len(weight):  # len() fixes the batch of a trace
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
