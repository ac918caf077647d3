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
        return
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)


def is_finite(value: Any) -> bool:
    """Return whether all floating-point tensors of nested dicts, lists and tuples are finite."""
    for tensor in tensors_in(value):
        if not tensor.is_floating_point():
            continue
        tensor = tensor.detach()
        # A sum is faster, but it may overflow.
        if not (tensor.sum().isfinite() or tensor.isfinite().all()):
            return False
    return True


@torch.no_grad()
def describe_non_finite(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> str:
    """Run a batch forward again and describe its first value that is not finite, with the images.

    Return '' if all values are finite.
    """
    names = {module: name for name, module in model.named_modules() if name}
    wrong = [] if is_finite((args, kwargs)) else ["the input"]

    def inspect(module: nn.Module, inputs: Any, output: Any) -> None:
        if module in names and not wrong and not is_finite(output):
            wrong.append(f"the output of {names[module]} ({type(module).__name__})")

    # The matching of Mask2Former raises at NaN. `forward` leaves out the hooks of the model itself,
    # which may have called this function.
    with register_module_forward_hook(inspect), suppress(Exception):
        model.forward(*args, **kwargs)
    if not wrong:
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        broken = [name for name, gradient in gradients.items() if not is_finite(gradient)]
        if not broken:
            return ""
        wrong.append(f"the gradient of {broken[-1]}")  # the backward pass begins at the last
    samples = kwargs.get("data_samples") or ()
    paths = [sample.get("img_path") for sample in samples]
    images = preview([path for path in paths if path])
    return f"{wrong[0]} is the first that is not finite{' at ' + images if images else ''}"
