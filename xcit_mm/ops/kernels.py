"""What operators share: torchvision's kernels, gradients, and the error of a missing operator."""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor


def raise_missing(name: str, *args: object, **options: object) -> NoReturn:
    """Raise NotImplementedError in place of the operator `name`, with any arguments."""
    source = "torchvision or a compiled mmcv" if "deform_conv" in name else "a compiled mmcv"
    raise NotImplementedError(
        f"mmcv's operator {name} is missing: install {source}, see docs/install.md"
    )


@functools.cache
def torchvision_kernels() -> Any:
    """Return torchvision's kernels, or None where it is missing or built for another torch."""
    try:
        importlib.import_module("torchvision")  # which adds them to torch.ops
    except (ImportError, RuntimeError):
        return None
    return torch.ops.torchvision


def write_gradients(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    grad_output: Tensor,
    targets: Sequence[Tensor],
) -> None:
    """Write the gradients of a function with respect to its inputs into `targets`."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    with torch.enable_grad():
        grads = torch.autograd.grad(function(*leaves), leaves, grad_output)
    for target, grad in zip(targets, grads, strict=True):
        target.copy_(grad)
