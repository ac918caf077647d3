"""Inference in chunks: wide intermediate maps of a high-resolution image never stand in memory whole."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["in_chunks", "is_traced"]

# Positions in a chunk. On CPU the intermediate maps then stay in cache, which is also faster.
_POSITIONS = {"cpu": 1024}
_POSITIONS_ELSEWHERE = 65536


def is_traced() -> bool:
    """Whether torch.compile, torch.export or torch.jit.trace records what is done: it must serve other sizes."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def in_chunks(function: Callable[[Tensor], Tensor], x: Tensor, dim: int = 1, halo: int = 0) -> Tensor:
    """`function(x)` for a function that treats every position alike, in pieces along one axis when inferring.

    Args:
        function: Maps n entries along `dim` to k n entries, for any n.
        x: (B, N, ..., C), or (B, C, H, W) with `dim=2`.
        dim: The axis to cut.
        halo: How many entries to each side an entry of the result depends on, if k is 1.
    """
    if torch.is_grad_enabled() or is_traced():
        return function(x)
    positions = x.numel() // x.shape[1 if dim == 2 else -1]
    total = x.shape[dim]
    # Long enough that the halo, which is computed twice, is the lesser part.
    length = max(1, 8 * halo, _POSITIONS.get(x.device.type, _POSITIONS_ELSEWHERE) * total // positions)
    if total <= length:
        return function(x)
    out: Any = None
    for start in range(0, total, length):
        count = min(length, total - start)
        before, after = min(halo, start), min(halo, total - start - count)
        piece = function(x.narrow(dim, start - before, before + count + after))
        factor = piece.shape[dim] // (before + count + after)
        piece = piece.narrow(dim, before, factor * count)
        if out is None:
            out = piece.new_empty([factor * total if axis == dim else n for axis, n in enumerate(piece.shape)])
        out.narrow(dim, factor * start, factor * count).copy_(piece)
    return out
