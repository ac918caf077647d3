"""Catching the first loss or gradient that is not finite, before it reaches the weights."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import all_gather_object, all_reduce, get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS, MODELS, init_default_scope
from mmengine.runner import Runner
from torch import Tensor, nn

from ..models.factory import model_config
from .random_state import get_random_state, set_random_state
from .snapshots import read_snapshot, write_snapshot

__all__ = ["NonFiniteHook", "find_non_finite", "replay"]


@HOOKS.register_module()
class NonFiniteHook(Hook):
    """Stops training, or skips the batch, when the loss or a gradient is NaN or infinite.

    The iteration is run once more, in all processes together, to name the module that the first
    such value came from, and every process writes a snapshot that reproduces it (`replay`) to the
    work directory. No step is taken: the weights, the optimizer and BatchNorm's statistics are
    those of before. In mixed precision an overflow of scaled gradients is the loss scaler's to
    skip; it is reported when the scale has come down to less than 1 without curing it. With
    gradient accumulation, the snapshot is of the last batch.

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

    @torch.no_grad()
    def _look_at_losses(self, model: Any, args: tuple, output: Any) -> None:
        if model.training:
            self._finite_loss = model.parse_losses(output)[0].isfinite()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if getattr(optimizer, "found_inf", 0):
            return  # a fused optimizer under a loss scaler, which has told it to leave the step out
        self._checked = True
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        # The largest value: a sum of squares may overflow where no gradient does.
        norms = torch.stack([torch.linalg.vector_norm(g, ord=torch.inf) for g in gradients if g.numel()])
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
        if not _everywhere(self._finite_loss & (not exhausted)):
            self._act()
            self._optimizer.zero_grad(set_to_none=True)

    def _act(self) -> None:
        """Report the iteration; raise, or put the buffers back."""
        runner = self._runner
        dtype = getattr(runner.optim_wrapper, "cast_dtype", None)
        device = next(self._model.parameters()).device.type
        snapshot = dict(
            iteration=runner.iter,
            parameters=dict(self._model.named_parameters()),
            autocast=dict(device_type=device, dtype=dtype, enabled=hasattr(runner.optim_wrapper, "loss_scaler")),
            **self._start,
        )
        after = get_random_state()
        found = _run_again(self._model, snapshot)
        set_random_state(after)
        _fill(self._model, snapshot["buffers"])
        message = f"iteration {runner.iter}: {found}; {_write(runner, snapshot)}"
        self.skips += 1
        if self.action == "stop" or self.skips > self.max_skips:
            raise FloatingPointError(message + (f"; {self.max_skips} skipped before" if self.action == "skip" else ""))
        runner.logger.error(f"{message}; skipped ({self.skips} of at most {self.max_skips})")


def _write(runner: Runner, snapshot: dict) -> str:
    """Write a snapshot to the work directory; returns what to do with it, or why it could not be written."""
    path = Path(runner.work_dir) / f"non_finite_iter_{runner.iter}{_rank_suffix()}.pth"
    # mmengine has written the config there, with the options of the command line.
    config = Path(runner.work_dir) / Path(runner.cfg.filename or f"{runner.timestamp}.py").name
    try:
        write_snapshot(snapshot, path)
    except (OSError, TypeError) as error:
        return f"no snapshot: {error}"
    return f"python tools/replay.py {config} {path} reproduces it"


def replay(config: str | Path, snapshot: str | Path) -> str:
    """Run the iteration of a snapshot once more and say where the first value that is not finite is.

    The config is Python and builds the model; the snapshot brings values only and cannot run
    anything. It holds no config, since one can name any function to be called. What one of
    several processes wrote is run with statistics of its own images, SyncBN's too.

    Args:
        config: Path of the config of the run; mmengine has written it to the work directory.
        snapshot: Path of the file that `NonFiniteHook` wrote there.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If `snapshot` is none, or of another model than the config's.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    content = read_snapshot(snapshot, device)
    cfg = Config.fromfile(config)
    init_default_scope(cfg.get("default_scope") or "mmengine")
    model = MODELS.build(model_config(cfg)).to(device).train()
    given, own = content["parameters"] | content["buffers"], _parameters_and_buffers(model)
    misfits = [
        name for name in own | given if name not in own or name not in given or own[name].shape != given[name].shape
    ]
    if misfits:
        raise ValueError(
            f"{snapshot} is of another model than {config}: they differ in {misfits[0]}; give its own config"
        )
    _fill(model, given)
    content["autocast"]["device_type"] = device
    return f"iteration {content['iteration']}: {_run_again(model, content)}"


def _run_again(model: nn.Module, snapshot: dict) -> str:
    _fill(model, snapshot["buffers"])
    set_random_state(snapshot["random_state"])
    with torch.autocast(**snapshot["autocast"]):
        return find_non_finite(model, snapshot["args"], snapshot["kwargs"])


def _parameters_and_buffers(model: nn.Module) -> dict[str, Tensor]:
    """All of them: a state dict lacks the buffers that are not saved."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


