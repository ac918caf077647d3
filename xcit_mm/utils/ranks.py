"""The processes of a run: which one this is, and how they exchange values."""

import atexit
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def rank_and_size() -> tuple[int, int]:
    """Return the number of this process, from 0, and the number of processes.

    Before torch.distributed is initialised, torchrun sets both. Without torchrun they are 0 and 1.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)


def is_first() -> bool:
    """Return whether this is the first process, which alone checks, writes and reports."""
    return rank_and_size()[0] == 0


def rank_device() -> str | None:
    """Return the GPU of this process of torchrun, or None without torchrun or GPUs."""
    local_rank = os.environ.get("LOCAL_RANK")
    if local_rank is None or not torch.cuda.is_available():
        return None
    return f"cuda:{local_rank}"


def all_ranks() -> Any | None:
    """Return torch.distributed's group of all processes of a run, or None for one process.

    One process may work for days while others wait. What they exchange is on the CPU, since it
    comes from files, so gloo is the backend on GPUs too. A group that the caller has initialised
    is taken with its own backend and timeout.
    """
    if rank_and_size()[1] == 1:
        return None
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=timedelta(days=100))
        atexit.register(_leave_group)
    return dist.group.WORLD


def _leave_group() -> None:
    """End gloo's threads, which otherwise may abort a process that exits."""
    if dist.is_initialized():
        dist.destroy_process_group()


def wait_for_ranks() -> None:
    """Wait until all processes call this function. One may work for days."""
    Ranks(all_ranks()).wait()


class Ranks:
    """Processes that share some work. Each calls the same methods in the same order.

    Args:
        group: A group of torch.distributed, or None for this process alone.

    Attributes:
        rank: Number of this process in the group, from 0.
        size: Number of processes in the group.

    Raises:
        ConnectionError: From each method, if another process has ended.
    """

    def __init__(self, group: Any | None) -> None:
        self._group: Any = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def divide(self, count: int, step: int) -> list[slice]:
        """Divide items into one range for each process. A range starts at a multiple of `step`.

        If there are too few items, the ranges of the last processes are empty.
        """
        length = math.ceil(count / step / self.size) * step
        ends = [min(rank * length, count) for rank in range(self.size + 1)]
        return [slice(*pair) for pair in pairwise(ends)]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes in the order of ranks. Tensors must be on the CPU."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        with _lost_connections():
            dist.all_gather_object(values, value, self._group)
        return values

    def wait(self) -> None:
        """Wait until all processes call this method."""
        self.gather(None)

    def of_first(self, function: Callable[[], Any]) -> Any:
        """Call a function in the first process when all have called this, and return its result."""
        self.wait()
        result = function() if self.rank == 0 else None
        return self.gather(result)[0]

    def exchange(self, before: Tensor, after: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Exchange tensors with the previous and the next process.

        Args:
            before: Tensor for the previous process.
            after: Tensor for the next process.
            count: Number of processes that take part, counted from the first. The others must call
                this method too.

        Returns:
            The tensors from the previous and the next process. They have the shapes of `before` and
            `after`, or no rows if there is no such process.
        """
        device = torch.device("cpu")
        if self.size > 1 and dist.get_backend(self._group) == "nccl":
            device = torch.device("cuda", torch.cuda.current_device())
        received = []
        operations = []
        for tensor, other in ((before, self.rank - 1), (after, self.rank + 1)):
            if self.rank >= count or not 0 <= other < count:
                received.append(tensor[:0])
                continue
            peer = dist.get_global_rank(self._group, other)
            given = tensor.to(device).contiguous()
            taken = torch.empty_like(given)
            operations.append(dist.P2POp(dist.isend, given, peer, self._group))
            operations.append(dist.P2POp(dist.irecv, taken, peer, self._group))
            received.append(taken)
        if operations:
            with _lost_connections():
                for work in dist.batch_isend_irecv(operations):
                    work.wait()
        return received[0].to(before.device), received[1].to(after.device)


@contextmanager
def _lost_connections() -> Iterator[None]:
    """Raise ConnectionError in place of what torch.distributed raises when a process has ended."""
    try:
        yield
    except RuntimeError as error:
        first_sentence = " ".join(str(error).split(". ")[0].split())
        problem = f"another process of this run has ended ({first_sentence})"
        raise ConnectionError(f"{problem}: start all processes again to continue") from error
