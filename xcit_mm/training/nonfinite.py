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

    def before_train(self, runner: Runner) -> None:
        self._runner = runner
        self._optimizer = runner.optim_wrapper.optimizer
        self._checked_iteration = -1  # none
        model: Any = runner.model
        self._model = model.module if is_model_wrapper(model) else model

        # A copy of the model shares this function, whereas a method would be copied with the run.
        def keep_batch(model: Any, args: tuple, kwargs: dict, output: Any) -> None:
            if model is not self._model or not model.training:  # a copy has the same hook
                return
            self._batch = (args, kwargs)
            self._losses = output
            # The model has raised, as SciPy's matching of NaN does: maybe in this process alone.
            if output is None and get_world_size() == 1:
                source = self._find_source()
                if source:
                    log_line(source + self._name_images(), logging.ERROR)

        self._hook_handles = [
            self._model.register_forward_hook(keep_batch, with_kwargs=True, always_call=True),
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
        self._check(norm if norm.isfinite() else get_total_norm(gradients, torch.inf))

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        # There was no step: gradients accumulate, or the loss scaler skipped it.
        if self._checked_iteration != runner.iter:
            self._check(torch.zeros(()))

    @torch.no_grad()
    def _check(self, gradient_norm: Tensor) -> None:
        """Raise FloatingPointError if the loss or the norm is not finite in any process."""
        self._checked_iteration = self._runner.iter
        loss = self._model.parse_losses(self._losses)[0]
        all_finite = (loss + gradient_norm.to(loss.device)).isfinite().float()
        all_reduce(all_finite, op="min")
        if all_finite:
            return
        unknown = "loss or gradients are not finite, here or in another process"
        cause = (self._find_source() or unknown) + self._name_images()
        raise FloatingPointError(f"iteration {self._runner.iter}: {cause}")

    def _name_images(self) -> str:
        _, kwargs = self._batch
        paths = [sample.get("img_path") for sample in kwargs.get("data_samples") or ()]
        images = preview(list(filter(None, paths)))
        return f" at {images}" if images else ""

    @torch.no_grad()
    def _find_source(self) -> str:
        """Run the last batch forward again, in the precision of training, and name its first value
        that is not finite. Return '' if all are finite.
        """
        args, kwargs = self._batch
        names = {module: name for name, module in self._model.named_modules() if name}
        sources = [] if is_finite((args, kwargs)) else ["the input"]

        def inspect(module: nn.Module, inputs: Any, output: Any) -> None:
            if module in names and not sources and not is_finite(output):
                sources.append(f"the output of {names[module]} ({type(module).__name__})")

        # All processes run it, since modules such as SyncBN wait for each other. A loss may raise.
        precision = self._runner.optim_wrapper.optim_context(self._runner.model)
        with precision, register_module_forward_hook(inspect), suppress(Exception):
            self._model.forward(*args, **kwargs)
        return f"{sources[0]} is the first that is not finite" if sources else ""
