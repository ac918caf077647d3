"""Inference in chunks: wide intermediate maps of a high-resolution image never stand in memory whole."""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["in_chunks"]

# Positions in a chunk. On CPU the intermediate maps then stay in cache, which is also faster.
_POSITIONS = {"cpu": 1024}
_POSITIONS_ELSEWHERE = 65536


def in_chunks(function: Callable[[Tensor], Tensor], x: Tensor, dim: int = 1) -> Tensor:
    """`function(x)` for a function that treats every position alike, in pieces along one axis when inferring.

    Args:
        function: Maps n entries along `dim` to k n entries, for any n.
        x: (B, N, C), or (B, C, H, W) with `dim=2`.
        dim: The axis to cut.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return function(x)
    positions = x.numel() // x.shape[2 if dim == 1 else 1]
    total = x.shape[dim]
    length = max(1, _POSITIONS.get(x.device.type, _POSITIONS_ELSEWHERE) * total // positions)
    if total <= length:
        return function(x)
    out = None
    for start in range(0, total, length):
        piece = function(x.narrow(dim, start, min(length, total - start)))
        if out is None:
            factor = piece.shape[dim] // length
            out = piece.new_empty([factor * total if axis == dim else n for axis, n in enumerate(piece.shape)])
        out.narrow(dim, factor * start, piece.shape[dim]).copy_(piece)
    return out
