"""Checkpoints that survive a kill, and runs that resume as if they had never stopped."""

from pathlib import Path
from typing import Any, ClassVar

import torch
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..utils.atomic import atomic_write
from ..utils.compat import is_resuming, is_training_run
from ..utils.ranks import rank_and_size
from ..weights.strict_load import unwrapped
from .batches import use_numbered_loop
from .nonfinite import is_finite
from .schedule import check_schedule


class AtomicBackend(LocalBackend):
    """mmengine's backend for local files, whose checkpoints are complete or absent after a kill.

    mmengine removes a checkpoint before it writes the next one. This backend writes the new
    checkpoint first and removes the old one afterwards. A best checkpoint is removed only after
    `last_checkpoint` records its successor. Only files in the folder of the new checkpoint are
    removed, so a copied work folder cannot harm the original.
    """

    outdated: ClassVar[set[str]] = set()  # of all instances: mmengine builds one for each file

    def put(self, obj: bytes | memoryview, filepath: str | Path) -> None:
        path = Path(filepath)
        with atomic_write(path) as file:
            file.write(obj)
        self.outdated.discard(path.name)
        if not path.name.startswith("best_"):  # else the last checkpoint is written next
            with atomic_write(path.with_name("last_checkpoint")) as file:
                file.write(str(path).encode())
            while self.outdated:
                path.with_name(self.outdated.pop()).unlink(missing_ok=True)

    def remove(self, filepath: str | Path) -> None:
        self.outdated.add(Path(filepath).name)


register_backend("atomic", AtomicBackend)


@HOOKS.register_module()
class ResumableCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook, with its arguments, for runs that may be killed at any moment.

    Checkpoints in the work folder are complete or absent; mmengine writes those in an `out_dir`.
    Weights that are not finite never replace a checkpoint. A training resumes at the next batch,
    also within an epoch, with the random numbers that it would have had without the stop. In one
    process, gradients that accumulate are kept too. The patience of EarlyStoppingHook, and the
    images of CachedMosaic and CachedMixUp, are not kept. A run that resumes must have the same
    schedule: see `check_schedule`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("out_dir") is None:
            kwargs.setdefault("backend_args", dict(backend="atomic"))
        super().__init__(*args, **kwargs)
        self._gradients: dict[str, torch.Tensor] = {}  # of a checkpoint

    def before_run(self, runner: Runner) -> None:
        if is_training_run(runner):
            AtomicBackend.outdated.clear()  # names in the folder of an earlier run of this process
            use_numbered_loop(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Raise ValueError if a run resumes with a schedule other than the checkpoint's."""
        if not (is_resuming(runner) and is_training_run(runner)):
            return
        check_schedule(runner.cfg, checkpoint)
        self._gradients = checkpoint.get("pending_gradients", {})
        if self._gradients:  # mmengine would warn that they are lost
            runner.logger.addFilter(lambda record: "gradient of some" not in record.getMessage())

    def before_train(self, runner: Runner) -> None:
        super().before_train(runner)
        parameters = dict(unwrapped(runner.model).named_parameters())
        for name, gradient in self._gradients.items():
            parameters[name].grad = gradient.to(parameters[name].device) * _loss_scale(runner)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float]) -> None:
        """Save the best checkpoint. A score of -1 means that there was nothing to find."""
        super().after_val_epoch(
            runner, {name: None if score == -1 else score for name, score in metrics.items()}
        )

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Add accumulated gradients to the checkpoint, and refuse weights that are not finite."""
        # Averaged weights may be finite where those of the training are not.
        weights = checkpoint["state_dict"] | checkpoint.get("ema_state_dict", {})
        for name, value in weights.items():
            if not is_finite(value):
                problem = f"iteration {runner.iter}: {name} is not finite"
                raise FloatingPointError(f"{problem}: resume from the last checkpoint")
        if "optimizer" in checkpoint and rank_and_size()[1] == 1:
            # A step of the optimizer drops the gradients: those that are there accumulate.
            checkpoint["pending_gradients"] = {
                name: parameter.grad.cpu() / _loss_scale(runner)
                for name, parameter in unwrapped(runner.model).named_parameters()
                if parameter.grad is not None
            }


def _loss_scale(runner: Runner) -> float:
    """Return the factor by which mixed precision has multiplied the gradients."""
    scaler = getattr(runner.optim_wrapper, "loss_scaler", None)
    return scaler.get_scale() if scaler else 1.0
