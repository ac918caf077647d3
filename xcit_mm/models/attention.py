"""Cross-covariance attention, where channels attend to the channels of their head, and class attention."""

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FORMS", "XCA", "ClassAttention", "choose_form"]

FORMS = ("auto", "plain", "gram", "covariance")


def choose_form(x: Tensor) -> str:
    """The form that is fastest for tokens (B, N, C).

    'covariance' saves work in proportion to N C^2 and spends it in proportion to C^3, so the ratio
    N / C decides. Measured on 2 x86 cores in float32, C from 128 to 768: 'plain' wins below 1.5,
    'covariance' above 2.5 (1.2x at 3, 1.5x at 5, 2.6x at 11, 3.4x at 44), 'gram' is level or ahead
    between. In half precision on a GPU, where nothing has been measured yet (`make bench-gpu` does),
    it is 'plain', since the float32 statistics of the others forgo the fast units.
    """
    tokens, channels = x.shape[1:]
    if x.is_cuda and (x.element_size() == 2 or torch.is_autocast_enabled()):
        return "plain"
    if tokens < 1.5 * channels:
        return "plain"
    return "gram" if tokens < 2.5 * channels else "covariance"


class XCA(nn.Module):
    """Cross-covariance attention (paper, section 3.2, equation 1), in three forms of one function.

    Per head, queries and keys are l2-normalised over the tokens; their product, one row a query
    channel, is scaled by the head's learned temperature and softmaxed to a matrix A, which mixes the
    channels of the values. Time and memory are linear in the number of tokens N. With x (N x C) the
    tokens and q = x Wq + bq, k and v likewise, the forms differ in what they multiply first:

    - 'plain', as the paper's pseudo-code: normalises q and k, applies A to v and projects the result.
      4 N C^2 + 2 N C^2 / heads multiplications.
    - 'gram': products and norms of q and k are q^T k and the diagonals of q^T q and k^T k, so q and k
      need not be normalised. A is constant within an image and all else after it is linear, so values,
      A and projection are one matrix: out = x M + m, with M = Wv blockdiag(A)^T Wp and
      m = bv blockdiag(A)^T Wp + bp. 3 N C^2 + N C^2 / heads.
    - 'covariance': with mean and covariance of the tokens, x = 1 mean + y and S = y^T y, the products are
      q^T k = Wq^T S Wk + N (mean Wq + bq)^T (mean Wk + bk), so neither q, k nor v is formed, and
      out = y M + m, with m taken at the mean. 2 N C^2 + O(C^3), and of size N x C only y is kept for
      backward. Without the mean taken out, a large one would drown the rest in rounding.

    'gram' and 'covariance' compute the statistics in float32 under autocast, so that no
    number of tokens overflows.

    Shape: (B, N, C) -> (B, N, C).

    Args:
        dim: Channels C of a token, a multiple of `num_heads`.
        num_heads: Number of heads.
        attn_drop: Dropout probability of the attention matrix A.
        proj_drop: Dropout probability after the output projection.
        form: 'plain', 'gram', 'covariance', or 'auto', `choose_form`'s choice.
    """

    def __init__(
        self, dim: int, num_heads: int, attn_drop: float = 0.0, proj_drop: float = 0.0, form: str = "auto"
    ) -> None:
        super().__init__()
        if form not in FORMS:
            raise ValueError(f"attention form {form!r}: choose one of {', '.join(FORMS)}")
        if dim % num_heads:
            raise ValueError(f"{dim=}, {num_heads=}: must be a multiple of the heads")
        self.num_heads = num_heads
        self.form = form
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        form = choose_form(x) if self.form == "auto" else self.form
        if form == "plain":
            return self.proj_drop(self._forward_plain(x))
        channels = x.shape[2]
        qk = F.linear(x, self.qkv.weight[: 2 * channels], self.qkv.bias[: 2 * channels]) if form == "gram" else None
        # What is C x C takes little time and decides over all tokens: no half precision there.
        with nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False):
            if qk is None:
                exact = _at_least_float32(x)
                origin = exact.mean(dim=1, keepdim=True)
                deviations = exact - origin
                products, squares = self._moments(deviations, origin)
                x = deviations.to(x.dtype)
            else:
                origin = _at_least_float32(x).new_zeros(x.shape[0], 1, channels)
                products, squares = self._products(_at_least_float32(qk))
            matrix, offset = self._fold(self._attention(products, squares), origin)
        return self.proj_drop(torch.baddbmm(offset.to(x.dtype), x, matrix.to(x.dtype)))

    def _forward_plain(self, x: Tensor) -> Tensor:
        # (B, N, 3C) -> three of (B, heads, C / heads, N): channels are rows, tokens columns.
        q, k, v = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 4, 1)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        attn = (self.temperature * (q @ k.transpose(-2, -1))).softmax(dim=-1)
        out = (self.attn_drop(attn) @ v).flatten(1, 2).transpose(1, 2)
        return self.proj(out)

    def _products(self, qk: Tensor) -> tuple[Tensor, Tensor]:
        """From q and k, (B, N, 2C): q^T k of each head, (B, heads, d, d), and all squared norms, (B, 2C)."""
        q, k = qk.unflatten(2, (2, self.num_heads, -1)).permute(2, 0, 3, 4, 1)
        return q @ k.transpose(-2, -1), qk.square().sum(dim=1)

    def _moments(self, y: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """As `_products`, from the tokens' deviations (B, N, C) from their mean (B, 1, C)."""
        tokens, channels = y.shape[1:]
        covariance = _self_product(y)
        weight, bias = self.qkv.weight[: 2 * channels].to(y.dtype), self.qkv.bias[: 2 * channels].to(y.dtype)
        mapped = covariance @ weight.T  # (B, C, 2C)
        average = F.linear(mean, weight, bias)  # (B, 1, 2C), of q and k
        squares = (weight.T * mapped).sum(dim=1) + tokens * average.square()[:, 0]

        q = mapped[..., :channels].unflatten(2, (self.num_heads, -1)).permute(0, 2, 3, 1)
        k_weight = weight[channels:].unflatten(0, (self.num_heads, -1)).transpose(1, 2)
        q_average, k_average = average[:, 0].unflatten(1, (2, self.num_heads, -1)).unbind(1)
        return q @ k_weight + tokens * q_average[..., :, None] * k_average[..., None, :], squares

    def _attention(self, products: Tensor, squares: Tensor) -> Tensor:
        """Attention matrices A (B, heads, d, d) from unnormalised products and squared norms."""
        # As in F.normalize, no norm counts as less than 1e-12.
        scale = squares.clamp_min(1e-24).rsqrt()
        q_scale, k_scale = scale.unflatten(1, (2, self.num_heads, -1)).unbind(1)
        # Rounding must not make a cosine of what is no angle.
        cosines = (products * q_scale[..., :, None] * k_scale[..., None, :]).clamp(-1, 1)
        return self.attn_drop((self.temperature * cosines).softmax(dim=-1))

    def _fold(self, attn: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
        """Values, A and projection as one matrix (B, C, C) and an offset (B, 1, C), for tokens less `origin`."""
        channels = self.proj.in_features
        weight, bias = self.qkv.weight[2 * channels :].to(attn.dtype), self.qkv.bias[2 * channels :].to(attn.dtype)
        mixed = (attn @ weight.unflatten(0, (self.num_heads, -1))).flatten(1, 2)  # (B, C, C)
        value = F.linear(origin, weight, bias).unflatten(2, (self.num_heads, -1)).transpose(1, 2)  # (B, heads, 1, d)
        mixed_value = (value @ attn.transpose(-2, -1)).transpose(1, 2).flatten(2)  # (B, 1, C)
        projection = self.proj.weight.T.to(attn.dtype)
        return mixed.transpose(1, 2) @ projection, mixed_value @ projection + self.proj.bias


class _SelfProduct(torch.autograd.Function):
    """y^T y of y (B, N, C), (B, C, C), with one product of size N C^2 in the backward pass.

    The gradient is twice the same product, but autograd, which sees two factors, would compute both.
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
    """With derivatives in forward mode, which torch.compile refuses to trace."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        half = tangent.transpose(1, 2) @ y
        return half + half.transpose(1, 2)


def _self_product(y: Tensor) -> Tensor:
    if not y.requires_grad or torch.jit.is_tracing():
        return y.transpose(1, 2) @ y
    return (_SelfProduct if torch.compiler.is_compiling() else _ForwardSelfProduct).apply(y)


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


class ClassAttention(nn.Module):
    """Attention of the CLS token to itself and to all others (paper, section 3.3; CaiT, arXiv 2103.17239, section 3).

    Only the CLS token asks. With its query q of a head, q^T k = (Wk^T q)^T x + q^T bk, whose last term is the
    same for all tokens and leaves the softmax alone; and attention is linear in the values, so it mixes tokens
    first and projects the result. Neither keys nor values are formed: 2 N C heads multiplications, not 2 N C^2.

    Shape: (B, N, C), the CLS token first -> (B, 1, C).

    Args:
        dim: Channels C of a token, a multiple of `num_heads`.
        num_heads: Number of heads.
        attn_drop: Dropout probability of the attention.
        proj_drop: Dropout probability after the output projection.
    """

    def __init__(self, dim: int, num_heads: int, attn_drop: float = 0.0, proj_drop: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def attention(self, x: Tensor) -> Tensor:
        """Weight of every token for the CLS token, (B, heads, N); each head's sum to 1."""
        q_weight, k_weight, _ = self.qkv.weight.chunk(3)
        q = F.linear(x[:, 0], q_weight, self.qkv.bias.chunk(3)[0]).unflatten(1, (self.num_heads, 1, -1))
        # Scaled first, lest half precision overflow.
        asked = q * q.shape[-1] ** -0.5 @ k_weight.unflatten(0, (self.num_heads, -1))  # (B, heads, 1, C)
        return (asked.squeeze(2) @ x.transpose(1, 2)).softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        v_weight, v_bias = self.qkv.weight.chunk(3)[2], self.qkv.bias.chunk(3)[2]
        attn = self.attn_drop(self.attention(x))
        mixed = (attn @ x).unsqueeze(2)  # (B, heads, 1, C)
        out = mixed @ v_weight.unflatten(0, (self.num_heads, -1)).transpose(1, 2)
        # Without dropout the attention sums to 1 and the bias passes as it is.
        out = out.squeeze(2) + attn.sum(dim=2, keepdim=True) * v_bias.unflatten(0, (self.num_heads, -1))
        return self.proj_drop(self.proj(out.flatten(1).unsqueeze(1)))
