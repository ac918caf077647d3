"""Checkpoints that survive a kill, and training that goes on from them as if it had never stopped."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.dist import all_gather_object, get_rank, get_world_size, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..utils.atomic import atomic_write, unfinished_files
from .random_state import RandomState, get_random_state, set_random_state

__all__ = ["AtomicBackend", "ResumableCheckpointHook"]


class AtomicBackend(LocalBackend):
    """mmengine's local files, written whole or not at all."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write a file; its name stands for the former content or the new, at any moment.

        Raises:
            OSError: If it cannot be written, such as on a full disk, with the former content as it was.
        """
        path = Path(filepath)
        for leftover in unfinished_files(path):  # of a killed run; checkpoints are large
            leftover.unlink(missing_ok=True)
        try:
            with atomic_write(path) as file:
                file.write(obj)
        except OSError as error:
            raise OSError(
                f"{path} ({len(obj) / 2**20:.0f} MB) could not be written: {error.strerror}; "
                "earlier checkpoints are whole: make room and go on with --resume"
            ) from error

    def put_text(self, obj: str, filepath: str | Path, encoding: str = "utf-8") -> None:
        """As `put`, for text."""
        self.put(obj.encode(encoding), filepath)


register_backend("atomic", AtomicBackend)


@HOOKS.register_module()
class ResumableCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook for runs that may be killed at any moment. Arguments are its own.

    - Local files are written whole or not at all, and a checkpoint is removed only after its successor
      is complete: `last_checkpoint` always names a whole file.
    - A checkpoint holds the state of the random generators of every process, and validation leaves
      them as it found them. Resumed training draws the same numbers as training that never stopped.

    What it cannot restore are the generators inside of data-loading workers. mmengine's
    iteration-based loop replays the batches that were seen, and so restores them; its epoch-based
    loop starts them anew, so that with `persistent_workers` other augmentations are drawn from
    there on. With gradient accumulation, let `interval` be a multiple of `accumulative_counts`.
    """

    keep_ckpt_ids: deque[int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = [kwargs.get(name) or {} for name in ("backend_args", "file_client_args")]
        if all(map(_is_local, given)) and "://" not in str(kwargs.get("out_dir")):
            kwargs.update(backend_args=dict(backend="atomic"), file_client_args=None)
        super().__init__(*args, **kwargs)
        self._saved: list[RandomState] | None = None
        self._resumed: RandomState | None = None
        self._before_validation: RandomState | None = None

    def before_train(self, runner: Runner) -> None:
        super().before_train(runner)
        # What the checkpoint resumed from was about to replace, where a kill came between: told by number, so that
        # nothing elsewhere can be meant, and left alone where the run goes on in another folder or by other names.
        info = runner.message_hub.runtime_info
        outdated = [id_ for id_ in info.pop("outdated_ckpt_ids", []) if isinstance(id_, int)]
        kept = [self._path(id_) for id_ in self.keep_ckpt_ids] if self.max_keep_ckpts > 0 else []
        if is_main_process() and kept and info.get("last_ckpt") == kept[-1]:
            self._remove([id_ for id_ in outdated if self._path(id_) not in kept])

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        outdated: list[int] = []
        if self.max_keep_ckpts > 0:
            # A file counts once: with a constant name every checkpoint replaces the one before.
            ids = [id_ for id_ in self.keep_ckpt_ids if self._path(id_) != self._path(step)] + [step]
            outdated = ids[: -self.max_keep_ckpts]
            self.keep_ckpt_ids = deque(ids, self.max_keep_ckpts)
            runner.message_hub.update_info("keep_ckpt_ids", list(self.keep_ckpt_ids))
            runner.message_hub.update_info("outdated_ckpt_ids", outdated)
        self.last_ckpt = self._path(step)
        runner.message_hub.update_info("last_ckpt", self.last_ckpt)
        self._saved = all_gather_object(self._before_validation or get_random_state())
        runner.save_checkpoint(
            self.out_dir,
            self.filename_tmpl.format(step),
            self.file_client_args,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=self.by_epoch,
            backend_args=self.backend_args,
            **self.args,
        )
        if is_main_process():
            AtomicBackend().put_text(self.last_ckpt, Path(runner.work_dir) / "last_checkpoint")
            self._remove(outdated)

    def _remove(self, ids: list[int]) -> None:
        for path in filter(self.file_backend.isfile, map(self._path, ids)):
            self.file_backend.remove(path)

    def _path(self, step: int) -> str:
        return self.file_backend.join_path(self.out_dir, self.filename_tmpl.format(step))

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        # mmengine removes the former best before the new one is written: that has to wait.
        former: list[str] = []
        self.file_backend.remove = former.append
        try:
            super()._save_best_checkpoint(runner, metrics)
        finally:
            del self.file_backend.remove
        best = getattr(self, "best_ckpt_path_dict", {}).values() or [getattr(self, "best_ckpt_path", None)]
        for path in set(former).difference(best):  # the new one may bear the name of the former
            self.file_backend.remove(path)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if "param_schedulers" in checkpoint:
            checkpoint["param_schedulers"] = _without_functions(checkpoint["param_schedulers"])
        if self._saved is not None:
            checkpoint["random_state"], self._saved = self._saved, None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        states = checkpoint.get("random_state")
        if not runner._resume or states is None:
            return
        if len(states) == get_world_size():
            self._resumed = states[get_rank()]
        else:
            print_log(
                f"the checkpoint is of {len(states)} processes, these are {get_world_size()}: "
                "order of the data and random numbers will be others",
                logger="current",
            )

    def before_train_epoch(self, runner: Runner) -> None:
        if self._resumed is None:
            return
        state, self._resumed = self._resumed, None
        loop = runner.train_loop
        if hasattr(loop, "dataloader_iterator"):  # the iteration-based loop replays the batches that were seen
            loop.dataloader_iterator = _Replayed(loop.dataloader_iterator, runner.iter, state)
        else:
            set_random_state(state)

    def before_val(self, runner: Runner) -> None:
        self._before_validation = get_random_state()

    def after_val(self, runner: Runner) -> None:
        state: Any = self._before_validation
        self._before_validation = None
        set_random_state(state)


def _without_functions(states: Any) -> Any:
    """States of schedulers without functions, which no reader should trust, and a scheduler has from its arguments."""
    if isinstance(states, list):
        return [_without_functions(state) for state in states]
    if not isinstance(states, dict):
        return states
    return {key: _without_functions(value) for key, value in states.items() if not callable(value)}


def _is_local(backend: dict) -> bool:
    """Whether arguments of a file backend, or of mmengine's former file client, mean plain local files."""
    return backend.keys() <= {"backend"} and backend.get("backend", "local") in ("local", "disk")


class _Replayed:
    """The same batches, with the random generators set before the one after the first `count`."""

    def __init__(self, batches: Iterator, count: int, state: RandomState) -> None:
        self._batches, self._left, self._state = batches, count, state

    def __iter__(self) -> "_Replayed":
        return self

    def __next__(self) -> Any:
        if self._left == 0:
            set_random_state(self._state)
        self._left -= 1
        return next(self._batches)

    def skip_iter(self, count: int) -> None:
        """Load what was seen: a newer mmengine calls this, and would draw the sampler's numbers alone."""
        for _ in range(count):
            next(self)
