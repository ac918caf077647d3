"""A stop before an optimizer step of values that are not finite, with the place they come from."""

import logging
from contextlib import ExitStack
from typing import Any

import torch
from mmengine.dist import all_gather_object, all_reduce, get_world_size
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor
from torch.nn.utils import get_total_norm

from .finite import describe_non_finite, is_finite

BROKEN_BUFFER = "the buffer"  # how the description of a broken running statistic starts


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
        self.skips = 0
        self._hooked = ExitStack()

    def before_train(self, runner: Runner) -> None:
        self.after_train(runner)  # of a training that raised
        self._runner = runner
        self._wrapper = runner.optim_wrapper
        self._checked = -1  # the last iteration whose values were checked
        self._model: Any = runner.model.module if is_model_wrapper(runner.model) else runner.model
        # A mask may hold -inf on purpose.
        self._buffers = {
            name: buffer
            for name, buffer in self._model.named_buffers()
            if buffer.is_floating_point() and is_finite(buffer)
        }

        # A copy of the model shares these functions, whereas methods would be copied with the run.
        def after_forward(*arguments: Any) -> None:
            self._after_forward(*arguments)

        def before_step(*_: Any) -> None:
            self._before_step()

        forward = self._model.register_forward_hook(
            after_forward, with_kwargs=True, always_call=True
        )
        self._hooked.enter_context(forward)
        step = self._wrapper.optimizer.register_step_pre_hook(before_step)
        self._hooked.enter_context(step)

    def after_train(self, runner: Runner) -> None:
        self._hooked.close()

    def _after_forward(self, model: Any, args: tuple, kwargs: dict, output: Any) -> None:
        is_training = model is self._model and model.training  # a copy has the same hooks
        if not is_training:
            return
        if output is not None:
            self._batch = (args, kwargs)
            self._losses = output
        elif get_world_size() == 1:  # it raised, such as in SciPy's matching of NaN
            causes = self._find_causes(args, kwargs)
            if causes:
                print_log("; ".join(causes), "current", logging.ERROR)

    def _before_step(self) -> None:
        optimizer = self._wrapper.optimizer
        # By `found_inf` the loss scaler makes a fused optimizer skip the step.
        if getattr(optimizer, "found_inf", 0):
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        # A tenth of the time of the maximum, but the squares may overflow.
        norm = get_total_norm(gradients)
        if not norm.isfinite():
            norm = get_total_norm(gradients, torch.inf)
        self._check(norm)

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        if self._checked == runner.iter:
            return
        # There was no step: gradients accumulate, or a loss scaler skipped it.
        scaler = getattr(self._wrapper, "loss_scaler", None)
        failed = scaler and self._wrapper.should_update() and scaler.get_scale() < 1
        self._check(torch.tensor(torch.inf if failed else 0.0))

    @torch.no_grad()
    def _check(self, norm: Tensor) -> None:
        """Stop or skip in all processes alike if loss, statistics or gradients are not finite.

        Args:
            norm: Norm of the gradients, 0 if they accumulate.
        """
        self._checked = self._runner.iter
        loss = self._model.parse_losses(self._losses)[0]
        statistics = get_total_norm(
            [buffer for buffer in self._buffers.values() if buffer.numel()], torch.inf
        )
        finite = (statistics.isfinite() & norm.to(loss.device).isfinite() & loss.isfinite()).float()
        all_reduce(finite, op="min")
        if finite:
            if norm > 0:
                self.skips = 0
            return

        reports = all_gather_object(self._find_causes(*self._batch))
        causes = [cause for report in reports for cause in report]
        # A step without gradients changes nothing.
        self._wrapper.optimizer.zero_grad(set_to_none=True)
        unknown = "loss or gradients are not finite, every output of a module is"
        message = f"iteration {self._runner.iter}: {'; '.join(causes) or unknown}"
        self.skips += 1
        is_broken = any(cause.startswith(BROKEN_BUFFER) for cause in causes)
        if self.action == "stop" or self.skips > self.max_skips or is_broken:
            raise FloatingPointError(message)
        skips = f"skipped ({self.skips} of at most {self.max_skips} in a row)"
        print_log(f"{message}; {skips}", "current", logging.ERROR)

    def _find_causes(self, args: tuple, kwargs: dict[str, Any]) -> list[str]:
        """Describe the first value of a batch that is not finite, and a buffer that is not."""
        with self._wrapper.optim_context(self._runner.model):  # in the same precision
            causes = [describe_non_finite(self._model, args, kwargs)]
        for name, buffer in self._buffers.items():
            if not is_finite(buffer):
                causes.append(f"{BROKEN_BUFFER} {name} is not finite")
                break
        return [cause for cause in causes if cause]
