"""Catch the first loss, gradient or BatchNorm statistic that is not finite before it reaches a checkpoint."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from mmengine.dist import all_reduce, get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn

from ..utils.compat import without_process_group
from .nonfinite_search import finite_buffers
from .random_state import get_random_state, set_random_state
from .snapshots import ALL_FINITE, copy_tensors, locate_again, write_snapshot


@dataclass
class Iteration:
    """A training iteration, and whether loss and gradients have been inspected."""

    start: dict[str, Any]  # `args`, `kwargs`, `buffers`, `random_state`, on which the forward pass depends
    finite_loss: Tensor = field(default_factory=lambda: torch.tensor(True))
    inspected: bool = False


class _ForwardHook:
    """Calls a function. In a copy of the model, or in a file of the model, it does nothing."""

    def __init__(self, function: Callable[..., None] | None = None) -> None:
        self._function = function

    def __call__(self, *given: Any) -> None:
        if self._function:
            self._function(*given)

    def __reduce__(self) -> tuple[type["_ForwardHook"], tuple]:
        return type(self), ()


@HOOKS.register_module()
class NonFiniteHook(Hook):
    """Stop training or skip the batch when the loss, a gradient or a buffer becomes NaN or infinite.

    The buffers hold the statistics of BatchNorm. A pixel of 1e20 makes a variance infinite while the loss is finite.

    All processes together run the iteration a second time to find the module that produced the first non-finite
    value. Every process writes a snapshot to the work directory, from which `replay` repeats the iteration. The
    optimizer step is left out, so that weights, optimizer and BatchNorm statistics stay as before the iteration.

    In mixed precision the loss scaler skips the step when scaled gradients overflow. The hook reports such an overflow
    only when the scale has fallen below 1. With gradient accumulation every batch is inspected. With a loss scaler the
    snapshot is of the last batch.

    A non-finite value that makes the forward pass raise is caught too. In a distributed run the process that raised
    searches alone, and training stops regardless of `action`.

    Args:
        action: 'stop' raises an error. 'skip' logs the error and continues.
        max_skips: Maximum number of batches to skip in a run. The next one stops training.

    Raises:
        ValueError: If `action` is neither 'stop' nor 'skip'.
        FloatingPointError: When training stops.
    """

    priority = "HIGH"  # before other hooks save or log the iteration

    def __init__(self, action: str = "stop", max_skips: int = 10) -> None:
        if action not in ("stop", "skip"):
            raise ValueError(f"{action=}: choose 'stop' or 'skip'")
        self.action = action
        self.max_skips = max_skips
        self.skips = 0
        self._undo = ExitStack()

    def before_train(self, runner: Runner) -> None:
        self._undo.close()  # after a training that raised
        self._runner = runner
        self._model: Any = runner.model.module if is_model_wrapper(runner.model) else runner.model
        self._finite_buffers = finite_buffers(self._model)  # a mask may hold -inf on purpose
        wrapper = runner.optim_wrapper
        self._wrappers = list(wrapper.values()) if isinstance(wrapper, OptimWrapperDict) else [wrapper]
        self._started: Iteration | None = None  # its forward pass has not returned a loss
        self._iteration = Iteration({}, inspected=True)

        # A copy of the model has the same function, and a file of the model has the method of its class.
        own_train_step = runner.model.train_step

        def train_step(model: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
            if model is not runner.model:
                return type(model).train_step(model, *args, **kwargs)
            return self._guard(own_train_step, args, kwargs)

        runner.model.train_step = MethodType(train_step, runner.model)
        self._undo.callback(setattr, runner.model, "train_step", own_train_step)
        for handle in (
            self._model.register_forward_pre_hook(_ForwardHook(self._before_forward), with_kwargs=True),
            self._model.register_forward_hook(_ForwardHook(self._after_forward)),
            *(wrapper.optimizer.register_step_pre_hook(self._before_step) for wrapper in self._wrappers),
        ):
            self._undo.callback(handle.remove)

    def after_train(self, runner: Runner) -> None:
        self._undo.close()

    def _before_forward(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        if model.training:
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            start = dict(args=args, kwargs=kwargs, buffers=buffers, random_state=get_random_state())
            self._started = Iteration(start)

    @torch.no_grad()
    def _after_forward(self, model: Any, args: tuple, output: Any) -> None:
        if self._started and isinstance(output, dict):  # the losses, not the output of `mode="tensor"`
            self._iteration = self._started
            self._iteration.finite_loss = model.parse_losses(output)[0].isfinite()
        self._started = None

    def _guard(self, train_step: Any, args: tuple, kwargs: dict) -> dict[str, Tensor]:
        """Run a training step. A non-finite value may make its forward pass raise, such as in SciPy's matching."""
        self._started = None
        try:
            return train_step(*args, **kwargs)
        except Exception as error:
            started = self._started
            if started is None or isinstance(error, torch.OutOfMemoryError):
                raise
            snapshot = self._snapshot(started)
            with without_process_group():  # the other processes may not have raised
                try:
                    found = self._locate(snapshot)
                except Exception:  # the same error with finite values only
                    found = ""
            if not found:
                raise
            self._report(found, snapshot, error)
        started.inspected = True
        self._iteration = started
        return dict(loss=torch.tensor(torch.nan))

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if not getattr(optimizer, "found_inf", 0):  # the loss scaler makes a fused optimizer leave out this step
            self._inspect([optimizer])

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict | None = None
    ) -> None:
        if self._iteration.inspected:
            return
        # No optimizer took a step: gradients accumulate, or the loss scaler skipped the step.
        scaled = [each for each in self._wrappers if hasattr(each, "loss_scaler") and each.loss_scaler.is_enabled()]
        unscaled = [wrapper.optimizer for wrapper in self._wrappers if wrapper not in scaled]
        exhausted = any(wrapper.should_update() and wrapper.loss_scaler.get_scale() < 1 for wrapper in scaled)
        self._inspect(unscaled, exhausted)

    def _inspect(self, optimizers: list[torch.optim.Optimizer], scale_exhausted: bool = False) -> None:
        """Report the iteration unless loss, buffers and the gradients of the optimizers are finite in every process."""
        iteration = self._iteration
        iteration.inspected = True
        gradients = [p.grad for o in optimizers for g in o.param_groups for p in g["params"] if p.grad is not None]
        buffers = [b for name, b in self._model.named_buffers() if name in self._finite_buffers]
        finite = (iteration.finite_loss & _all_finite(gradients + buffers) & (not scale_exhausted)).float()
        all_reduce(finite, op="min")
        if not finite:
            snapshot = self._snapshot(iteration)
            self._report(self._locate(snapshot), snapshot)
            iteration.finite_loss = torch.tensor(True)  # the other optimizers of the iteration do not report it again

    def _snapshot(self, iteration: Iteration) -> dict[str, Any]:
        wrapper = self._wrappers[0]
        return dict(
            iteration=self._runner.iter,
            parameters=dict(self._model.named_parameters()),
            autocast=dict(
                device_type=next(self._model.parameters()).device.type,
                dtype=getattr(wrapper, "cast_dtype", None),
                enabled=hasattr(wrapper, "loss_scaler"),
            ),
            **iteration.start,
        )

    def _locate(self, snapshot: dict[str, Any]) -> str:
        """Locate the first non-finite value, and restore buffers and random generators as before the iteration."""
        iteration, random_state = self._iteration, get_random_state()
        try:
            return locate_again(self._model, snapshot)
        finally:
            self._iteration = iteration  # the forward pass of the search was recorded too
            set_random_state(random_state)
            copy_tensors(snapshot["buffers"], self._model)

    def _report(self, found: str, snapshot: dict[str, Any], cause: Exception | None = None) -> None:
        """Drop the gradients, which makes optimizer steps void, and raise or log."""
        for wrapper in self._wrappers:
            wrapper.optimizer.zero_grad(set_to_none=True)
        runner = self._runner
        message = f"iteration {runner.iter}: {found or ALL_FINITE}; {_write(runner, snapshot, bool(found))}"
        self.skips += 1
        # The other processes wait for data of a process that raised, so they cannot skip the batch.
        must_stop = self.action == "stop" or (cause is not None and get_world_size() > 1)
        if must_stop or self.skips > self.max_skips:
            skipped = f"; {self.max_skips} skipped before" if not must_stop else ""
            raise FloatingPointError(message + skipped) from cause
        runner.logger.error(f"{message}; skipped ({self.skips} of at most {self.max_skips})")


@torch.no_grad()
def _all_finite(tensors: list[Tensor]) -> Tensor:
    # The maximum norm: a sum of squares may overflow although every value is finite.
    norms = [torch.linalg.vector_norm(tensor, ord=torch.inf) for tensor in tensors if tensor.numel()]
    return torch.stack(norms).isfinite().all() if norms else torch.tensor(True)


def _write(runner: Runner, snapshot: dict[str, Any], reproduces: bool) -> str:
    """Write a snapshot to the work directory. Return the command for it, or why it could not be written."""
    rank = f"_rank{get_rank()}" if get_world_size() > 1 else ""
    path = Path(runner.work_dir) / f"non_finite_iter_{runner.iter}{rank}.pth"
    # mmengine wrote the config there, with the options of the command line.
    config = Path(runner.work_dir) / Path(runner.cfg.filename or f"{runner.timestamp}.py").name
    try:
        write_snapshot(snapshot, path)
    except (OSError, TypeError) as error:
        return f"no snapshot: {error}"
    return f"python tools/replay.py {config} {path} {'reproduces it' if reproduces else 'runs it again'}"
