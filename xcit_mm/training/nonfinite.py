"""Stop before an optimizer step whose loss or gradients are NaN or infinite, and name where the
value comes from.
"""

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


@HOOKS.register_module()
class NonFiniteHook(Hook):
    """Stop training, or skip the step, if the loss, a gradient or a running statistic of any
    process is not finite.

    The batch is then run forward again, to name the first module with a non-finite output, and the
    images. A batch that has broken the statistics is not skipped. An overflow of scaled gradients
    is left to the loss scaler, until the scale falls below 1. Models with several optimizers are
    not supported.

    Args:
        action: 'stop' raises a FloatingPointError. 'skip' logs it and continues.
        max_skips: Maximum number of steps to skip in a row.
    """

    priority = "HIGH"  # before other hooks save or log the iteration

    def __init__(self, action: str = "stop", max_skips: int = 10) -> None:
        if action not in ("stop", "skip"):
            raise ValueError(f"{action=}: choose 'stop' or 'skip'")
        self.action, self.max_skips, self.skips = action, max_skips, 0
        self._hooked = ExitStack()

    def before_train(self, runner: Runner) -> None:
        self.after_train(runner)  # of a training that raised
        self._runner, self._wrapper, self._checked = runner, runner.optim_wrapper, -1
        self._model: Any = runner.model.module if is_model_wrapper(runner.model) else runner.model
        # A mask may hold -inf on purpose.
        self._buffers = {
            n: b for n, b in self._model.named_buffers() if b.is_floating_point() and is_finite(b)
        }
        # A copy of the model shares these functions, whereas methods would be copied with the run.
        after_forward, before_step = (
            (lambda *given: self._after_forward(*given)),
            (lambda *_: self._before_step()),
        )
        forward = self._model.register_forward_hook(
            after_forward, with_kwargs=True, always_call=True
        )
        for handle in (forward, self._wrapper.optimizer.register_step_pre_hook(before_step)):
            self._hooked.enter_context(handle)

    def after_train(self, runner: Runner) -> None:
        self._hooked.close()

    def _after_forward(self, model: Any, args: tuple, kwargs: dict, output: Any) -> None:
        is_training = model is self._model and model.training  # a copy has the same hooks
        if is_training and output is not None:
            self._given, self._losses = (args, kwargs), output
        elif is_training and get_world_size() == 1 and (found := self._describe(args, kwargs)):
            print_log(
                found, "current", logging.ERROR
            )  # it raised, such as in SciPy's matching of NaN

    def _before_step(self) -> None:
        optimizer = self._wrapper.optimizer
        if not getattr(
            optimizer, "found_inf", 0
        ):  # by which the loss scaler makes a fused optimizer skip the step
            gradients = [
                p.grad
                for group in optimizer.param_groups
                for p in group["params"]
                if p.grad is not None
            ]
            norm = get_total_norm(
                gradients
            )  # a tenth of the time of the maximum, but its squares may overflow
            self._check(norm if norm.isfinite() else get_total_norm(gradients, torch.inf))

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        if (
            self._checked != runner.iter
        ):  # no step: gradients accumulate, or a loss scaler skipped it
            scaler = getattr(self._wrapper, "loss_scaler", None)
            failed = scaler and self._wrapper.should_update() and scaler.get_scale() < 1
            self._check(torch.tensor(torch.inf if failed else 0.0))

    @torch.no_grad()
    def _check(self, norm: Tensor) -> None:
        """Stop or skip in all processes alike if loss, statistics or the norm of the gradients are
        not finite.
        """
        self._checked = self._runner.iter
        loss = self._model.parse_losses(self._losses)[0]
        statistics = get_total_norm(
            [buffer for buffer in self._buffers.values() if buffer.numel()], torch.inf
        )
        finite = (statistics.isfinite() & norm.to(loss.device).isfinite() & loss.isfinite()).float()
        all_reduce(finite, op="min")
        if finite:
            self.skips = 0 if norm > 0 else self.skips
            return
        found = all_gather_object(self._describe(*self._given))
        self._wrapper.optimizer.zero_grad(
            set_to_none=True
        )  # a step without gradients changes nothing
        nothing = "loss or gradients are not finite, every output of a module is"
        message = f"iteration {self._runner.iter}: {'; '.join(filter(None, found)) or nothing}"
        self.skips += 1
        if self.action == "stop" or self.skips > self.max_skips or "the buffer " in message:
            raise FloatingPointError(message)
        print_log(
            f"{message}; skipped ({self.skips} of at most {self.max_skips} in a row)",
            "current",
            logging.ERROR,
        )

    def _describe(self, *given: Any) -> str:
        with self._wrapper.optim_context(self._runner.model):  # in the same precision
            found = describe_non_finite(self._model, *given)
        broken = [
            f"the buffer {name} is not finite"
            for name, x in self._buffers.items()
            if not is_finite(x)
        ]
        return "; ".join([found] * bool(found) + broken[:1])
