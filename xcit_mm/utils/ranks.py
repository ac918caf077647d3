"""Which of the processes of torchrun this one is."""

import os


def rank_and_size() -> tuple[int, int]:
    """Return the number of this process and of all processes of torchrun, without it 0 and 1."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
