"""Layers of `xcit` in less time and memory, with the same results to rounding.

Each function takes a layer of `xcit` and returns what its plain code returns:

- `covariance_attention`: XCA from the covariance of the tokens, without queries, keys and values.
- `in_rows`: LPI and MLP in inference, a few rows of a large map at a time, so that their wide
  intermediate maps stay in the cache and are never in memory as a whole.
- `upsample`: a transposed convolution as one matrix product.

`is_unmodified` decides where they are allowed.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..utils.compat import BatchNorm, has_hooks
from .base import keep_valid
from .products import (
    FastLinear,
    conv_gelu,
    is_traced,
    linear,
    linear_add,
    linear_by_image,
    linear_gelu,
    order_weight,
    product_dtype,
    uses_onednn,
)

IMPLEMENTATIONS = ("auto", "plain", "covariance")  # of the attention
# Tokens per channel from which the covariance is faster, measured on CPUs by MKL and by oneDNN, C
# from 128 to 768.
FLOAT32_RATIO = 2
BFLOAT16_RATIO = 3
# Values of the tokens from which it is faster on an H100, C from 128 to 768: its small products
# take as long for fewer.
GPU_VALUES = 5_000_000
# Positions of a map that `in_rows` computes at a time, measured.
CPU_POSITIONS = 1024
GPU_POSITIONS = 65536
PLAIN_TYPES = (nn.Linear, FastLinear, nn.Conv2d, nn.GELU, nn.Dropout)


def is_unmodified(layer: nn.Module) -> bool:
    """Return whether a layer is unmodified: its parameters alone determine its results.

    Adapters such as LoRA, quantized and parametrized layers are of other classes. Pruning is a
    hook.
    """
    for part in layer.children():
        if not isinstance(part, BatchNorm) and type(part) not in PLAIN_TYPES:
            return False
        if type(part) is nn.GELU and part.approximate != "none":
            return False
        if type(part) is nn.Conv2d:  # the halo of `in_rows` is that of two 3x3 convolutions
            options = part.kernel_size, part.dilation, part.padding, part.padding_mode
            if options != ((3, 3), (1, 1), (1, 1), "zeros"):
                return False
    lacks_bias = any(hasattr(part, "bias") and part.bias is None for part in layer.modules())
    return not lacks_bias and has_own_parameters(layer)


def has_own_parameters(layer: nn.Module) -> bool:
    """Return whether a layer has no hooks, and parameters of torch's own class."""
    # A tracer replaces parameters by its own tensors.
    is_own = is_traced() or all(type(parameter) is nn.Parameter for parameter in layer.parameters())
    return is_own and not has_hooks(layer)


def uses_covariance(attention: Any, x: Tensor) -> bool:
    """Return whether to compute XCA of tokens (B, N, C) by `covariance_attention`.

    It saves multiplications in proportion to N C^2 and adds some in proportion to C^3, so the ratio
    N / C decides, and on a GPU also the size. Its sums over the tokens overflow float16, and a GPU
    multiplies in half precision too fast for the part in float32.
    """
    dtype = product_dtype(x)
    half = dtype.itemsize < 4
    if attention.implementation == "plain":
        return False
    if half and (dtype, x.device.type) != (torch.bfloat16, "cpu"):
        return False
    pays = x.shape[1] >= (BFLOAT16_RATIO if half else FLOAT32_RATIO) * x.shape[2]
    if x.device.type != "cpu":
        pays = pays and x.numel() >= GPU_VALUES
    return (pays or attention.implementation == "covariance") and is_unmodified(attention)


class Moments(NamedTuple):
    """What XCA needs to know of the tokens of an image, or of a part of it."""

    tokens: int | Tensor  # N, or (B, 1, 1, 1)
    mean: Tensor  # m, (B, 1, C)
    products: Tensor  # S, (B, C, C)


