"""Checkpoints that survive a kill, and training that resumes from them as if never stopped."""

from pathlib import Path
from typing import Any, ClassVar

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..utils.atomic import atomic_path
from ..utils.compat import is_resuming, is_training_run
from ..weights.reader import load_from_file
from ..weights.work_dirs import SavedRun, find_newer_best, forget_missing_best
from .batches import use_numbered_loop
from .nonfinite import is_finite
from .schedule import follow_config


class NotSaved(OSError):
    """A checkpoint cannot be written."""


class AtomicBackend(LocalBackend):
    """mmengine's backend for local files, which are whole or absent after a kill.

    mmengine removes a file before it writes the next. Here the next comes first.
    """

    outdated: ClassVar[set[Path]] = set()  # of all instances: mmengine builds one for each file

    def put(self, obj: bytes | memoryview, filepath: str | Path) -> None:
        """Write a file, then remove the outdated files. If the disk is full, raise NotSaved, and
        all files stay as they were.
        """
        path = Path(filepath)
        _write(obj, path)
        pointer = path.with_name("last_checkpoint")
        for former in self.outdated - {path}:
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
    the batch's number, the seed and the process alone. The schedule is that of the config.

    With gradient accumulation, set `interval` to a multiple of `accumulative_counts`. Transforms
    that keep earlier images, such as mmdet's CachedMosaic, give other images after a resume.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        has_backend = kwargs.get("backend_args") or kwargs.get("file_client_args")
        is_remote = "://" in str(kwargs.get("out_dir"))
        if not has_backend and not is_remote:  # local files are whole or absent after a kill
            kwargs.update(backend_args=dict(backend="atomic"), file_client_args=None)
        super().__init__(*args, **kwargs)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Record a newer best checkpoint, and fit the schedule of a resumed run to the config."""
        if is_resuming(runner) and is_training_run(runner):
            # Only a local folder is searched for the best checkpoint.
            if self.save_best and "://" not in str(self.out_dir):
                self._resume_best(runner, checkpoint)
            follow_config(runner, checkpoint)

    def _resume_best(self, runner: Runner, checkpoint: dict) -> None:
        """Record the best checkpoint that the run saved after this checkpoint, before it was
        killed, and remove the former best. Files in other folders stay.
        """
        folder = Path(runner.work_dir)
        if self.out_dir:  # mmengine saves in a subfolder of it
            folder = Path(self.out_dir, folder.name)
        former = SavedRun.of(folder, checkpoint)
        if former is None:
            return
        newer = [find_newer_best(folder, former) if is_main_process() else None]
        broadcast_object_list(newer)
        if newer[0]:  # its message hub, which mmengine loads, names it as the best
            checkpoint["message_hub"] = load_from_file(newer[0])["message_hub"]
        best = forget_missing_best(folder, checkpoint["message_hub"]["runtime_info"])
        if is_main_process():
            for name in set(former.best).difference(best):
                (folder / name).unlink(missing_ok=True)

    def before_run(self, runner: Runner) -> None:
        if is_training_run(runner):
            use_numbered_loop(runner)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        for name, value in checkpoint["state_dict"].items():
            if not is_finite(value):
                problem = f"iteration {runner.iter}: {name} is not finite"
                fix = "resume from the last checkpoint, with NonFiniteHook, which stops at a NaN"
                raise FloatingPointError(f"{problem}, so no checkpoint is written: {fix}")
