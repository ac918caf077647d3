"""SIGTERM, which Slurm and torchrun send before they end a run: the run saves and ends."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.runner import Runner

from ..utils.output import say
from .resuming import AtomicBackend

_STOPPED = "stopped.pth"


class TerminationHook(Hook):
    """Ends a training after SIGTERM, with the checkpoint `stopped.pth` and the exit code 143.

    The current iteration is completed, and so is a validation that belongs to it. If one process
    receives the signal, all of them stop after the same iteration.
    """

    priority = "LOWEST"  # after the hooks that build loaders
    _is_terminated = False

    def before_train(self, runner: Runner) -> None:
        def note_signal(*_: object) -> None:
            self._is_terminated = True

        with suppress(ValueError):  # only the main thread may set a handler
            signal.signal(signal.SIGTERM, note_signal)
        AtomicBackend().remove(Path(runner.work_dir, _STOPPED))  # at the next checkpoint
        loops: Any = (runner.train_loop, runner.val_loop)
        for loop in filter(None, loops):
            loader = loop.dataloader
            loader.worker_init_fn = partial(_leave_process_group, loader.worker_init_fn)
        # mmengine's loop over iterations has already started its workers.
        workers: Any = multiprocessing.active_children()
        for worker in workers:
            with suppress(PermissionError):  # of processes that are spawned, not forked
                os.setpgid(worker.pid, 0)

    def before_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        # Here and not after the iteration: its validation is done too.
        is_terminated = torch.tensor(float(self._is_terminated))
        all_reduce(is_terminated, op="max")
        if not is_terminated:
            return
        runner.save_checkpoint(
            runner.work_dir,
            _STOPPED,
            meta=dict(epoch=runner.epoch, iter=runner.iter),
            by_epoch=False,
            backend_args=dict(backend="atomic"),  # it writes `last_checkpoint` too
        )
        hint = f"{Path(runner.work_dir, _STOPPED)} is saved, and the run can be resumed"
        say(f"stopped by SIGTERM after iteration {runner.iter}: {hint}")
        sys.exit(128 + signal.SIGTERM)


@contextmanager
def restored_signal() -> Iterator[None]:
    """Restore the handler of SIGTERM that the block replaces."""
    former = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with suppress(ValueError):  # as above
            signal.signal(signal.SIGTERM, former)


def _leave_process_group(init: Callable[[int], None], worker: int) -> None:
    """Take a worker out of the group of processes to which torchrun sends SIGTERM.

    The run needs its workers until it ends. The loader's own `init` is called afterwards.
    """
    os.setpgid(0, 0)
    init(worker)
