"""Layers as the papers write them, to compare with: keys and values of all tokens, codes of all cells."""

import torch
from torch import Tensor

from xcit_mm.models import class_attention, layers


class ClassAttention(class_attention.ClassAttention):
    """Class attention of CaiT, with queries, keys and values of all tokens."""

    def attention(self, x: Tensor) -> Tensor:
        q, k, _ = self._heads(x)
        return self._weights(q, k)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._heads(x)
        out = self.attn_drop(self._weights(q, k)).unsqueeze(2) @ v
        return self.proj_drop(self.proj(out.transpose(1, 2).flatten(2)))

    def _heads(self, x: Tensor) -> Tensor:
        """Queries, keys and values, each (B, heads, N, C / heads)."""
        return self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)

    @staticmethod
    def _weights(q: Tensor, k: Tensor) -> Tensor:
        return (q[:, :, :1] @ k.transpose(2, 3) / k.shape[3] ** 0.5).softmax(dim=-1).squeeze(2)


class PositionalEncoding(layers.PositionalEncoding):
    """Positional encoding by a 1x1 convolution of the codes of y and x in every cell."""

    def forward(self, height: int, width: int) -> Tensor:
        weight = self.token_projection.weight
        y, x = (self.encode(length, weight.device).to(weight.dtype) for length in (height, width))
        grid = torch.cat((y[:, None].expand(-1, width, -1), x[None].expand(height, -1, -1)), dim=2)
        return self.token_projection(grid.permute(2, 0, 1)[None]).flatten(2)[0].T
