"""Checkpoints that survive a kill, and training that resumes from them as if it had never stopped."""

import json
import time
from collections import deque
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import all_gather_object, broadcast_object_list, get_rank, get_world_size, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..utils.atomic import atomic_write, unfinished_files
from ..utils.compat import is_resuming, save_with
from .background import BackgroundWriter
from .batches import NumberedLoop
from .nonfinite_search import is_finite
from .random_state import RandomState, get_random_state, set_random_state
from .repeating import describe_run, hash_data, hash_weights, raise_if_not_deterministic


class AtomicBackend(LocalBackend):
    """mmengine's backend for local files, with atomic writes."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write a file atomically.

        Raises:
            OSError: If the file cannot be written, such as on a full disk. A former file stays as it was.
        """
        path = Path(filepath)
        for leftover in unfinished_files(path):  # of a killed run, as large as a checkpoint
            leftover.unlink(missing_ok=True)
        try:
            with atomic_write(path) as file:
                file.write(obj)
        except OSError as error:
            raise OSError(
                f"{path} ({len(obj) / 2**20:.0f} MB) could not be written: {error.strerror}; "
                "earlier checkpoints are complete: free disk space and resume with --resume"
            ) from error

    def put_text(self, obj: str, filepath: str | Path, encoding: str = "utf-8") -> None:
        """Write text atomically; see `put`."""
        self.put(obj.encode(encoding), filepath)


register_backend("atomic", AtomicBackend)

_LATEST = "latest.pth"


