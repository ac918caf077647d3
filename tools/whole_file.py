"""What every tool's file may meet: Ctrl-C or a full disk in the middle of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path beside another to write to, which takes the other's name once the block is over.

    If the block raises, what it has written is removed, and what had the name before is as it was.
    """
    partial = path.with_name(f".{os.getpid()}-{path.name}")  # the suffix, by which some libraries choose, is the same
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
