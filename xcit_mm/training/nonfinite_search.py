"""Where the first NaN or infinite value of a training iteration comes from."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from mmengine.dist import all_gather_object
from torch import Tensor, nn

__all__ = ["find_non_finite"]


def find_non_finite(model: nn.Module, args: tuple, kwargs: dict) -> str:
    """Where the first NaN or infinite value of a training iteration is: input, parameter, output or gradient.

    Returns '' if all are finite; raises what the forward pass raises with values that are.

    The processes of a distributed run call it together. Each goes on only where all do, since
    forward and backward passes may communicate (SyncBN does), and all are told the same.

    Args:
        model: In training mode. It keeps its gradients; its BatchNorm sees the batch.
        args, kwargs: Of `model(...)`, which returns losses as mmengine's models do.
    """
    found = _of_all_processes(_in_given_values(model, args, kwargs))
    if found:
        return found
    with torch.enable_grad():
        loss, order, wrong_output = _forward(model, args, kwargs)
        found = _of_all_processes(wrong_output)
        if found:
            return found
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(loss, tuple(named.values()), allow_unused=True)
    wrong = [name for name, g in zip(named, gradients, strict=True) if g is not None and not _is_finite(g)]
    return _of_all_processes(_first_gradient(loss, wrong, order))


def _of_all_processes(found: str) -> str:
    """What each process has found, in one line; '' if none has."""
    every = all_gather_object(found)
    if len(every) == 1:
        return found
    return ", ".join(f"in process {rank} {found}" for rank, found in enumerate(every) if found)


def _in_given_values(model: nn.Module, args: tuple, kwargs: dict) -> str:
    if not _is_finite((args, kwargs)):
        return "the input holds values that are not finite"
    name = next((name for name, parameter in model.named_parameters() if not _is_finite(parameter)), None)
    return f"the parameter {name} holds values that are not finite" if name else ""


def _forward(model: Any, args: tuple, kwargs: dict) -> tuple[Tensor, list[str], str]:
    """The loss, the modules in the order of their outputs, and what is not finite by which of them; '' if nothing."""
    order: list[str] = []
    bad: list[str] = []

    def look(name: str, module: nn.Module, output: Any) -> None:
        order.append(name)
        if not bad and not _is_finite(output):
            bad.append(f"{name} ({type(module).__name__})")

    handles = [
        module.register_forward_hook(lambda module, _, output, name=name: look(name, module, output))
        for name, module in model.named_modules()
        if name
    ]
    try:
        loss, _ = model.parse_losses(model(*args, **kwargs))
    except Exception as error:
        if not bad:
            raise
        raised = f"{type(error).__name__} ({_first_line(error)})"
        return torch.tensor(torch.nan), order, f"the forward pass raised {raised} after the output of {bad[0]}"
    finally:
        for handle in handles:
            handle.remove()  # the backward pass may call modules again, to recompute
    # Of the model itself only the loss counts: accuracies beside it may be anything.
    origin = bad[0] if bad else f"the model ({type(model).__name__})"
    wrong = "" if loss.isfinite() else f"the loss is {loss.item()}, first in the output of {origin}"
    return loss, [*order, ""], wrong


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _first_gradient(loss: Tensor, wrong: list[str], order: list[str]) -> str:
    """Of the parameters whose gradients are not finite, the one that the backward pass meets first."""
    # It meets the modules in reverse: the last one is the first.
    last_use = {name: place for place, name in enumerate(order)}

    def place(parameter: str) -> int:
        module = parameter.rpartition(".")[0]
        while module and module not in last_use:  # used by a module around its own
            module = module.rpartition(".")[0]
        return last_use[module]

    if not wrong:
        return ""
    return f"the loss is {loss.item():g}, but gradients are not finite, first that of {max(wrong, key=place)}"


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


@torch.no_grad()  # or a checkpointed function would find more tensors kept than it recomputes
def _is_finite(value: Any) -> bool:
    return all(bool(t.isfinite().all()) for t in _tensors(value) if t.is_floating_point())
