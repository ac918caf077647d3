"""What every tool's output may meet: a reader that leaves early, as in `| head -1`."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """End quietly, as other Unix tools do, when what reads the output has gone."""
    try:
        yield
        sys.stdout.flush()  # here, where it can be caught, and not after the last line of the program
    except BrokenPipeError:
        # The interpreter flushes what is left once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
