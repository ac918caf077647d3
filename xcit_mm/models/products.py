"""Products of float32 in inference at the rate of the processor.

torch multiplies float32 on a CPU by MKL, alone. oneDNN is faster on AMD's processors with AVX512,
applies GELU or adds a residual inside a product or a convolution, so that the result is in memory
once, and has a faster order of the weights in memory. Each function returns what torch's own
returns, to rounding; with gradients, in half precision, while a model is traced and on a GPU it
calls torch's own.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..utils.compat import onednn_conv, onednn_linear, onednn_order

# Rows from which a product gains more than ordering its weight costs, measured for 196 to 4200.
MANY_ROWS = 2048


def is_traced() -> bool:
    """Return whether torch compiles, exports or traces: the graph must serve other sizes too."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which torch multiplies a tensor by a weight, which autocast may lower."""
    device = x.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


@cache
def has_slow_mkl() -> bool:
    """Return whether oneDNN multiplies float32 faster than MKL: on AMD's processors with AVX512."""
    if not (hasattr(torch.cpu, "get_capabilities") and torch.backends.mkldnn.is_available()):
        return False
    capabilities = torch.cpu.get_capabilities()
    is_amd = str(capabilities.get("cpu_name", "")).startswith("AMD")
    return is_amd and bool(capabilities.get("avx512_f"))


def allows_onednn(x: Tensor) -> bool:
    """Return whether oneDNN may compute a layer of a tensor: float32 on a CPU, in inference."""
    if torch.is_grad_enabled() or is_traced() or not x.is_cpu or x.numel() == 0:
        return False
    return x.dtype == product_dtype(x) == torch.float32 and torch.backends.mkldnn.is_available()


def uses_onednn(x: Tensor) -> bool:
    """Return whether to multiply a tensor by oneDNN alone: where it may, and MKL is slow."""
    return allows_onednn(x) and has_slow_mkl()


class FastLinear(nn.Linear):
    """`nn.Linear` computed by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def order_weight(weight: Tensor, x: Tensor) -> Tensor:
    """Order a weight in memory for products with many rows of `x`, if oneDNN computes them.

    Only the functions of this file read the result.
    """
    rows = x[..., 0].numel()
    if rows >= MANY_ROWS and allows_onednn(x) and weight.dtype == torch.float32:
        return onednn_order(weight)
    return weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `F.linear`, by oneDNN where MKL is slower."""
    if uses_onednn(x) and weight.dtype == torch.float32:
        return onednn_linear(x, weight, bias)
    return F.linear(x, weight, bias)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute the exact GELU of `F.linear`, inside the product where oneDNN computes it."""
    if allows_onednn(x) and weight.dtype == torch.float32:
        return onednn_linear(x, weight, bias, "gelu")
    return F.gelu(F.linear(x, weight, bias))


def linear_add(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    """Compute `residual` plus `F.linear`, inside the product where oneDNN computes it."""
    if allows_onednn(x) and weight.dtype == torch.float32:
        return onednn_linear(x, weight, bias, residual=residual)
    return residual + F.linear(x, weight, bias)


def conv_gelu(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """Compute the exact GELU of a convolution. oneDNN applies it inside the convolution."""
    if allows_onednn(x):
        return onednn_conv(conv, x, "gelu")
    return F.gelu(nn.Conv2d.forward(conv, x))


def linear_by_image(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """Compute `F.linear` with a weight (B, O, C) and a bias (B, O) of each image, plus a residual.

    Args:
        x: (B, N, C), or (N, C) for all images.
        residual: (B, N, O).
    """
    is_fused = allows_onednn(x) and residual is not None
    if is_fused or (uses_onednn(x) and len(weight)):  # len() fixes the batch of a trace
        products = []
        for image in range(len(weight)):
            product = onednn_linear(
                x if x.ndim == 2 else x[image],
                weight[image],
                None if bias is None else bias[image],
                residual=None if residual is None else residual[image],
            )
            products.append(product)
        return products[0][None] if len(products) == 1 else torch.stack(products)
    matrices = weight.transpose(1, 2).to(x.dtype)
    if bias is None:
        product = x @ matrices
    else:
        product = torch.baddbmm(bias.unsqueeze(1).to(x.dtype), x, matrices)
    return product if residual is None else residual + product
