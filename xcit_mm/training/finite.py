"""Find the first value of a training iteration that is not finite."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from ..utils.errors import preview


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested dicts, lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(part)


def is_finite(value: Any) -> bool:
    """Return whether all floating-point tensors of nested dicts, lists and tuples are finite."""
    given = (each.detach() for each in tensors_in(value) if each.is_floating_point())
    # A sum is faster, but it may overflow.
    return all(bool(each.sum().isfinite() or each.isfinite().all()) for each in given)


@torch.no_grad()
def describe_non_finite(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> str:
    """Run a batch forward again. Describe the first value that is not finite and the images, or
    return ''.
    """
    names = {module: name for name, module in model.named_modules() if name}
    wrong = [] if is_finite((args, kwargs)) else ["the input"]

    def inspect(module: nn.Module, given: Any, output: Any) -> None:
        if module in names and not wrong and not is_finite(output):
            wrong.append(f"the output of {names[module]} ({type(module).__name__})")

    with (
        register_module_forward_hook(inspect),
        suppress(Exception),
    ):  # the matching of Mask2Former raises at NaN
        model.forward(
            *args, **kwargs
        )  # without the hooks of the model, which may have called this function
    gradients = [name for name, p in model.named_parameters() if not is_finite(p.grad)]
    wrong += [
        f"the gradient of {name}" for name in gradients[-1:]
    ]  # the backward pass begins at the last
    images = [
        sample.img_path
        for sample in kwargs.get("data_samples") or ()
        if getattr(sample, "img_path", None)
    ]
    return (
        f"{wrong[0]} is the first that is not finite" + f" at {preview(images)}" * bool(images)
        if wrong
        else ""
    )