def covariance_attention(
    attention: Any, x: Tensor, residual: Tensor | None = None, valid: Tensor | None = None
) -> Tensor:
    """Compute XCA of tokens (B, N, C) from their covariance, plus a residual of this shape.

    It takes 2 N C^2 + O(C^3) multiplications, instead of 4 N C^2 + 2 N C^2 / heads.

    With the tokens x (N x C), q = x Wq^T + bq, and k and v likewise. With their mean m,
    x = 1 m + y and S = y^T y,

        q^T k = Wq S Wk^T + N q(m)^T k(m),    of each head,

    since the columns of y sum to zero. The squared norms of q and k are the diagonals of q^T q and
    k^T k, so A follows from S without q and k. All that follows A is linear in x, so v, A and the
    output projection are a single product:

        out = y M^T + 1 o,    M = Wp A Wv,    o = v(m) A^T Wp^T + bp,

    with A block-diagonal over the heads.

    y is the only N x C tensor that the backward pass needs. Without subtracting the mean, the
    rounding error would grow with the mean. In bfloat16 only the two products with all tokens are
    in half precision.
    """
    dtype = product_dtype(x)
    with torch.autocast("cpu", enabled=False):
        y, moments = centre(x, dtype, valid)
        matrix, offset = attention_matrix(attention, moments)
        out = linear_by_image(y, matrix, offset, residual)
    return attention.proj_drop(out)


def centre(x: Tensor, dtype: torch.dtype, valid: Tensor | None = None) -> tuple[Tensor, Moments]:
    """Compute y of tokens (B, N, C) in `dtype`, and the moments of the valid tokens."""
    wide = torch.promote_types(dtype, torch.float32)
    tokens: int | Tensor = x.shape[1]
    if valid is None:
        mean = x.mean(dim=1, keepdim=True, dtype=wide)
    else:
        valid = valid.flatten(1).unsqueeze(2)  # (B, N, 1)
        number = valid.sum(dim=1, keepdim=True)
        total = keep_valid(x, valid).sum(dim=1, keepdim=True, dtype=wide)
        mean = total / number.clamp_min(1)
        tokens = number.unsqueeze(3)
    y = (x - mean).to(dtype)
    counted = keep_valid(y, valid)
    return y, Moments(tokens, mean, (counted.transpose(1, 2) @ counted).to(wide))


def attention_matrix(attention: Any, moments: Moments) -> tuple[Tensor, Tensor]:
    """Compute M (B, C, C) and o (B, C) of XCA, in the type of the moments."""
    heads = attention.num_heads
    tokens, mean, products = moments
    wide = mean.dtype
    weight = attention.qkv.weight.to(wide)
    bias = attention.qkv.bias.to(wide)
    out_weight = attention.proj.weight.to(wide)
    out_bias = attention.proj.bias.to(wide)
    q_weight, k_weight, v_weight = weight.unflatten(0, (3, heads, -1))  # (heads, d, C) each
    # q(m), k(m) and v(m), each (B, heads, d, 1).
    q_mean, k_mean, v_mean = (
        F.linear(mean, weight, bias).unflatten(2, (3, heads, -1)).permute(2, 0, 3, 4, 1)
    )

    # Wq S and Wk S, (B, heads, d, C) each.
    mapped = linear_by_image(weight[: 2 * mean.shape[2]], products.transpose(1, 2))
    q_mapped, k_mapped = mapped.unflatten(1, (2, heads, -1)).unbind(1)
    dots = q_mapped @ k_weight.transpose(1, 2) + tokens * q_mean @ k_mean.transpose(2, 3)
    q_squares = (q_mapped * q_weight).sum(dim=3, keepdim=True) + tokens * q_mean.square()
    k_squares = (k_mapped * k_weight).sum(dim=3, keepdim=True) + tokens * k_mean.square()
    # As in F.normalize, a norm counts as at least 1e-12. Rounding can bring a cosine slightly
    # out of its range.
    q_scale = q_squares.clamp_min(1e-24).rsqrt()
    k_scale = k_squares.clamp_min(1e-24).rsqrt()
    scale = q_scale * k_scale.transpose(2, 3)
    attn = (attention.temperature * (dots * scale).clamp(-1, 1)).softmax(dim=-1)
    attn = attention.attn_drop(attn)  # A, (B, heads, d, d)

    mixed = (attn @ v_weight).flatten(1, 2)  # A Wv, (B, C, C)
    matrix = linear_by_image(out_weight, mixed.transpose(1, 2))  # M
    offset = F.linear((attn @ v_mean).flatten(1), out_weight, out_bias)  # o
    return matrix, offset