@torch.no_grad()
def _fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    own = _parameters_and_buffers(model)
    for name, value in tensors.items():
        own[name].copy_(value)


def find_non_finite(model: nn.Module, args: tuple, kwargs: dict) -> str:
    """Where the first NaN or infinite value of a training iteration is: input, parameter, output or gradient.

    The processes of a distributed run call it together. Each goes on only where all do, since
    forward and backward passes may communicate (SyncBN does), and all are told the same.

    Args:
        model: In training mode. It keeps its gradients; its BatchNorm sees the batch.
        args, kwargs: Of `model(...)`, which returns losses as mmengine's models do.
    """
    found = _of_all_processes(_in_given_values(model, args, kwargs))
    if found:
        return found
    with torch.enable_grad():
        loss, order, origin = _forward(model, args, kwargs)
        wrong_loss = "" if loss.isfinite() else f"the loss is {loss.item()}, first in the output of {origin}"
        found = _of_all_processes(wrong_loss)
        if found:
            return found
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(loss, tuple(named.values()), allow_unused=True)
    wrong = [name for name, g in zip(named, gradients, strict=True) if g is not None and not _is_finite(g)]
    found = _of_all_processes(_first_gradient(loss, wrong, order))
    return found or "every loss and gradient is finite when the iteration is run again without loss scaling"


def _of_all_processes(found: str) -> str:
    """What each process has found, in one line; '' if none has."""
    every = all_gather_object(found)
    if len(every) == 1:
        return found
    return ", ".join(f"in process {rank} {found}" for rank, found in enumerate(every) if found)


def _in_given_values(model: nn.Module, args: tuple, kwargs: dict) -> str:
    if not _is_finite((args, kwargs)):
        return "the input holds values that are not finite"
    name = next((name for name, parameter in model.named_parameters() if not _is_finite(parameter)), None)
    return f"the parameter {name} holds values that are not finite" if name else ""


def _forward(model: Any, args: tuple, kwargs: dict) -> tuple[Tensor, list[str], str]:
    """The loss, the modules in the order of their outputs, and the first whose output is not finite."""
    order: list[str] = []
    bad: list[str] = []

    def look(name: str, module: nn.Module, output: Any) -> None:
        order.append(name)
        if not bad and not _is_finite(output):
            bad.append(f"{name} ({type(module).__name__})")

    handles = [
        module.register_forward_hook(lambda module, _, output, name=name: look(name, module, output))
        for name, module in model.named_modules()
        if name
    ]
    try:
        loss, _ = model.parse_losses(model(*args, **kwargs))
    finally:
        for handle in handles:
            handle.remove()  # the backward pass may call modules again, to recompute
    # Of the model itself only the loss counts: accuracies beside it may be anything.
    return loss, [*order, ""], bad[0] if bad else f"the model ({type(model).__name__})"


def _first_gradient(loss: Tensor, wrong: list[str], order: list[str]) -> str:
    """Of the parameters whose gradients are not finite, the one that the backward pass meets first."""
    # It meets the modules in reverse: the last one is the first.
    last_use = {name: place for place, name in enumerate(order)}

    def place(parameter: str) -> int:
        module = parameter.rpartition(".")[0]
        while module and module not in last_use:  # used by a module around its own
            module = module.rpartition(".")[0]
        return last_use[module]

    if not wrong:
        return ""
    return f"the loss is {loss.item():g}, but gradients are not finite, first that of {max(wrong, key=place)}"


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
