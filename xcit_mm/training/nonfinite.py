"""Catching the first loss or gradient that is not finite, before it reaches the weights."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import all_reduce, get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS, MODELS, init_default_scope
from mmengine.runner import Runner
from torch import Tensor, nn

from ..models.build import model_config
from .nonfinite_search import find_non_finite
from .random_state import get_random_state, set_random_state
from .snapshots import read_snapshot, write_snapshot

__all__ = ["NonFiniteHook", "replay"]

_NOTHING = "every loss and gradient is finite when the iteration is run again without loss scaling"


@HOOKS.register_module()
class NonFiniteHook(Hook):
    """Stops training, or skips the batch, when the loss or a gradient is NaN or infinite.

    The iteration is run once more, in all processes together, to name the module that the first
    such value came from, and every process writes a snapshot that reproduces it (`replay`) to the
    work directory. No step is taken: the weights, the optimizer and BatchNorm's statistics are
    those of before. In mixed precision an overflow of scaled gradients is the loss scaler's to
    skip; it is reported when the scale has come down to less than 1 without curing it. With
    gradient accumulation every batch is looked at; under a loss scaler the snapshot is of the last.
    A value that makes the forward pass itself raise is caught as well; in a distributed run the
    process that meets it then looks for it alone, and stops whatever `action` says.

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
        self._undo = ExitStack()

    def before_train(self, runner: Runner) -> None:
        self._undo.close()  # of a training that raised
        self._runner = runner
        self._model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        wrapper = runner.optim_wrapper
        self._wrappers = list(wrapper.values()) if isinstance(wrapper, OptimWrapperDict) else [wrapper]
        self._checked = False
        self._train_step = runner.model.train_step
        self._undo.callback(setattr, runner.model, "train_step", self._train_step)
        runner.model.train_step = self._guarded_train_step
        for handle in (
            self._model.register_forward_pre_hook(self._remember, with_kwargs=True),
            self._model.register_forward_hook(self._look_at_losses),
            *(wrapper.optimizer.register_step_pre_hook(self._before_step) for wrapper in self._wrappers),
        ):
            self._undo.callback(handle.remove)

    def after_train(self, runner: Runner) -> None:
        self._undo.close()

    def _remember(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        """All that the forward pass starts from: references, but for the buffers, which it changes."""
        if model.training:
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            self._running: dict[str, Any] | None = dict(
                args=args, kwargs=kwargs, buffers=buffers, random_state=get_random_state()
            )

    @torch.no_grad()
    def _look_at_losses(self, model: Any, args: tuple, output: Any) -> None:
        if model.training and isinstance(output, dict):  # losses, not what `mode="tensor"` returns
            self._start = self._running
            self._finite_loss = model.parse_losses(output)[0].isfinite()
        self._running = None

    def _guarded_train_step(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The model's own; a value that is not finite may make its forward pass raise, as SciPy's matching does."""
        self._running = None
        try:
            return self._train_step(*args, **kwargs)
        except Exception as error:
            if self._running is None or isinstance(error, torch.OutOfMemoryError) or not self._act_on(error):
                raise
        self._checked = True
        return dict(loss=torch.tensor(torch.nan))

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if getattr(optimizer, "found_inf", 0):
            return  # a fused optimizer under a loss scaler, which has told it to leave the step out
        self._checked = True
        self._act_unless(self._finite_loss & _finite_gradients([optimizer]))

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict | None = None
    ) -> None:
        if self._checked:
            self._checked = False
            return
        # No step was taken: gradients accumulate, or the loss scaler skipped it.
        scaled = [wrapper for wrapper in self._wrappers if _has_scaler(wrapper)]
        exhausted = any(wrapper.should_update() and wrapper.loss_scaler.get_scale() < 1 for wrapper in scaled)
        unscaled = [wrapper.optimizer for wrapper in self._wrappers if wrapper not in scaled]
        self._act_unless(self._finite_loss & (not exhausted) & _finite_gradients(unscaled))

    def _act_unless(self, finite: Tensor) -> None:
        """Report the iteration unless all is finite in every process; raise, or leave its step out."""
        if _everywhere(finite):
            return
        snapshot = self._snapshot(self._start)
        self._report(self._search(snapshot), snapshot)

    def _act_on(self, error: Exception) -> bool:
        """The same where the forward pass raised; False if all values were finite."""
        snapshot = self._snapshot(self._running)
        with _alone():  # this process, since the others may not have raised
            try:
                found = self._search(snapshot)
            except Exception:  # the same again
                return False
        if found:
            self._report(found, snapshot, error)
        return bool(found)

    def _snapshot(self, start: dict[str, Any] | None) -> dict[str, Any]:
        wrapper = self._wrappers[0]
        return dict(
            iteration=self._runner.iter,
            parameters=dict(self._model.named_parameters()),
            autocast=dict(
                device_type=next(self._model.parameters()).device.type,
                dtype=getattr(wrapper, "cast_dtype", None),
                enabled=hasattr(wrapper, "loss_scaler"),
            ),
            **(start or {}),
        )

    def _search(self, snapshot: dict) -> str:
        """What `_run_again` finds, with buffers and random numbers as if the iteration had not been."""
        after = get_random_state()
        try:
            return _run_again(self._model, snapshot)
        finally:
            set_random_state(after)
            _fill(self._model, snapshot["buffers"])

    def _report(self, found: str, snapshot: dict, cause: Exception | None = None) -> None:
        """Drop the gradients, since a step without them changes nothing, and raise or log."""
        for wrapper in self._wrappers:
            wrapper.optimizer.zero_grad(set_to_none=True)
        runner = self._runner
        message = f"iteration {runner.iter}: {found or _NOTHING}; {_write(runner, snapshot, bool(found))}"
        self.skips += 1
        # Where one process has raised, the others wait for what it does not send: they cannot skip.
        must_stop = self.action == "stop" or (cause is not None and get_world_size() > 1)
        if must_stop or self.skips > self.max_skips:
            skipped = f"; {self.max_skips} skipped before" if not must_stop else ""
            raise FloatingPointError(message + skipped) from cause
        runner.logger.error(f"{message}; skipped ({self.skips} of at most {self.max_skips})")
        self._finite_loss = torch.tensor(True)  # the iteration's other optimizers have nothing to report


def _has_scaler(wrapper: OptimWrapper) -> bool:
    return hasattr(wrapper, "loss_scaler") and wrapper.loss_scaler.is_enabled()


@torch.no_grad()
def _finite_gradients(optimizers: list[torch.optim.Optimizer]) -> Tensor:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None and p.grad.numel()]
    # The largest value: a sum of squares may overflow where no gradient does.
    norms = [torch.linalg.vector_norm(gradient, ord=torch.inf) for gradient in gradients]
    return torch.stack(norms).isfinite().all() if norms else torch.tensor(True)


@contextmanager
def _alone() -> Iterator[None]:
    """Nothing communicates within, as in one process: SyncBN, the libraries' losses and mmengine ask torch this."""
    asked = torch.distributed.is_initialized
    torch.distributed.is_initialized = lambda: False
    try:
        yield
    finally:
        torch.distributed.is_initialized = asked


def _write(runner: Runner, snapshot: dict, reproduces: bool) -> str:
    """Write a snapshot to the work directory; returns what to do with it, or why it could not be written."""
    path = Path(runner.work_dir) / f"non_finite_iter_{runner.iter}{_rank_suffix()}.pth"
    # mmengine has written the config there, with the options of the command line.
    config = Path(runner.work_dir) / Path(runner.cfg.filename or f"{runner.timestamp}.py").name
    try:
        write_snapshot(snapshot, path)
    except (OSError, TypeError) as error:
        return f"no snapshot: {error}"
    return f"python tools/replay.py {config} {path} {'reproduces it' if reproduces else 'runs it again'}"


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
    return f"iteration {content['iteration']}: {_run_again(model, content) or _NOTHING}"


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


def _everywhere(finite: Tensor) -> bool:
    """Whether it holds in every process: all must do the same."""
    flag = finite.float()
    all_reduce(flag, op="min")
    return bool(flag)


def _rank_suffix() -> str:
    return f"_rank{get_rank()}" if get_world_size() > 1 else ""
