"""Files and folders that are complete or absent."""

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_UNFINISHED = ".unfinished-"


def remove_unfinished(folder: Path) -> None:
    """Remove from a folder what killed processes have left unfinished."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        remove(path)


def finish(unfinished: Path, path: Path) -> None:
    """Give a finished file or folder its name, and replace a former file."""
    if unfinished.is_file():  # a power failure must not leave a part of it
        with unfinished.open("r+b") as file:  # Windows needs the right to write
            os.fsync(file.fileno())
    os.replace(unfinished, path)


@contextmanager
def atomic_path(path: Path, is_shared: bool = False) -> Iterator[Path]:
    """Yield a path for a file or folder to write, which gets its name when the block ends.

    It has the same suffix, by which some libraries choose the format.

    If the block raises, what was written is removed, and a former file stays. What a kill leaves is
    removed by the next call for the same path. The error of a full disk names the path.

    Args:
        is_shared: Whether another process may write the same file at the same time. What a kill
            leaves then stays, under a hidden name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{uuid.uuid4().hex[:8]}-" if is_shared else _UNFINISHED
    unfinished = path.with_name(f"{prefix}{path.name}")
    remove(unfinished)
    try:
        with named_in_errors(path):
            yield unfinished
            finish(unfinished, path)
    finally:
        remove(unfinished)


@contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """Add a path to an error of a full disk in this block, since that of `write` has none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces the file at `path`, as `atomic_path` does."""
    with atomic_path(path) as new, new.open("wb") as file:
        yield file


@contextmanager
def restored_on_error(paths: Iterable[Path]) -> Iterator[None]:
    """Bring files and folders back to what they were before the block, if it raises.

    New ones are removed, and so are the folders made for them if they are empty. Former ones have a
    hidden name beside them while the block runs, and are removed at its end.

    Raises:
        FileExistsError: If a kill has left a file with this hidden name.
    """
    former = {path: path.with_name(f".former-{path.name}") for path in paths}
    new_folders = {folder for path in former for folder in path.parents if not folder.exists()}
    for path, kept in former.items():
        if kept.exists():
            problem = f"{kept} is what a stopped command put aside"
            raise FileExistsError(f"{problem}: rename it to {path.name}, or remove it")
    for path, kept in former.items():
        if path.exists():
            path.rename(kept)
    try:
        yield
    except BaseException:
        for path, kept in former.items():
            remove(path)
            if kept.exists():
                kept.rename(path)
        for folder in sorted(new_folders, reverse=True):  # inner folders first
            with suppress(OSError):  # not empty: another program wrote files there
                folder.rmdir()
        raise
    for kept in former.values():
        remove(kept)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
