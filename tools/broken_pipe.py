"""How a command ends when the reader of its output has gone. Imports nothing of the package: the doctor checks that."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ignore_broken_pipe() -> Iterator[None]:
    """End quietly when the reader of the output has gone, as in `| head -1`."""
    try:
        yield
        sys.stdout.flush()  # within the block, or the interpreter would raise at its end
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
        sys.exit(128 + signal.SIGPIPE)
