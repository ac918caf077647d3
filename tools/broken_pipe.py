"""End a command whose output is no longer read.

It stands in tools/ because the doctor uses it where the package cannot be imported.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ignore_broken_pipe() -> Iterator[None]:
    """End without an error when the reader of the output has closed it, as `| head -1` does."""
    try:
        try:
            yield
        except SystemExit as end:
            if not end.code:  # after a help text
                sys.stdout.flush()
            raise
        sys.stdout.flush()  # here, because the interpreter would raise at its end
    except BrokenPipeError:
        # For the flush of the interpreter at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
