"""Cross-covariance attention: every channel attends to the channels of its head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["XCA"]


class XCA(nn.Module):
    """Cross-covariance attention (paper, section 3.2, equation 1).

    Per head, queries and keys are l2-normalised over the tokens; their product, one row per query
    channel, is scaled by the head's learned temperature and softmaxed; it then mixes the channels
    of the values. Time and memory are linear in the number of tokens.

    Shape: (B, N, C) -> (B, N, C).

    Args:
        dim: Channels C of a token, a multiple of `num_heads`.
        num_heads: Number of heads.
        attn_drop: Dropout probability of the attention matrix.
        proj_drop: Dropout probability after the output projection.
    """

    def __init__(self, dim: int, num_heads: int, attn_drop: float = 0.0, proj_drop: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        # (B, N, 3C) -> three of (B, heads, C / heads, N): channels are rows, tokens columns.
        q, k, v = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 4, 1)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        attn = (self.temperature * (q @ k.transpose(-2, -1))).softmax(dim=-1)
        out = (self.attn_drop(attn) @ v).flatten(1, 2).transpose(1, 2)
        return self.proj_drop(self.proj(out))
