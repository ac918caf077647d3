"""Locate the first NaN or infinite value of a training iteration."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from mmengine.dist import all_gather_object
from torch import Tensor, nn

from ..utils.errors import reason


def find_non_finite(model: nn.Module, args: tuple, kwargs: dict) -> str:
    """Locate the first NaN or infinite value of a training iteration: input, parameter, output, gradient or buffer.

    All processes of a distributed run call this function together and get the same result. They continue together too,
    because forward and backward passes may communicate, as those of SyncBN do.

    Args:
        model: Model in training mode. Its gradients stay unchanged, its BatchNorm statistics change.

    Returns:
        A description of the first non-finite value, or '' if all values are finite.

    Raises:
        Exception: An error of the forward pass that occurs with finite values.
    """
    found = _gather(_in_given_values(model, args, kwargs))
    if found:
        return found
    buffers = finite_buffers(model)
    with torch.enable_grad():
        loss, order, wrong_output = _forward(model, args, kwargs)
        found = _gather(wrong_output)
        if found:
            return found
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(loss, tuple(named.values()), allow_unused=True)
    wrong = [name for name, g in zip(named, gradients, strict=True) if g is not None and not is_finite(g)]
    found = _gather(_first_gradient(loss, wrong, order))
    name = next((name for name, buffer in model.named_buffers() if name in buffers and not is_finite(buffer)), None)
    return found or _gather(f"loss and gradients are finite, but the buffer {name} is not" if name else "")


def finite_buffers(model: nn.Module) -> set[str]:
    """Return the names of the floating-point buffers that hold finite values only."""
    return {name for name, buffer in model.named_buffers() if buffer.is_floating_point() and is_finite(buffer)}


def _gather(found: str) -> str:
    """Join the descriptions of all processes."""
    every = all_gather_object(found)
    if len(every) == 1:
        return found
    return ", ".join(f"in process {rank} {found}" for rank, found in enumerate(every) if found)


def _in_given_values(model: nn.Module, args: tuple, kwargs: dict) -> str:
    if not is_finite((args, kwargs)):
        return "the input holds values that are not finite"
    name = next((name for name, parameter in model.named_parameters() if not is_finite(parameter)), None)
    return f"the parameter {name} holds values that are not finite" if name else ""


def _forward(model: Any, args: tuple, kwargs: dict) -> tuple[Tensor, list[str], str]:
    """Return the loss, the modules in the order of their outputs, and a description of the first non-finite output."""
    order: list[str] = []
    bad: list[str] = []

    def inspect(name: str, module: nn.Module, output: Any) -> None:
        order.append(name)
        if not bad and not is_finite(output):
            bad.append(f"{name} ({type(module).__name__})")

    handles = [
        module.register_forward_hook(lambda module, _, output, name=name: inspect(name, module, output))
        for name, module in model.named_modules()
        if name
    ]
    try:
        loss, _ = model.parse_losses(model(*args, **kwargs))
    except Exception as error:
        if not bad:
            raise
        wrong = f"the forward pass raised {reason(error)} after the output of {bad[0]}"
        return torch.tensor(torch.nan), order, wrong
    finally:
        for handle in handles:
            handle.remove()  # the backward pass may call modules again, to recompute
    # Only the loss of the model itself counts: accuracies in the same output may be non-finite.
    origin = bad[0] if bad else f"the model ({type(model).__name__})"
    wrong = "" if loss.isfinite() else f"the loss is {loss.item()}, first in the output of {origin}"
    return loss, [*order, ""], wrong


def _first_gradient(loss: Tensor, wrong: list[str], order: list[str]) -> str:
    """Describe the first parameter with a non-finite gradient in the order of the backward pass."""
    # The backward pass visits the modules in reverse order.
    last_use = {name: place for place, name in enumerate(order)}

    def place(parameter: str) -> int:
        module = parameter.rpartition(".")[0]
        while module and module not in last_use:  # a module around the parameter's own uses it
            module = module.rpartition(".")[0]
        return last_use[module]

    if not wrong:
        return ""
    return f"the loss is {loss.item():g}, but gradients are not finite, first that of {max(wrong, key=place)}"


def iter_tensors(value: Any) -> Iterator[Tensor]:
    """Iterate over the tensors of nested dicts, lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from iter_tensors(item)


@torch.no_grad()  # with gradients, a checkpointed function would find more saved tensors than it recomputes
def is_finite(value: Any) -> bool:
    """Whether all floating-point tensors of nested dicts, lists and tuples are finite."""
    # A sum takes a tenth of the time. It is not finite if a value is not, or if it overflows.
    tensors = (tensor for tensor in iter_tensors(value) if tensor.is_floating_point())
    return all(bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all()) for tensor in tensors)
