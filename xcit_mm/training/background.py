"""Checkpoints that a thread writes from a copy, while training continues."""

import copy
import logging
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.runner import save_checkpoint
from torch import Tensor

from .nonfinite_search import iter_tensors


class BackgroundWriter:
    """Runs tasks one after another in a thread. At its end the process waits for them.

    The memory of a copy is used again, because new memory takes several times as long as the copy itself.

    Attributes:
        last: Copy of the checkpoint that was saved last, until the next `save`.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._tasks: list[Future] = []
        self._buffers: list[Tensor] = []
        self.last: dict[str, Any] = {}

    def save(self, checkpoint: dict, *args: Any, **kwargs: Any) -> None:
        """Check former tasks, then write a copy in the thread, with the arguments of mmengine's `save_checkpoint`."""
        self.check(wait=True)
        self.last = self._copy(checkpoint)
        self.submit(save_checkpoint, self.last, *args, **kwargs)

    def submit(self, task: Callable, *args: Any, **kwargs: Any) -> None:
        """Run a task after all former ones, and only if none of them has failed."""
        former = list(self._tasks)

        def run() -> None:
            if any(earlier.exception() for earlier in former):
                return
            try:
                task(*args, **kwargs)
            except Exception as error:
                print_log(str(error), "current", logging.ERROR)  # training may stop for another reason before the check
                raise

        self._tasks.append(self._pool.submit(run))

    def check(self, wait: bool = False) -> None:
        """Raise the exception of a task that has failed, after waiting for all tasks if `wait`."""
        while self._tasks and (wait or self._tasks[0].done()):
            self._tasks[0].result()  # a failed task stays, so that later ones do not run
            self._tasks.pop(0)

    def _copy(self, checkpoint: dict) -> dict:
        free = defaultdict(list)
        for buffer in self._buffers:
            free[buffer.shape, buffer.dtype].append(buffer)
        copies: dict[int, Any] = {}
        for tensor in iter_tensors(checkpoint):
            if id(tensor) not in copies:
                buffers = free[tensor.shape, tensor.dtype]
                if not buffers:
                    buffers.append(torch.empty(tensor.shape, dtype=tensor.dtype))
                    self._buffers.append(buffers[0])
                copies[id(tensor)] = buffers.pop().copy_(tensor.detach())
        return copy.deepcopy(checkpoint, copies)
