"""Which process of a run this one is."""

import os
from datetime import timedelta

import torch


def rank_and_size() -> tuple[int, int]:
    """Return the number of this process, from 0, and how many there are.

    Before torch.distributed is initialised, they are those that torchrun says; without it 0 and 1.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
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


def wait_for_ranks() -> None:
    """Wait until all processes call this function. One may work for days."""
    if rank_and_size()[1] > 1:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo", timeout=timedelta(days=100))
        torch.distributed.barrier()