@HOOKS.register_module()
class ResumableCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook for runs that may be killed at any moment, with the same arguments and `minutes`.

    - A thread writes a copy of the checkpoint while training continues. An error of the thread stops training at the
      next iteration, and the end of training waits for the thread. The copy takes as much memory as the file.
    - Local files are written atomically, and a checkpoint is removed only after the next one is complete. Therefore
      `last_checkpoint` always names a complete file.
    - Training stops instead of saving weights or statistics that are not finite, which could not be loaded.
    - A checkpoint holds the number of the next batch and the states of the random generators of every process. The
      augmentation of a sample depends on its place in the run, and validation leaves the generators unchanged. Training
      resumes at the next batch, also within an epoch, and draws the same numbers as uninterrupted training.

    With gradient accumulation, set `interval` to a multiple of `accumulative_counts`. Transforms that keep earlier
    images, such as mmdet's CachedMosaic, give other images after a resume.

    Args:
        minutes: Maximum age of the last checkpoint. An older one is followed by `latest.pth`, which exists until the
            next numbered checkpoint is complete. By default only `interval` counts.

    Raises:
        FloatingPointError: If a parameter or a buffer to be saved is not finite. The earlier checkpoints stay.
    """

    keep_ckpt_ids: deque[int]

    def __init__(self, *args: Any, minutes: float | None = None, **kwargs: Any) -> None:
        given = [kwargs.get(name) or {} for name in ("backend_args", "file_client_args")]
        if all(map(_is_local, given)) and "://" not in str(kwargs.get("out_dir")):
            kwargs.update(backend_args=dict(backend="atomic"), file_client_args=None)
        # mmengine sets the first for a single metric of `save_best`, and the second for several metrics.
        self.best_ckpt_path: str | None = None
        self.best_ckpt_path_dict: dict[str, str | None] = {}
        super().__init__(*args, **kwargs)
        self._minutes, self._saved_at = minutes, time.monotonic()
        self._saved: dict[str, Any] = {}
        self._resumed: dict[str, Any] | None = None
        self._loop: NumberedLoop | None = None
        self._writer = BackgroundWriter()
        self._record: dict[str, Any] = {}
        self._before_validation: RandomState | None = None

    def before_train(self, runner: Runner) -> None:
        super().before_train(runner)
        # A kill before the removal leaves outdated checkpoints. Step numbers name them, so that files of another folder
        # are safe, and nothing is removed if the run resumes in another folder or with other file names.
        info = runner.message_hub.runtime_info
        outdated = [step for step in info.pop("outdated_ckpt_ids", []) if isinstance(step, int)]
        kept = [self._path(step) for step in self.keep_ckpt_ids] if self.max_keep_ckpts > 0 else []
        if kept and info.get("last_ckpt") == kept[-1]:
            self._remove({self._path(step) for step in outdated} - set(kept))
        if NumberedLoop.supports(runner):
            self._loop = NumberedLoop(runner, self._resumed)
            raise_if_not_deterministic(runner)
        else:
            print_log("the batches have no numbers: a resumed run starts with other batches", logger="current")
        self._record = describe_run(runner)
        self._saved_at = time.monotonic()

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        outdated: list[int] = []
        if self.max_keep_ckpts > 0:
            # With a constant file name every checkpoint replaces the previous one, and counts once.
            steps = [kept for kept in self.keep_ckpt_ids if self._path(kept) != self._path(step)] + [step]
            outdated = steps[: -self.max_keep_ckpts]
            self.keep_ckpt_ids = deque(steps, self.max_keep_ckpts)
            runner.message_hub.update_info("keep_ckpt_ids", list(self.keep_ckpt_ids))
            runner.message_hub.update_info("outdated_ckpt_ids", outdated)
        self._write(runner, self.filename_tmpl.format(step), meta, {self._path(step) for step in outdated})

    def _write(self, runner: Runner, name: str, meta: dict, outdated: set[str]) -> None:
        """Write a checkpoint, then remove outdated ones."""
        self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        runner.message_hub.update_info("last_ckpt", self.last_ckpt)
        self._saved = dict(random_state=all_gather_object(self._before_validation or get_random_state()))
        if self._loop:
            self._saved["position"] = self._loop.position(meta)
        with save_with(self._writer.save, self._record["config"]):
            runner.save_checkpoint(
                self.out_dir,
                name,
                self.file_client_args,
                save_optimizer=self.save_optimizer,
                save_param_scheduler=self.save_param_scheduler,
                meta=meta,
                by_epoch=self.by_epoch,
                backend_args=self.backend_args,
                **self.args,
            )
        if is_main_process():
            pointer = Path(runner.work_dir) / "last_checkpoint"
            if _is_local(self.backend_args or {}):
                self._writer.submit(self._write_record, runner.cfg, self.last_ckpt)
            self._writer.submit(AtomicBackend().put_text, self.last_ckpt, pointer)
        self._remove(outdated | {self.file_backend.join_path(self.out_dir, _LATEST)} - {self.last_ckpt})
        self._saved_at = time.monotonic()

    def _write_record(self, cfg: Config, checkpoint: str) -> None:
        """Write what repeats the run beside a checkpoint that has been written last."""
        if "data" not in self._record:
            self._record["data"] = hash_data(cfg)
        content = self._writer.last
        record = dict(weights=hash_weights(content["state_dict"]), iteration=content["meta"]["iter"], **self._record)
        AtomicBackend().put_text(json.dumps(record, indent=1), Path(checkpoint).with_suffix(".json"))

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        self._writer.check()
        saved_at = self._saved_at
        super().after_train_iter(runner, *args, **kwargs)
        if self._minutes is None or self._saved_at != saved_at or (get_world_size() > 1 and runner.iter % 10):
            return  # several processes agree on the time, at every tenth iteration only
        due = [time.monotonic() - self._saved_at >= 60 * self._minutes]
        broadcast_object_list(due)
        if due[0]:
            self._write(runner, _LATEST, dict(epoch=runner.epoch, iter=runner.iter + 1), set())

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        # mmengine would remove the former best checkpoints before it writes the new ones, so their paths are hidden.
        single, several = self.best_ckpt_path, self.best_ckpt_path_dict
        self.best_ckpt_path, self.best_ckpt_path_dict = None, dict.fromkeys(several)
        with save_with(self._writer.save, self._record["config"]):
            super()._save_best_checkpoint(runner, metrics)
        self.best_ckpt_path = self.best_ckpt_path or single
        self.best_ckpt_path_dict = {key: path or several[key] for key, path in self.best_ckpt_path_dict.items()}
        kept = {self.best_ckpt_path, *self.best_ckpt_path_dict.values()}
        self._remove({path for path in (single, *several.values()) if path} - kept)

    def _remove(self, paths: set[str]) -> None:
        """Remove existing files after all checkpoints are complete, in the main process only."""

        def remove() -> None:
            records = {str(Path(path).with_suffix(".json")) for path in paths if "://" not in path}
            for path in filter(self.file_backend.isfile, paths | records):
                self.file_backend.remove(path)

        if is_main_process():
            self._writer.submit(remove)

    def _path(self, step: int) -> str:
        return self.file_backend.join_path(self.out_dir, self.filename_tmpl.format(step))

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        wrong = next((name for name, value in checkpoint["state_dict"].items() if not is_finite(value)), None)
        if wrong:
            self._writer.check(wait=True)
            raise FloatingPointError(
                f"iteration {runner.iter}: {wrong} is not finite, so the checkpoint is not written; "
                "earlier checkpoints are complete: resume with --resume and NonFiniteHook, which finds the cause"
            )
        checkpoint.update(self._saved)
        self._saved = {}

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if is_resuming(runner):
            self._resumed = {key: checkpoint.get(key) for key in ("random_state", "position")}

    def before_train_epoch(self, runner: Runner) -> None:
        if self._loop:
            self._loop.start_epoch()
        states = (self._resumed or {}).get("random_state") or []
        if len(states) == get_world_size():
            set_random_state(states[get_rank()])
        self._resumed = None

    def after_train(self, runner: Runner) -> None:
        self._writer.check(wait=True)
        super().after_train(runner)

    def before_val(self, runner: Runner) -> None:
        self._before_validation = get_random_state()

    def after_val(self, runner: Runner) -> None:
        state: Any = self._before_validation
        self._before_validation = None
        set_random_state(state)


def _is_local(backend: dict) -> bool:
    """Whether arguments of a file backend, or of mmengine's former file client, select plain local files."""
    return backend.keys() <= {"backend"} and backend.get("backend", "local") in ("local", "disk", "atomic")
