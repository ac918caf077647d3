"""Trading time for memory in training: what is cheap is computed again in the backward pass instead of kept."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

__all__ = ["recompute"]

Output = TypeVar("Output", bound=Tensor | list[Tensor])


def recompute(module: nn.Module, function: Callable[..., Output], *args: Any, when_compiled: bool = False) -> Output:
    """`function(*args)`, keeping only `args` for the backward pass, which calls the function again.

    Args:
        module: What the function belongs to; its BatchNorm counts the batch once.
        function: What is computed again.
        *args: Its arguments.
        when_compiled: Whether under torch.compile too, which otherwise decides for itself what to keep.
    """
    compiling = torch.compiler.is_compiling()
    if not torch.is_grad_enabled() or (compiling and not when_compiled):
        return function(*args)
    if compiling:
        # Running statistics are outputs of the compiled forward pass, which the backward pass does not write again.
        return checkpoint(function, *args, use_reentrant=False)
    return checkpoint(function, *args, use_reentrant=False, context_fn=partial(_contexts, module))


def _contexts(module: nn.Module) -> tuple[AbstractContextManager, AbstractContextManager]:
    return nullcontext(), _FrozenStatistics(module)


class _FrozenStatistics(AbstractContextManager):
    """BatchNorm in it normalises by the batch and counts nothing. Entered again for every order of derivatives."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __enter__(self) -> None:
        norms: list[Any] = [m for m in self.module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
        self.kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, norm.num_batches_tracked.clone()

    def __exit__(self, *_: object) -> None:
        for norm, momentum, count in self.kept:
            norm.momentum, norm.num_batches_tracked = momentum, count
