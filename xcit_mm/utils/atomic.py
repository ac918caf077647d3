"""Files and folders that are complete or absent."""

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a path in the same folder to write to. When the block ends, the file is renamed to `path`.

    If the block raises, the new file is removed, and a former file at `path` stays unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Some libraries choose the format by the suffix.
    unfinished = path.with_name(f".{uuid.uuid4().hex[:8]}-{path.name}")
    try:
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing. It replaces the file at `path` when the block ends; see `atomic_path`."""
    with atomic_path(path) as unfinished, unfinished.open("wb") as file:
        yield file


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder in the same folder to fill. When the block ends, it is renamed to `path`.

    If the block raises, the new folder is removed.

    Raises:
        FileExistsError: If `path` exists.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists: remove it first")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as temporary:
        unfinished = Path(temporary) / path.name
        unfinished.mkdir()
        yield unfinished
        unfinished.rename(path)


def unfinished_files(path: Path) -> Iterator[Path]:
    """Find the files that killed processes left unfinished. The name in `path` may be a glob pattern."""
    return path.parent.glob(f".{'[0-9a-f]' * 8}-{path.name}")
