"""Which of the processes of torchrun this one is."""

import os


def rank_and_size() -> tuple[int, int]:
    """Return the number of this process, from 0, and how many there are. Without torchrun: 0, 1."""
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)


def is_first() -> bool:
    """Return whether this is the first process, which alone checks, writes and reports."""
    return rank_and_size()[0] == 0
