"""Catching the first loss or gradient that is not finite, before it reaches the weights."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from mmengine.config import Config
from mmengine.dist import all_reduce, get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS, MODELS, init_default_scope
from mmengine.runner import Runner
from torch import Tensor, nn

from .random_state import get_random_state, set_random_state

__all__ = ["NonFiniteHook", "find_non_finite", "replay"]


@HOOKS.register_module()
class NonFiniteHook(Hook):
    """Stops training, or skips the batch, when the loss or a gradient is NaN or infinite.

    The iteration is run once more to name the module that the first such value came from, and a
    snapshot that reproduces it (`replay`) is written to the work directory. No step is taken: the
    weights, the optimizer and BatchNorm's statistics are those of before. In mixed precision an
    overflow of scaled gradients is the loss scaler's to skip; it is reported when the scale has
    come down to less than 1 without curing it. With gradient accumulation, the snapshot is of the
    last batch.

    Args:
        action: 'stop' raises; 'skip' logs and goes on.
        max_skips: How many batches of the run 'skip' may leave out; one more stops it.

    Raises:
        ValueError: If `action` is neither.
        FloatingPointError: When it stops.
    """

    priority = "HIGH"  # before anything saves or logs the iteration

    def __init__(self, action: str = "stop", max_skips: int = 10) -> None:
        if action not in ("stop", "skip"):
            raise ValueError(f"{action=}: choose 'stop' or 'skip'")
        self.action = action
        self.max_skips = max_skips
        self.skips = 0

    def before_train(self, runner: Runner) -> None:
        self._runner = runner
        self._model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        self._optimizer = runner.optim_wrapper.optimizer
        self._checked = False
        self._handles = [
            self._model.register_forward_pre_hook(self._remember, with_kwargs=True),
            self._model.register_forward_hook(self._look_at_losses),
            self._optimizer.register_step_pre_hook(self._before_step),
        ]

    def after_train(self, runner: Runner) -> None:
        for handle in self._handles:
            handle.remove()

    def _remember(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        """All that the forward pass starts from: references, but for the buffers, which it changes."""
        if model.training:
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            self._start: dict[str, Any] = dict(
                args=args, kwargs=kwargs, buffers=buffers, random_state=get_random_state()
            )

    def _look_at_losses(self, model: nn.Module, args: tuple, output: Any) -> None:
        if model.training:
            self._finite_loss = _total_loss(output).detach().isfinite()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        self._checked = True
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])
        if not _everywhere(self._finite_loss & norms.isfinite().all()):
            self._act()
            optimizer.zero_grad(set_to_none=True)  # a step without gradients changes nothing

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict | None = None
    ) -> None:
        if self._checked:
            self._checked = False
            return
        # No step was taken: gradients accumulate, or the loss scaler skipped it.
        scaler = getattr(runner.optim_wrapper, "loss_scaler", None)
        exhausted = scaler is not None and scaler.is_enabled() and scaler.get_scale() < 1
        if exhausted or not _everywhere(self._finite_loss):
            self._act()
            self._optimizer.zero_grad(set_to_none=True)

    def _act(self) -> None:
        """Report the iteration; raise, or put the buffers back."""
        runner, start = self._runner, self._start
        dtype = getattr(runner.optim_wrapper, "cast_dtype", None)
        device = next(self._model.parameters()).device.type
        snapshot = dict(
            iteration=runner.iter,
            config=runner.cfg.pretty_text,
            state_dict={**self._model.state_dict(), **start["buffers"]},
            autocast=dict(device_type=device, dtype=dtype, enabled=hasattr(runner.optim_wrapper, "loss_scaler")),
            **start,
        )
        after = get_random_state()
        found = _run_again(self._model, snapshot)
        set_random_state(after)
        self._model.load_state_dict(start["buffers"], strict=False)
        path = Path(runner.work_dir) / f"non_finite_iter_{runner.iter}{_rank_suffix()}.pth"
        try:
            torch.save(snapshot, path)
            where = f"python tools/replay.py {path} reproduces it"
        except OSError as error:
            where = f"its snapshot could not be written to {path}: {error.strerror or error}"
        message = f"iteration {runner.iter}: {found}; {where}"
        self.skips += 1
        if self.action == "stop" or self.skips > self.max_skips:
            raise FloatingPointError(message + (f"; {self.max_skips} skipped before" if self.action == "skip" else ""))
        runner.logger.error(f"{message}; skipped ({self.skips} of at most {self.max_skips})")


def replay(path: str | Path) -> str:
    """Build the model of a snapshot, run its iteration once more and say where the first value that is not finite is.

    A snapshot is a pickle with the data structures of mmdet or mmseg: open only your own.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no snapshot at {path}: check the path")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    snapshot = torch.load(path, map_location=device, weights_only=False)
    cfg = Config.fromstring(snapshot["config"], file_format=".py")
    init_default_scope(cfg.get("default_scope") or "mmengine")
    model = MODELS.build(cfg.model).to(device)
    model.load_state_dict(snapshot["state_dict"])
    snapshot["autocast"]["device_type"] = device
    return f"iteration {snapshot['iteration']}: {_run_again(model.train(), snapshot)}"


