"""Values that are not finite: a stop before the optimizer steps, and what they come from."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from mmengine.dist import all_reduce, get_world_size
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import get_total_norm

from ..utils.cli import log_line
from ..utils.errors import preview


def is_finite(value: Any) -> bool:
    """Return whether all floating-point tensors of nested dicts, lists and tuples are finite."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return all(map(is_finite, value))
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return True
    # A sum is faster, but it may overflow.
    return bool(value.detach().sum().isfinite() or value.isfinite().all())


@HOOKS.register_module()
class NonFiniteHook(Hook):
    """Stop training before the optimizer steps if loss or gradients are not finite.

    All processes raise a FloatingPointError. Each runs its batch forward again, to name its first
    module with a non-finite output, and its images. A step that a loss scaler skips is no error,
    unless the loss is not finite. Models with several optimizers are not supported.
    """

    priority = "HIGH"  # before other hooks save or log the iteration

    def __init__(self) -> None:
        self._checked_iteration = -1  # none

    def before_train(self, runner: Runner) -> None:
        self._runner = runner
        self._optimizer = runner.optim_wrapper.optimizer
        model: Any = runner.model
        self._model = model.module if is_model_wrapper(model) else model

        # A copy of the model shares this function, whereas a method would be copied with the run.
        def after_forward(model: Any, args: tuple, kwargs: dict, output: Any) -> None:
            if model is not self._model or not model.training:  # a copy has the same hook
                return
            if output is not None:
                self._batch = (args, kwargs)
                self._losses = output
            # The model has raised, as SciPy's matching of NaN does. Several processes would have to
            # run the batch again together, and not all may have raised.
            elif get_world_size() == 1:
                cause = self._describe_batch(args, kwargs)
                if cause:
                    log_line(cause, logging.ERROR)

        self._hook_handles = [
            self._model.register_forward_hook(after_forward, with_kwargs=True, always_call=True),
            self._optimizer.register_step_pre_hook(self._before_step),
        ]

    def after_train(self, runner: Runner) -> None:
        for handle in self._hook_handles:
            handle.remove()

    def _before_step(self, *_: Any) -> None:
        # The loss scaler has found an overflow, for which a fused optimizer skips the step itself.
        if getattr(self._optimizer, "found_inf", 0):
            return
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        # The norm takes a tenth of the time of the maximum, but its squares may overflow.
        norm = get_total_norm(gradients)
        if not norm.isfinite():
            norm = get_total_norm(gradients, torch.inf)
        self._check(norm)

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        # There was no step: gradients accumulate, or the loss scaler skipped it.
        if self._checked_iteration != runner.iter:
            self._check(torch.zeros(()))

    @torch.no_grad()
    def _check(self, gradient_norm: Tensor) -> None:
        """Raise FloatingPointError if the loss or the norm is not finite in any process."""
        self._checked_iteration = self._runner.iter
        loss = self._model.parse_losses(self._losses)[0]
        is_finite_here = loss.isfinite() & gradient_norm.to(loss.device).isfinite()
        all_finite = is_finite_here.float()
        all_reduce(all_finite, op="min")
        if all_finite:
            return
        cause = self._describe_batch(*self._batch)
        if not cause:
            images = _name_images(self._batch[1])
            cause = f"loss or gradients are not finite, here or in another process{images}"
        raise FloatingPointError(f"iteration {self._runner.iter}: {cause}")

    @torch.no_grad()
    def _describe_batch(self, args: tuple, kwargs: dict[str, Any]) -> str:
        """Run a batch forward again, in the precision of training, and name its first value that is
        not finite, and the images. Return '' if all values are finite.
        """
        names = {module: name for name, module in self._model.named_modules() if name}
        sources = [] if is_finite((args, kwargs)) else ["the input"]

        def inspect(module: nn.Module, inputs: Any, output: Any) -> None:
            if module in names and not sources and not is_finite(output):
                sources.append(f"the output of {names[module]} ({type(module).__name__})")

        # All processes run it, since modules such as SyncBN wait for each other. The matching of
        # Mask2Former raises at NaN. `forward` leaves out the hooks of the model itself, which may
        # have called this function.
        precision = self._runner.optim_wrapper.optim_context(self._runner.model)
        with precision, register_module_forward_hook(inspect), suppress(Exception):
            self._model.forward(*args, **kwargs)
        if not sources:
            return ""
        return f"{sources[0]} is the first that is not finite{_name_images(kwargs)}"


def _name_images(kwargs: dict[str, Any]) -> str:
    """Return ' at ' and the first paths of the images of a batch, or '' if it has no paths."""
    paths = [sample.get("img_path") for sample in kwargs.get("data_samples") or ()]
    images = preview(list(filter(None, paths)))
    return f" at {images}" if images else ""
