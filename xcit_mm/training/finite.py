"""Find the first value of a training iteration that is not finite."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from ..utils.errors import preview


@torch.no_grad()
def is_finite(value: Any) -> bool:
    """Return whether all floating-point tensors of nested dicts, lists and tuples are finite."""
    if isinstance(value, Tensor):  # a sum is faster, but it may overflow
        return not value.is_floating_point() or bool(value.sum().isfinite()) or bool(value.isfinite().all())
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return all(map(is_finite, parts))


@torch.no_grad()
def describe_non_finite(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> str:
    """Run a batch forward again. Describe the first value that is not finite and the images, or return ''."""
    names = {module: name for name, module in model.named_modules() if name}
    wrong = [] if is_finite((args, kwargs)) else ["the input"]

    def inspect(module: nn.Module, given: Any, output: Any) -> None:
        if not wrong and not is_finite(output):
            wrong.append(f"the output of {names[module]} ({type(module).__name__})")

    handles = [module.register_forward_hook(inspect) for module in names]
    with suppress(Exception):  # NaN makes the matching of Mask2Former raise
        model(*args, **kwargs)
    for handle in handles:
        handle.remove()
    gradients = [name for name, p in model.named_parameters() if not is_finite(p.grad)]
    wrong += [f"the gradient of {name}" for name in gradients[-1:]]  # the backward pass begins at the last
    images = [sample.img_path for sample in kwargs.get("data_samples") or () if getattr(sample, "img_path", None)]
    return f"{wrong[0]} is the first that is not finite" + f" at {preview(images)}" * bool(images) if wrong else ""