def _run_again(model: nn.Module, snapshot: dict) -> str:
    model.load_state_dict(snapshot["buffers"], strict=False)
    set_random_state(snapshot["random_state"])
    with torch.autocast(**snapshot["autocast"]):
        return find_non_finite(model, snapshot["args"], snapshot["kwargs"])


def find_non_finite(model: nn.Module, args: tuple, kwargs: dict) -> str:
    """Where the first NaN or infinite value of a training iteration is: input, parameter, output or gradient.

    Args:
        model: In training mode. It keeps its gradients; its BatchNorm sees the batch.
        args, kwargs: Of `model(...)`, which returns losses as mmengine's models do.
    """
    if not _is_finite((args, kwargs)):
        return "the input holds values that are not finite"
    for name, parameter in model.named_parameters():
        if not _is_finite(parameter):
            return f"the parameter {name} holds values that are not finite"
    order: list[str] = []
    bad: list[str] = []

    def look(name: str, module: nn.Module, output: Any) -> None:
        order.append(name)
        if not bad and not _is_finite(output):
            bad.append(f"first in the output of {name or 'the model'} ({type(module).__name__})")

    handles = [
        module.register_forward_hook(lambda module, _, output, name=name: look(name, module, output))
        for name, module in model.named_modules()
    ]
    try:
        with torch.enable_grad():
            loss = _total_loss(model(*args, **kwargs))
            for handle in handles:
                handle.remove()  # the backward pass may call modules again, to recompute
            if bad or not loss.isfinite():
                return f"the loss is {loss.item()}, {bad[0] if bad else 'and all outputs are finite'}"
            named = {name: p for name, p in model.named_parameters() if p.requires_grad}
            gradients = torch.autograd.grad(loss, tuple(named.values()), allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    # The backward pass meets the modules in reverse: the last one is the first.
    last_use = {name: place for place, name in enumerate(order)}

    def place(parameter: str) -> int:
        module = parameter.rpartition(".")[0]
        while module and module not in last_use:  # used by a module around its own
            module = module.rpartition(".")[0]
        return last_use[module]

    wrong = [name for name, g in zip(named, gradients, strict=True) if g is not None and not _is_finite(g)]
    if not wrong:
        return "every loss and gradient is finite when the iteration is run again without loss scaling"
    return f"the loss is {loss.item():g}, but gradients are not finite, first that of {max(wrong, key=place)}"


def _total_loss(losses: Any) -> Tensor:
    """Sum of everything that mmengine's parse_losses would sum."""
    given = [value for key, value in losses.items() if "loss" in key]
    return cast(Tensor, sum(tensor.float().mean() for tensor in _tensors(given)))


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


def _everywhere(finite: Tensor) -> bool:
    """Whether it holds in every process: all must do the same."""
    flag = finite.float()
    all_reduce(flag, op="min")
    return bool(flag)


def _rank_suffix() -> str:
    return f"_rank{get_rank()}" if get_world_size() > 1 else ""
