"""Checkpoints that survive a kill, and training that resumes from them as if it had never stopped."""

from pathlib import Path
from typing import Any, ClassVar

from mmengine.dist import all_gather_object, get_rank, get_world_size
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..utils.atomic import atomic_write, unfinished_files
from ..utils.compat import is_resuming
from .batches import NumberedLoop
from .finite import is_finite
from .random_state import RandomState, get_random_state, set_random_state


class AtomicBackend(LocalBackend):
    """mmengine's backend for local files, which are whole or absent. It collects outdated files instead of removing."""

    outdated: ClassVar[set[str]] = set()  # of all instances: mmengine builds one for each file

    def put(self, obj: bytes | memoryview, filepath: str | Path) -> None:
        """Write a file. Raise OSError on a full disk: a former file stays as it was."""
        path = Path(filepath)
        for leftover in unfinished_files(path):  # of a killed run, as large as a checkpoint
            leftover.unlink(missing_ok=True)
        try:
            with atomic_write(path) as file:
                file.write(obj)
        except OSError as error:
            fix = "earlier checkpoints are complete: free disk space and resume with --resume"
            raise OSError(f"{path} could not be written: {error.strerror}; {fix}") from error
        self.outdated.discard(str(filepath))  # of the same name as an earlier one

    def remove(self, filepath: str | Path) -> None:
        self.outdated.add(str(filepath))


register_backend("atomic", AtomicBackend)


@HOOKS.register_module()
class ResumableCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook, with the same arguments, for runs that may be killed at any moment.

    Local files are written whole or not at all, and a checkpoint is removed only after the next one is complete.
    Weights or statistics that are not finite replace no checkpoint. A checkpoint holds the number of the next batch and
    the states of the random generators of every process, and validation leaves the generators unchanged: training
    resumes at the next batch, also within an epoch, and draws the same numbers as uninterrupted training.

    With gradient accumulation, set `interval` to a multiple of `accumulative_counts`. Transforms that keep earlier
    images, such as mmdet's CachedMosaic, give other images after a resume.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not (kwargs.get("backend_args") or kwargs.get("file_client_args") or "://" in str(kwargs.get("out_dir"))):
            kwargs.update(backend_args=dict(backend="atomic"), file_client_args=None)
        super().__init__(*args, **kwargs)
        self._saved: dict[str, Any] = {}
        self._resumed: dict[str, Any] | None = None
        self._loop: NumberedLoop | None = None
        self._before_validation: RandomState | None = None

    def before_train(self, runner: Runner) -> None:
        super().before_train(runner)
        if NumberedLoop.supports(runner):
            self._loop = NumberedLoop(runner, self._resumed)
        else:
            print_log("the batches have no numbers: a resumed run starts with other batches", "current")

    def before_train_epoch(self, runner: Runner) -> None:
        if self._loop:
            self._loop.start_epoch()
        states = (self._resumed or {}).get("random_state") or []
        if len(states) == get_world_size():
            set_random_state(states[get_rank()])
        self._resumed = None

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        self._saved = dict(random_state=all_gather_object(self._before_validation or get_random_state()))
        self._saved |= dict(position=self._loop.position(meta)) if self._loop else {}
        super()._save_checkpoint_with_step(runner, step, meta)
        self._remove_outdated()

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        super()._save_best_checkpoint(runner, metrics)
        self._remove_outdated()

    def _remove_outdated(self) -> None:
        # mmengine removes before it writes, so that a kill would leave no checkpoint.
        while AtomicBackend.outdated:
            Path(AtomicBackend.outdated.pop()).unlink(missing_ok=True)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        wrong = next((name for name, value in checkpoint["state_dict"].items() if not is_finite(value)), None)
        if wrong:
            raise FloatingPointError(
                f"iteration {runner.iter}: {wrong} is not finite, so the checkpoint is not written; "
                "earlier checkpoints are complete: resume with --resume and NonFiniteHook, which finds the cause"
            )
        checkpoint.update(self._saved)
        self._saved = {}

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if is_resuming(runner):
            self._resumed = {key: checkpoint.get(key) for key in ("random_state", "position")}

    def before_val(self, runner: Runner) -> None:
        self._before_validation = get_random_state()

    def after_val(self, runner: Runner) -> None:
        state: Any = self._before_validation
        self._before_validation = None
        set_random_state(state)
