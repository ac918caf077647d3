"""Inference in chunks: wide intermediate maps of a high-resolution image never stand in memory whole."""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["in_chunks"]

# Positions in a chunk. On CPU the intermediate maps then stay in cache, which is also faster.
_POSITIONS = {"cpu": 1024}
_POSITIONS_ELSEWHERE = 65536


def in_chunks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function(x)` for a function that treats every position alike, in pieces along axis 1 when inferring.

    Args:
        function: Maps (B, n, ..., C) to (B, k n, ...) for any n.
        x: (B, N, ..., C).
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return function(x)
    rows = max(1, _POSITIONS.get(x.device.type, _POSITIONS_ELSEWHERE) // x[:, 0, ..., 0].numel())
    if x.shape[1] <= rows:
        return function(x)
    return torch.cat([function(piece) for piece in x.split(rows, dim=1)], dim=1)
