"""XCA from the covariance of the tokens, without queries, keys and values.

It has the results of the plain code in `xcit` to rounding, in less time and memory.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import keep_valid
from .matmul import is_exported, is_unmodified, linear_by_image, product_dtype

IMPLEMENTATIONS = ("auto", "plain", "covariance")  # of the attention
# Tokens per channel from which the covariance is faster, measured on CPUs by MKL and by oneDNN, C
# from 128 to 768.
FLOAT32_RATIO = 2
BFLOAT16_RATIO = 3
# Values of the tokens from which it is faster on an H100, C from 128 to 768: its small products
# take as long for fewer.
GPU_VALUES = 5_000_000


def uses_covariance(attention: Any, x: Tensor) -> bool:
    """Return whether to compute XCA of tokens (B, N, C) by `covariance_attention`.

    It saves multiplications in proportion to N C^2 and adds some in proportion to C^3, so the ratio
    N / C decides, and on a GPU also the size. It is not used in float16, where its sums over the
    tokens overflow, nor in bfloat16 on a GPU, where its part in float32 takes longer than it saves.
    Nor is it used if a user has changed the attention or its layers.

    `attention.implementation` can forbid it ('plain'), or use it whatever the ratio ('covariance').
    A graph of torch.export for several sizes has it, since no ratio is known.
    """
    dtype = product_dtype(x)
    half = dtype.itemsize < 4
    if attention.implementation == "plain":
        return False
    if half and (dtype, x.device.type) != (torch.bfloat16, "cpu"):
        return False
    # In torch.export, a size that is not fixed is a symbol.
    if attention.implementation == "auto" and isinstance(x.shape[1], int):
        if x.shape[1] < (BFLOAT16_RATIO if half else FLOAT32_RATIO) * x.shape[2]:
            return False
        if x.device.type != "cpu" and x.numel() < GPU_VALUES:
            return False
    return is_unmodified(attention)


def normalise(x: Tensor) -> Tensor:
    """Scale queries or keys (B, heads, d, N) to length 1 over the tokens, as F.normalize does."""
    if not is_exported():
        return F.normalize(x, dim=3)
    x = x * inverse_root(x.shape[3])
    squares = x.unsqueeze(3) @ x.unsqueeze(4)
    return x * squares.flatten(3).clamp_min(1e-24).rsqrt()


def inverse_root(tokens: int) -> float:
    """Return 1 / sqrt(N), by which an exported model scales N tokens before it adds them up.

    In float16 a sum of 20,000 squares is infinite. A factor does not change the cosines of XCA.
    Each such sum is written as a product, for which runtimes add up in float32.
    """
    # In parts: N may be above 65504, which is infinite in float16.
    return (tokens // 256 + tokens % 256 / 256) ** -0.5 / 16


class Moments(NamedTuple):
    """What XCA needs to know of the tokens of an image, or of a part of it."""

    tokens: int | Tensor  # N, or (B, 1, 1, 1)
    mean: Tensor  # m, (B, 1, C)
    products: Tensor  # S, (B, C, C)


def covariance_attention(attention: Any, x: Tensor, valid: Tensor | None = None) -> Tensor:
    """Compute XCA of tokens (B, N, C) from their covariance.

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

    Rounding errors grow where the terms of a query or key nearly cancel. If a query or key is r
    times smaller than its terms, the errors of its cosines are r^2 times larger here, and r times
    larger in the plain attention.
    """
    dtype = product_dtype(x)
    with torch.autocast("cpu", enabled=False):
        y, moments = centre(x, dtype, valid)
        matrix, offset = attention_matrix(attention, moments)
        out = linear_by_image(y, matrix, offset)
    return attention.proj_drop(out)


def centre(x: Tensor, dtype: torch.dtype, valid: Tensor | None = None) -> tuple[Tensor, Moments]:
    """Subtract the mean token, and compute the moments of the tokens.

    Args:
        x: Tokens (B, N, C).
        dtype: Type of the centred tokens.
        valid: Which tokens have data and count, (B, 1, h, w). Default: all.

    Returns:
        The centred tokens y, (B, N, C), and their moments. In an export, these are the moments of
        one token, divided by N.
    """
    wide = torch.promote_types(dtype, torch.float32)
    tokens: int | Tensor = x.shape[1]
    if valid is None and is_exported():
        root = inverse_root(x.shape[1])
        mean = x.new_full((1, x.shape[1]), root, dtype=wide) @ (x.to(wide) * root)
        y = (x - mean).to(dtype)
        counted = y * root  # S / N: the moments count as those of one token
        return y, Moments(1, mean, (counted.transpose(1, 2) @ counted).to(wide))
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
    # As in F.normalize, a norm counts as at least 1e-12. The product of both scales could overflow
    # float16. Rounding can bring a cosine slightly out of its range.
    q_scale = q_squares.clamp_min(1e-24).rsqrt()
    k_scale = k_squares.clamp_min(1e-24).rsqrt()
    cosines = (dots * q_scale * k_scale.transpose(2, 3)).clamp(-1, 1)
    attn = (attention.temperature * cosines).softmax(dim=-1)
    attn = attention.attn_drop(attn)  # A, (B, heads, d, d)

    mixed = (attn @ v_weight).flatten(1, 2)  # A Wv, (B, C, C)
    matrix = linear_by_image(out_weight, mixed.transpose(1, 2))  # M
    offset = F.linear((attn @ v_mean).flatten(1), out_weight, out_bias)  # o
    return matrix, offset
