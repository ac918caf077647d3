"""Cross-covariance attention, in which channels attend to the channels of their head."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..utils.compat import is_plain
from .chunks import is_traced

IMPLEMENTATIONS = ("auto", "plain", "gram", "covariance")


def choose_implementation(x: Tensor) -> str:
    """Return the implementation of `XCA` that is fastest for tokens (B, N, C).

    'covariance' saves work in proportion to N C^2 and adds work in proportion to C^3, so the ratio N / C decides.
    Measured on 2 x86 cores in float32, C from 128 to 768: 'plain' is fastest below 1.5, 'covariance' above 2.5 (1.2x
    at 3, 1.5x at 5, 2.6x at 11, 3.4x at 44), and 'gram' is level or ahead between. In bfloat16, measured on CPUs with
    and without AMX, these limits are 2.5 and 4, since the C^3 part stays in float32. In half precision on a GPU the
    choice is 'plain', since the float32 statistics of 'gram' and 'covariance' do not use the fast units;
    `make bench-gpu` measures this.
    """
    tokens, channels = x.shape[1:]
    if x.is_cuda and (x.element_size() == 2 or torch.is_autocast_enabled()):
        return "plain"
    plain, gram = (2.5, 4) if x.dtype == torch.bfloat16 else (1.5, 2.5)
    if tokens < plain * channels:
        return "plain"
    return "gram" if tokens < gram * channels else "covariance"


class XCA(nn.Module):
    """Cross-covariance attention (paper, section 3.2, equation 1), with three implementations.

    Per head, queries and keys are l2-normalised over the tokens. Their product, with one row per query channel, is
    scaled by the head's learned temperature and softmaxed to a matrix A, which mixes the channels of the values. Time
    and memory are linear in the number of tokens N. The implementations have the same result to rounding, but multiply
    in different orders. The tokens are x (N x C), with q = x Wq + bq, and k and v likewise.

    - 'plain', as the paper's pseudo-code: normalises q and k, applies A to v and projects the result.
      4 N C^2 + 2 N C^2 / heads multiplications.
    - 'gram': computes the norms of q and k from their squares. Everything after A is linear, so values, A and
      projection are one matrix: out = x M + m, with M = Wv blockdiag(A)^T Wp and m = bv blockdiag(A)^T Wp + bp.
      3 N C^2 + N C^2 / heads multiplications.
    - 'covariance': with x = 1 mean + y and S = y^T y, q^T k = Wq^T S Wk + N (mean Wq + bq)^T (mean Wk + bk), so q, k
      and v are not computed, and out = y M + m, with m taken at the mean. 2 N C^2 + O(C^3) multiplications, and y is
      the only N x C tensor kept for backward. Without subtracting the mean, rounding errors would grow with it.

    'gram' and 'covariance' compute the statistics in float32 under autocast, so that no number of tokens overflows;
    only S of tokens in bfloat16, which has the range of float32, is computed in bfloat16. Both read the weights of
    `qkv` and `proj`. Where one of these has hooks or is not an `nn.Linear`, as with LoRA, 'plain' calls both instead.

    Shape: (B, N, C) -> (B, N, C).

    Args:
        dim: Number of channels C of a token.
        attn_drop: Dropout probability of the attention matrix A.
        proj_drop: Dropout probability after the output projection.
        implementation: 'plain', 'gram', 'covariance', or 'auto' for `choose_implementation`.

    Raises:
        ValueError: If `dim` is not a multiple of `num_heads` or the implementation is unknown.
    """

    def __init__(
        self, dim: int, num_heads: int, attn_drop: float = 0.0, proj_drop: float = 0.0, implementation: str = "auto"
    ) -> None:
        super().__init__()
        if implementation not in IMPLEMENTATIONS:
            raise ValueError(f"attention {implementation=}: choose one of {', '.join(IMPLEMENTATIONS)}")
        if dim % num_heads:
            raise ValueError(f"{dim=} must be a multiple of {num_heads=}")
        self.num_heads = num_heads
        self.implementation = implementation
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        implementation = choose_implementation(x) if self.implementation == "auto" else self.implementation
        if implementation == "plain" or not (is_plain(self.qkv, nn.Linear) and is_plain(self.proj, nn.Linear)):
            out = self._forward_plain(x)
        elif implementation == "gram":
            out = self._forward_gram(x)
        else:
            out = self._forward_covariance(x)
        return self.proj_drop(out)

    def _forward_plain(self, x: Tensor) -> Tensor:
        # (B, N, 3C) -> three of (B, heads, C / heads, N): channels are rows, tokens columns.
        q, k, v = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 4, 1)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        attn = (self.temperature * (q @ k.transpose(-2, -1))).softmax(dim=-1)
        out = (self.attn_drop(attn) @ v).flatten(1, 2).transpose(1, 2)
        return self.proj(out)

    def _forward_gram(self, x: Tensor) -> Tensor:
        qk = F.linear(x, *self._qkv_slice(0, 2))
        with _without_autocast(x):
            products, squares = self._products(_at_least_float32(qk))
            origin = _at_least_float32(x).new_zeros(x.shape[0], 1, x.shape[2])
            matrix, offset = self._fold(self._attention(products, squares), origin)
        return torch.baddbmm(offset.to(x.dtype), x, matrix.to(x.dtype))

    def _forward_covariance(self, x: Tensor) -> Tensor:
        with _without_autocast(x):
            mean = x.mean(dim=1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
            # bfloat16 has the range of float32; float16 could overflow. Rounding the mean to subtract it in bfloat16,
            # 3 times as fast, changes S by (2^-9 mean)^2, less than the rounding of the tokens.
            origin = mean.to(x.dtype) if x.dtype == torch.bfloat16 else mean
            y = x - origin
            products, squares = self._products_from_moments(y, mean)
            matrix, offset = self._fold(self._attention(products, squares), origin.to(mean.dtype))
            y = y.to(x.dtype)
        return torch.baddbmm(offset.to(x.dtype), y, matrix.to(x.dtype))

    def _qkv_slice(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the projections from `start` to `end`: 0 is q, 1 is k, 2 is v."""
        rows = slice(start * self.proj.in_features, end * self.proj.in_features)
        return self.qkv.weight[rows], self.qkv.bias[rows]

    def _products(self, qk: Tensor) -> tuple[Tensor, Tensor]:
        """Return q^T k of each head, (B, heads, d, d), and squared norms, (B, 2C), from q and k, (B, N, 2C)."""
        q, k = qk.unflatten(2, (2, self.num_heads, -1)).permute(2, 0, 3, 4, 1)
        return q @ k.transpose(-2, -1), qk.square().sum(dim=1)

    def _products_from_moments(self, y: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same as `_products`, from the tokens' deviations (B, N, C) from their mean (B, 1, C)."""
        tokens, channels = y.shape[1:]
        covariance = _self_product(y).to(mean.dtype)
        weight, bias = (tensor.to(mean.dtype) for tensor in self._qkv_slice(0, 2))
        mapped = covariance @ weight.T  # (B, C, 2C)
        average = F.linear(mean, weight, bias)  # (B, 1, 2C), of q and k
        squares = (weight.T * mapped).sum(dim=1) + tokens * average.square()[:, 0]

        q = mapped[..., :channels].unflatten(2, (self.num_heads, -1)).permute(0, 2, 3, 1)
        k_weight = weight[channels:].unflatten(0, (self.num_heads, -1)).transpose(1, 2)
        q_average, k_average = average[:, 0].unflatten(1, (2, self.num_heads, -1)).unbind(1)
        return q @ k_weight + tokens * q_average[..., :, None] * k_average[..., None, :], squares

    def _attention(self, products: Tensor, squares: Tensor) -> Tensor:
        """Return attention matrices A (B, heads, d, d) from unnormalised products and squared norms."""
        # As in F.normalize, a norm counts as at least 1e-12.
        scale = squares.clamp_min(1e-24).rsqrt()
        q_scale, k_scale = scale.unflatten(1, (2, self.num_heads, -1)).unbind(1)
        # Rounding can bring a product slightly out of the range of a cosine.
        cosines = (products * q_scale[..., :, None] * k_scale[..., None, :]).clamp(-1, 1)
        return self.attn_drop((self.temperature * cosines).softmax(dim=-1))

    def _fold(self, attn: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
        """Return values, A and projection as a matrix (B, C, C) and an offset (B, 1, C), for tokens less `origin`."""
        weight, bias = (tensor.to(attn.dtype) for tensor in self._qkv_slice(2, 3))
        mixed = (attn @ weight.unflatten(0, (self.num_heads, -1))).flatten(1, 2)  # (B, C, C)
        value = F.linear(origin, weight, bias).unflatten(2, (self.num_heads, -1)).transpose(1, 2)  # (B, heads, 1, d)
        mixed_value = (value @ attn.transpose(-2, -1)).transpose(1, 2).flatten(2)  # (B, 1, C)
        projection = self.proj.weight.T.to(attn.dtype)
        return mixed.transpose(1, 2) @ projection, mixed_value @ projection + self.proj.bias


class _SelfProduct(torch.autograd.Function):
    """y^T y of y (B, N, C), (B, C, C), with one product of size N C^2 in the backward pass.

    The gradient is twice the same product, but autograd, which sees two factors, would compute it twice.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor) -> Tensor:
        return y.transpose(1, 2) @ y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return y @ (gradient + gradient.transpose(1, 2))


class _ForwardSelfProduct(_SelfProduct):
    """Adds forward-mode derivatives, which torch.compile cannot trace."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        half = tangent.transpose(1, 2) @ y
        return half + half.transpose(1, 2)


def _self_product(y: Tensor) -> Tensor:
    if not y.requires_grad or torch.jit.is_tracing():
        if y.is_cpu and y.dtype == torch.bfloat16 and not is_traced():
            return torch.stack([image.T @ image for image in y])  # a batched product copies y for oneDNN
        return y.transpose(1, 2) @ y
    return (_SelfProduct if torch.compiler.is_compiling() else _ForwardSelfProduct).apply(y)


def _without_autocast(x: Tensor) -> AbstractContextManager:
    """Keep half precision from the C x C matrices, which take little time and decide over all tokens."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
