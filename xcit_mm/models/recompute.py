"""Less memory in training: cheap activations are computed again in the backward pass instead of stored."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..utils.compat import BatchNorm, has_hooks, in_function_transform

Output = TypeVar("Output", bound=Tensor | list[Tensor])


def recompute(module: nn.Module, function: Callable[..., Output], *args: Any, always: bool = False) -> Output:
    """Compute `function(*args)` and store `args` alone for the backward pass, which calls the function again.

    Args:
        module: Owner of the function. Its BatchNorm counts the batch once.
        always: Whether to do so under torch.compile too, which by default decides itself what to store, and where parts
            have hooks, which then run twice. `torch.func` has no recomputation.
    """
    compiling = torch.compiler.is_compiling()
    if not torch.is_grad_enabled() or (not always and (compiling or has_hooks(module))):
        return function(*args)
    if not compiling and in_function_transform():
        return function(*args)
    if compiling:
        # Running statistics are outputs of the compiled forward pass, which the backward pass does not write again.
        return checkpoint(function, *args, use_reentrant=False)
    contexts = lambda: (nullcontext(), _FrozenStatistics(module))  # noqa: E731
    return checkpoint(function, *args, use_reentrant=False, context_fn=contexts)


class _FrozenStatistics(AbstractContextManager):
    """Lets BatchNorm normalise by the batch without counting it. Entered again for every order of derivatives."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __enter__(self) -> None:
        norms: list[Any] = [m for m in self.module.modules() if isinstance(m, BatchNorm) and m.track_running_stats]
        self.saved = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, norm.num_batches_tracked.clone()

    def __exit__(self, *_: object) -> None:
        for norm, momentum, count in self.saved:
            norm.momentum, norm.num_batches_tracked = momentum, count
