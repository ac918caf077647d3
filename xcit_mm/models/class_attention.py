"""Class attention: the CLS token of a classifier gathers from the tokens of the image."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..utils.compat import is_plain
from .layers import MLP


class ClassAttention(nn.Module):
    """Attention of the CLS token to all tokens (paper, section 3.3; CaiT, arXiv 2103.17239, section 3).

    The CLS token has the only query q of a head. q^T k = (Wk^T q)^T x + q^T bk, whose last term is the same for all
    tokens and does not change the softmax. Attention is linear in the values, so it mixes tokens first and projects the
    result. Neither keys nor values are computed: 2 N C heads multiplications instead of 2 N C^2.

    Where `qkv` has hooks or is not an `nn.Linear`, as with LoRA, it is called and computes them all.

    Shape: (B, N, C), the CLS token first -> (B, 1, C).

    Args: see `XCA`.
    """

    def __init__(self, dim: int, num_heads: int, attn_drop: float = 0.0, proj_drop: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def attention(self, x: Tensor) -> Tensor:
        """Return the weight of every token for the CLS token, (B, heads, N). The weights of a head sum to 1."""
        if not is_plain(self.qkv, nn.Linear):
            return self._weights_and_values(x)[0]
        q_weight, k_weight, _ = self.qkv.weight.chunk(3)
        q = F.linear(x[:, 0], q_weight, self.qkv.bias.chunk(3)[0]).unflatten(1, (self.num_heads, 1, -1))
        # Scaled before the product, which could overflow in half precision.
        query = q * q.shape[-1] ** -0.5 @ k_weight.unflatten(0, (self.num_heads, -1))  # (B, heads, 1, C)
        return (query.squeeze(2) @ x.transpose(1, 2)).softmax(dim=-1)

    def _weights_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same as `attention`, and the values (B, heads, N, d), from the outputs of `qkv`."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query = q[:, :, :1] * q.shape[-1] ** -0.5
        return (query @ k.transpose(2, 3)).squeeze(2).softmax(dim=-1), v

    def forward(self, x: Tensor) -> Tensor:
        if not is_plain(self.qkv, nn.Linear):
            attn, values = self._weights_and_values(x)
            out = (self.attn_drop(attn).unsqueeze(2) @ values).flatten(1)
            return self.proj_drop(self.proj(out.unsqueeze(1)))
        v_weight, v_bias = self.qkv.weight.chunk(3)[2], self.qkv.bias.chunk(3)[2]
        attn = self.attn_drop(self.attention(x))
        mixed = (attn @ x).unsqueeze(2)  # (B, heads, 1, C)
        out = mixed @ v_weight.unflatten(0, (self.num_heads, -1)).transpose(1, 2)
        # Without dropout the attention sums to 1 and the bias passes unchanged.
        out = out.squeeze(2) + attn.sum(dim=2, keepdim=True) * v_bias.unflatten(0, (self.num_heads, -1))
        return self.proj_drop(self.proj(out.flatten(1).unsqueeze(1)))


class ClassAttentionBlock(nn.Module):
    """Class attention layer (paper, section 3.3, after CaiT): attention of the CLS token, then its MLP.

    As in the published models, the image's tokens pass both residual branches without attention and MLP: the first
    adds their norm, the second doubles them.

    Shape: (B, N, C), the CLS token first -> (B, N, C).

    Args: see `Block`, and `Arch` for `tokens_norm`.
    """

    def __init__(
        self, dim: int, num_heads: int, eta: float, tokens_norm: bool, drop_rate: float, attn_drop_rate: float
    ) -> None:
        super().__init__()
        self.tokens_norm = tokens_norm
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = ClassAttention(dim, num_heads, attn_drop_rate, drop_rate)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = MLP(dim, drop=drop_rate)
        self.gamma1 = nn.Parameter(torch.full((dim,), eta))
        self.gamma2 = nn.Parameter(torch.full((dim,), eta))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.gamma1 * torch.cat((self.attn(normed), normed[:, 1:]), dim=1)
        if self.tokens_norm:
            x = self.norm2(x)
        cls, tokens = x[:, :1], x[:, 1:]
        if not self.tokens_norm:
            cls = self.norm2(cls)
        return torch.cat((cls + self.gamma2 * self.mlp(cls), 2 * tokens), dim=1)
