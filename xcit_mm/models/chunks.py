"""Inference in chunks: the wide intermediate maps of a high-resolution image are never in memory as a whole."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..utils.compat import NormBase, any_submodule, has_hooks

# Positions in a chunk, measured. On a CPU the intermediate maps then stay in cache, which is also faster; in half
# precision larger products make up for more.
_CPU_POSITIONS, _CPU_HALF_POSITIONS, _GPU_POSITIONS = 1024, 2048, 65536


def is_traced() -> bool:
    """Return whether torch.compile, torch.export or torch.jit.trace records a graph, which must serve other sizes."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def in_chunks(
    module: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor, dim: int = 1, halo: int = 0
) -> Tensor:
    """Compute `function(x)`, in inference in pieces along one axis, for a function that treats every position alike.

    Args:
        module: Owner of the function. The map stays whole if a submodule is in training mode or normalises by the
            current map, since statistics and random numbers belong to all positions, or if it has hooks or is of
            another package, either of which may use all positions.
        function: Maps n entries along `dim` to k n entries, for any n.
        x: (B, N, ..., C), or (B, C, H, W) with `dim=2`.
        dim: The axis to cut.
        halo: Number of entries to each side on which an entry of the result depends, if k is 1.
    """
    if torch.is_grad_enabled() or is_traced():
        return function(x)
    positions = x.numel() // x.shape[1 if dim == 2 else -1]
    total = x.shape[dim]
    limit = _GPU_POSITIONS
    if x.device.type == "cpu":
        limit = _CPU_HALF_POSITIONS if x.element_size() == 2 else _CPU_POSITIONS
    # Long enough that the halo, which is computed twice, is the smaller part.
    length = max(1, 8 * halo, limit * total // max(1, positions))
    if total <= length or has_hooks(module) or any_submodule(module, _needs_whole_map):
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


def _needs_whole_map(module: nn.Module) -> bool:
    own_statistics = isinstance(module, NormBase) and module.running_mean is None
    known = isinstance(module, NormBase) or type(module).__module__.startswith(("torch.nn.", "xcit_mm."))
    return module.training or own_statistics or isinstance(module, nn.GroupNorm) or not known