def uses_rows(layer: nn.Module, x: Tensor) -> bool:
    """Return whether to compute a layer a few rows at a time: in inference, not in half precision,
    in which it takes longer.
    """
    if torch.is_grad_enabled() or is_traced() or product_dtype(x).itemsize < 4:
        return False
    return is_local(layer)


def is_local(layer: nn.Module) -> bool:
    """Return whether each row of a layer's result depends on a few rows alone, as in the paper.

    In training mode, and without running statistics, it depends on all rows.
    """
    for part in layer.modules():
        if part.training or (isinstance(part, BatchNorm) and part.running_mean is None):
            return False
    return is_unmodified(layer)


def lpi(layer: Any, x: Tensor) -> Tensor:
    """Compute LPI of a grid (B, rows, width, C); a row depends on two to each side."""
    return in_rows(partial(_interact, layer), x, halo=2)


def add_lpi(layer: Any, norm: nn.Module, x: Tensor) -> Tensor:
    """Compute `x` plus LPI of the normalised grid (B, rows, width, C)."""
    return in_rows(lambda rows: rows + _interact(layer, norm(rows)), x, halo=2)


def _interact(layer: Any, rows: Tensor) -> Tensor:
    rows = conv_gelu(rows.permute(0, 3, 1, 2), layer.conv1)
    return layer.conv2(layer.bn(rows)).permute(0, 2, 3, 1)


def mlp(layer: Any, x: Tensor) -> Tensor:
    """Compute MLP of tokens (B, N, C), each by itself."""
    weight1 = order_weight(layer.fc1.weight, x)
    # Where MKL is fast, `linear` calls torch's own product, which reads the plain weight alone.
    weight2 = order_weight(layer.fc2.weight, x) if uses_onednn(x) else layer.fc2.weight

    def project(rows: Tensor) -> Tensor:
        hidden = linear_gelu(rows, weight1, layer.fc1.bias)
        return linear(hidden, weight2, layer.fc2.bias)

    return in_rows(project, x)


def add_mlp(layer: Any, norm: nn.Module, x: Tensor) -> Tensor:
    """Compute `x` plus MLP of the normalised tokens (B, N, C)."""
    weight1 = order_weight(layer.fc1.weight, x)
    weight2 = order_weight(layer.fc2.weight, x)

    def project(rows: Tensor) -> Tensor:
        hidden = linear_gelu(norm(rows), weight1, layer.fc1.bias)
        return linear_add(hidden, weight2, layer.fc2.bias, rows)

    return in_rows(project, x)


def upsample(conv: Any, x: Tensor, gelu: bool = False) -> Tensor:
    """Compute a 2x2 stride-2 transposed convolution of a map (B, C, h, w) by one product.

    The result has channels last in memory if the weight has.

    Args:
        gelu: Whether to compute the exact GELU of the result.
    """
    if is_traced() or not is_unmodified(conv):
        out = nn.ConvTranspose2d.forward(conv, x)
        return F.gelu(out) if gelu else out
    dtype = product_dtype(x)
    x = x.to(dtype)
    weight = conv.weight.to(dtype)
    bias = conv.bias.to(dtype)
    if weight.is_contiguous(memory_format=torch.channels_last):
        return _upsample_channels_last(x, weight, bias, gelu)
    return _upsample_channels_first(x, weight, bias, gelu)


