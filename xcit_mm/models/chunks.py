"""Inference in chunks: wide intermediate maps of a high-resolution image never stand in memory whole."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.batchnorm import _NormBase

__all__ = ["in_chunks", "is_traced", "is_watched"]

# Positions in a chunk. On CPU the intermediate maps then stay in cache, which is also faster.
_POSITIONS = {"cpu": 1024}
_POSITIONS_ELSEWHERE = 65536


def is_traced() -> bool:
    """Whether torch.compile, torch.export or torch.jit.trace records what is done: it must serve other sizes."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_watched(module: nn.Module) -> bool:
    """Whether a forward hook sees a part of a module: what it is given has to be whole, and to stay as it is."""
    everywhere = torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
    return bool(everywhere) or _any_part(module, lambda part: bool(part._forward_hooks or part._forward_pre_hooks))


def in_chunks(
    module: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor, dim: int = 1, halo: int = 0
) -> Tensor:
    """`function(x)` for a function that treats every position alike, in pieces along one axis when inferring.

    Args:
        module: What the function belongs to. If a part of it is in training mode, or normalises by the map at
            hand, the map stays whole, since statistics and random numbers are those of all its positions; and if
            a part has a forward hook, which shall see all of them.
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
    length = max(1, 8 * halo, _POSITIONS.get(x.device.type, _POSITIONS_ELSEWHERE) * total // max(1, positions))
    if total <= length or is_watched(module) or _any_part(module, _looks_at_all_positions):
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


def _looks_at_all_positions(part: nn.Module) -> bool:
    own_statistics = isinstance(part, _NormBase) and part.running_mean is None
    return part.training or own_statistics or isinstance(part, nn.GroupNorm)


def _any_part(module: nn.Module, test: Callable[[nn.Module], bool]) -> bool:
    # `module.modules()` takes several times as long, which small images notice.
    return test(module) or any(_any_part(part, test) for part in module._modules.values() if part is not None)
