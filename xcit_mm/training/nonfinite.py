"""Values that are not finite: a stop before the optimizer steps, and what they come from."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from mmengine.dist import all_gather_object, all_reduce, get_world_size
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
    """Stop training, or skip a step, if loss, gradients or running statistics are not finite.

    The values of one process stop all. The batch is then run forward again, to name the first
    module with a non-finite output, and the images. A batch that has broken the statistics is not
    skipped. An overflow of scaled gradients is left to the loss scaler, until the scale falls
    below 1. Models with several optimizers are not supported.

    Args:
        action: 'stop' raises a FloatingPointError. 'skip' logs it and continues.
        max_skips: Maximum number of steps to skip in a row.
    """

    priority = "HIGH"  # before other hooks save or log the iteration

    def __init__(self, action: str = "stop", max_skips: int = 10) -> None:
        if action not in ("stop", "skip"):
            raise ValueError(f"{action=}: choose 'stop' or 'skip'")
        self.action = action
        self.max_skips = max_skips
        self.skips = 0  # in a row

    def before_train(self, runner: Runner) -> None:
        self._runner = runner
        self._optimizer = runner.optim_wrapper.optimizer
        model: Any = runner.model
        self._model = model.module if is_model_wrapper(model) else model
        self._checked_iteration = -1  # none
        self._statistics = {
            name: buffer
            for name, buffer in self._model.named_buffers()
            if name.endswith(("running_mean", "running_var"))
        }

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
        if self._check_step(norm.isfinite()):
            self.skips = 0

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        if self._checked_iteration == runner.iter:
            return
        # There was no step: gradients accumulate, or the loss scaler skipped it.
        wrapper: Any = runner.optim_wrapper
        scaler = getattr(wrapper, "loss_scaler", None)
        # A scale below 1 that still overflows is not a fault of the scale.
        overflows_unscaled = scaler and wrapper.should_update() and scaler.get_scale() < 1
        self._check_step(torch.tensor(not overflows_unscaled))

    @torch.no_grad()
    def _check_step(self, are_gradients_finite: Tensor) -> bool:
        """Return whether gradients, loss and running statistics are finite in all processes.

        If not, leave out the step, or raise FloatingPointError.
        """
        self._checked_iteration = self._runner.iter
        loss = self._model.parse_losses(self._losses)[0]
        largest_statistic = get_total_norm(list(self._statistics.values()), torch.inf)
        checks = (loss.isfinite(), are_gradients_finite, largest_statistic.isfinite())
        all_finite = torch.stack([check.to(loss.device) for check in checks]).all().float()
        all_reduce(all_finite, op="min")
        if not all_finite:
            self._stop_or_skip()
        return bool(all_finite)

    def _stop_or_skip(self) -> None:
        """Raise FloatingPointError with the cause, or log it and drop the gradients."""
        broken = [name for name, buffer in self._statistics.items() if not is_finite(buffer)]
        statistics = f"the buffer {broken[0]} is not finite" if broken else ""
        reports = all_gather_object((self._describe_batch(*self._batch), statistics))
        self._optimizer.zero_grad(set_to_none=True)  # a step without gradients changes nothing
        causes = [cause for report in reports for cause in report if cause]
        unknown = "loss or gradients are not finite, every output of a module is"
        message = f"iteration {self._runner.iter}: {'; '.join(causes) or unknown}"
        are_statistics_broken = any(statistics for _, statistics in reports)
        self.skips += 1
        # Statistics that are broken stay so after a skip.
        if self.action == "stop" or self.skips > self.max_skips or are_statistics_broken:
            raise FloatingPointError(message)
        skips = f"skipped ({self.skips} of at most {self.max_skips} in a row)"
        log_line(f"{message}; {skips}", logging.ERROR)

    @torch.no_grad()
    def _describe_batch(self, args: tuple, kwargs: dict[str, Any]) -> str:
        """Run a batch forward again, in the precision of training, and name its first value that is
        not finite, and the images. Return '' if all values are finite.
        """
        with self._runner.optim_wrapper.optim_context(self._runner.model):
            source = _find_non_finite(self._model, args, kwargs)
        if not source:
            return ""
        paths = [sample.get("img_path") for sample in kwargs.get("data_samples") or ()]
        images = preview(list(filter(None, paths)))
        where = f" at {images}" if images else ""
        return f"{source} is the first that is not finite{where}"


def _find_non_finite(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> str:
    """Name the first of inputs, outputs of modules and gradients that is not finite, or ''."""
    names = {module: name for name, module in model.named_modules() if name}
    sources = [] if is_finite((args, kwargs)) else ["the input"]

    def inspect(module: nn.Module, inputs: Any, output: Any) -> None:
        if module in names and not sources and not is_finite(output):
            sources.append(f"the output of {names[module]} ({type(module).__name__})")

    # All processes run it, since modules such as SyncBN wait for each other. The matching of
    # Mask2Former raises at NaN. `forward` leaves out the hooks of the model itself, which may have
    # called this function.
    with register_module_forward_hook(inspect), suppress(Exception):
        model.forward(*args, **kwargs)
    if sources:
        return sources[0]
    # The backward pass begins at the last parameter.
    for name, parameter in reversed(list(model.named_parameters())):
        if not is_finite(parameter.grad):
            return f"the gradient of {name}"
    return ""
