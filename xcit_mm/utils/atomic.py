"""Files and folders that are complete or absent."""

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_path(path: Path, unfinished: Path | None = None) -> Iterator[Path]:
    """Yield a path for a file or folder to write, which is renamed to `path` when the block ends.
    If the block raises, it is removed, and a former file stays.

    Args:
        unfinished: The path to yield, which the next call replaces after a kill. Default: a new
            name in the folder of `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Some libraries choose the format by the suffix.
    unfinished = unfinished or path.with_name(f".{uuid.uuid4().hex[:8]}-{path.name}")
    try:
        yield unfinished
        if unfinished.is_file():  # a power failure must not leave a part of it
            with unfinished.open("r+b") as file:  # Windows needs the right to write
                os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        else:
            unfinished.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: Path, unfinished: Path | None = None) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces the file at `path`, as `atomic_path` does."""
    with atomic_path(path, unfinished) as new, new.open("wb") as file:
        yield file


@contextmanager
def removed_on_error(paths: Iterable[Path]) -> Iterator[None]:
    """Remove new files and folders if the block raises an Exception."""
    try:
        yield
    except Exception:
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        raise
