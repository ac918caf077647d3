"""Checkpoints that survive a kill, and training that resumes from them as if never stopped."""

import logging
from pathlib import Path
from typing import Any, ClassVar

from mmengine.dist import get_world_size
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import nn

from ..utils.atomic import atomic_path
from ..utils.compat import is_resuming, is_training_run
from ..weights.work_dirs import best_files
from .batches import use_numbered_loop
from .nonfinite import is_finite
from .schedule import check_schedule

_GRADIENTS = "pending_gradients"  # key of a checkpoint
# Types that keep patience, images or the step of a curve, and save none of it.
_STARTS_ANEW = ("EarlyStoppingHook", "CachedMosaic", "CachedMixUp", "WandbVisBackend")


class NotSaved(OSError):
    """A checkpoint cannot be written."""


class AtomicBackend(LocalBackend):
    """mmengine's backend for local files, which are whole or absent after a kill.

    mmengine removes a file before it writes the next. Here the next comes first, and a best
    checkpoint stays until the last checkpoint names its successor.
    """

    outdated: ClassVar[set[Path]] = set()  # of all instances: mmengine builds one for each file

    def put(self, obj: bytes | memoryview, filepath: str | Path) -> None:
        """Write a file, then remove the outdated files. If the disk is full, raise NotSaved, and
        all files stay as they were.
        """
        path = Path(filepath)
        _write(obj, path)
        self.outdated.discard(path)
        if path.name.startswith("best_"):  # the last checkpoint is written next
            return
        pointer = path.with_name("last_checkpoint")
        for former in self.outdated:
            # mmengine makes the pointer name the new file only later.
            if pointer.is_file() and Path(pointer.read_text()) == former:
                _write(str(path).encode(), pointer)
            former.unlink(missing_ok=True)
        self.outdated.clear()

    def remove(self, filepath: str | Path) -> None:
        self.outdated.add(Path(filepath))


def _write(data: bytes | memoryview, path: Path) -> None:
    """Write a file without waiting until it is on the disk, as mmengine does."""
    try:
        with atomic_path(path, path.with_name(".unfinished"), fsync=False) as unfinished:
            unfinished.write_bytes(data)
    except OSError as error:
        fix = "earlier checkpoints are complete: free disk space and resume with --resume"
        raise NotSaved(f"{path} could not be written: {error.strerror}; {fix}") from error


register_backend("atomic", AtomicBackend)


@HOOKS.register_module()
class ResumableCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook, with its arguments, for runs that may be killed at any moment.

    Local files are whole or absent, and a checkpoint is removed only after the next is complete.
    Weights or statistics that are not finite replace no checkpoint. Training resumes at the next
    batch, also within an epoch, with the random numbers of uninterrupted training, which depend on
    the batch's number, the seed and the process alone. Gradients that accumulate are saved by a run
    of one process. A run that resumes keeps its schedule: see `check_schedule`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        has_backend = kwargs.get("backend_args") or kwargs.get("file_client_args")
        is_remote = "://" in str(kwargs.get("out_dir"))
        if not has_backend and not is_remote:  # local files are whole or absent after a kill
            kwargs.update(backend_args=dict(backend="atomic"), file_client_args=None)
        super().__init__(*args, **kwargs)

    def before_run(self, runner: Runner) -> None:
        if is_training_run(runner):
            use_numbered_loop(runner)
            _log_what_starts_anew(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Compare the config of a run that resumes with the checkpoint's, and restore gradients.

        Raises:
            CannotResume: If the schedule is another one.
        """
        if not (is_resuming(runner) and is_training_run(runner)):
            return
        edited = check_schedule(runner.cfg, checkpoint)
        if edited:
            print_log(f"edited since the checkpoint: {', '.join(edited)}", "current")
        if self.out_dir is None:
            # The folder may be a copy, in which a better checkpoint replaces the best, or another.
            for key, name in best_files(checkpoint).items():
                best = Path(runner.work_dir, name)
                is_here = best.is_file()
                checkpoint["message_hub"]["runtime_info"][key] = str(best) if is_here else None
        parameters = _named_parameters(runner)
        scale = _change_of_scale(runner, checkpoint)
        for name, gradient in checkpoint.get(_GRADIENTS, {}).items():
            parameters[name].grad = gradient.to(parameters[name].device) * scale

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Add gradients that accumulate. Raise FloatingPointError if weights are not finite."""
        for name, value in checkpoint["state_dict"].items():
            if not is_finite(value):
                problem = f"iteration {runner.iter}: {name} is not finite"
                fix = "resume from the last checkpoint, with NonFiniteHook, which stops at a NaN"
                raise FloatingPointError(f"{problem}, so no checkpoint is written: {fix}")
        if "optimizer" not in checkpoint or get_world_size() > 1:
            return
        # A step of the optimizer drops the gradients: those that are there accumulate.
        parameters = _named_parameters(runner).items()
        gradients = {name: value.grad.cpu() for name, value in parameters if value.grad is not None}
        if gradients:
            checkpoint[_GRADIENTS] = gradients


def _named_parameters(runner: Runner) -> dict[str, nn.Parameter]:
    model: Any = runner.model
    return dict((model.module if is_model_wrapper(model) else model).named_parameters())


def _change_of_scale(runner: Runner, checkpoint: dict) -> float:
    """Return the factor from the loss scale of a checkpoint's gradients to that of the run."""
    saved = checkpoint.get("optimizer", {}).get("loss_scaler")
    scaler = getattr(runner.optim_wrapper, "loss_scaler", None)
    if scaler is not None:
        return 1.0 if saved else scaler.get_scale()
    return 1 / saved["scale"] if saved else 1.0


def _log_what_starts_anew(runner: Runner) -> None:
    """Log one line that names the parts of a run whose state no checkpoint holds, if any."""
    config = str(runner.cfg.to_dict())
    parts = [name for name in _STARTS_ANEW if f"{name}'" in config]
    wrapper = runner.cfg.get("optim_wrapper") or {}
    if get_world_size() > 1 and wrapper.get("accumulative_counts", 1) > 1:
        parts.append("gradients that accumulate in several processes")
    if parts:
        line = f"no checkpoint holds the state of {', '.join(parts)}: a resumed run differs"
        print_log(line, "current", logging.WARNING)