def _upsample_channels_last(x: Tensor, weight: Tensor, bias: Tensor, gelu: bool) -> Tensor:
    batch, _, height, width = x.shape
    channels = weight.shape[1]
    x = x.permute(0, 2, 3, 1)
    multiply = linear_gelu if gelu else linear
    matrix = weight.permute(2, 3, 1, 0).flatten(0, 2)  # (2 * 2 * channels, C)
    if gelu or uses_onednn(x):
        matrix = order_weight(matrix, x)

    def upsample_rows(rows: Tensor) -> Tensor:
        """Map rows (B, n, w, C) to the four values of each cell, (B, n, 2, w, 2, channels)."""
        product = multiply(rows, matrix, bias.repeat(4))
        return product.unflatten(3, (2, 2, channels)).transpose(2, 3)

    out = upsample_rows(x) if torch.is_grad_enabled() else in_rows(upsample_rows, x)
    return out.reshape(batch, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)


def _upsample_channels_first(x: Tensor, weight: Tensor, bias: Tensor, gelu: bool) -> Tensor:
    batch, _, height, width = x.shape
    channels = weight.shape[1]
    matrix = weight.flatten(1).T.expand(batch, -1, -1)  # (B, channels * 2 * 2, C)
    offset = bias.repeat_interleave(4)[:, None]

    def upsample_rows(rows: Tensor) -> Tensor:
        """Map rows (B, C, n, w) to the four values of each cell, (B, channels, n, 2, w, 2)."""
        product = torch.baddbmm(offset, matrix, rows.flatten(2))
        product = F.gelu(product) if gelu else product
        cells = product.view(batch, channels, 2, 2, rows.shape[2], width)
        return _interleave(cells)

    out = upsample_rows(x) if torch.is_grad_enabled() else in_rows(upsample_rows, x, dim=2)
    return out.reshape(batch, channels, 2 * height, 2 * width)


def _interleave(cells: Tensor) -> Tensor:
    """Order the four values of each cell (B, C, 2, 2, n, w) by place, (B, C, n, 2, w, 2)."""
    if torch.is_grad_enabled() or cells.dtype != torch.float32 or not cells.is_cpu:
        return cells.permute(0, 1, 4, 2, 5, 3)
    # A complex tensor stores pairs. It is written much faster than two values at a time are copied.
    pairs = torch.complex(cells[:, :, :, 0], cells[:, :, :, 1])
    return torch.view_as_real(pairs).transpose(2, 3)


def in_rows(function: Callable[[Tensor], Tensor], x: Tensor, halo: int = 0, dim: int = 1) -> Tensor:
    """Compute `function(x)` a few rows at a time, so that its intermediate maps stay in cache.

    Args:
        function: Maps any number of rows to as many rows.
        x: (B, rows, ..., C), or (B, C, rows, width) with `dim=2`.
        halo: Number of rows to each side on which a row of the result depends.
    """
    total = x.shape[dim]
    channels = x.shape[1] if dim == 2 else x.shape[-1]
    positions_of_row = max(1, x.numel() // (total * channels))
    limit = CPU_POSITIONS if x.device.type == "cpu" else GPU_POSITIONS
    if dim == 2:
        limit //= 2  # `_interleave` holds the values of a piece twice
    # Long enough that the halo, which is computed twice, is the smaller part.
    longest = max(1, 8 * halo, limit // positions_of_row)
    length = math.ceil(total / max(1, round(total / longest)))  # pieces of about the same length
    if total <= length:
        return function(x)
    out = x.new_empty(0)
    for start in range(0, total, length):
        count = min(length, total - start)
        first = max(start - halo, 0)
        last = min(start + count + halo, total)
        piece = function(x.narrow(dim, first, last - first)).narrow(dim, start - first, count)
        if start == 0:
            shape = [*piece.shape]
            shape[dim] = total
            out = piece.new_empty(shape)
        out.narrow(dim, start, count).copy_(piece)
    return out
