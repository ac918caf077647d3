"""Folders of results that resume, and outputs that replace nothing of the user's."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from .atomic import atomic_write
from .cli import print_line

try:
    import fcntl
except ModuleNotFoundError:  # on Windows
    fcntl = None  # type: ignore[assignment]

SETTINGS = "run.json"


@contextmanager
def open_folder(
    folder: Path,
    settings: Mapping[str, Any],
    overwrite: bool = False,
    list_results: Callable[[], Iterable[Path]] = tuple,
) -> Iterator[None]:
    """Lock a folder of results, which a later call with the same settings resumes.

    Args:
        settings: Model, options and versions that determine the results, stored in run.json.
        overwrite: Whether to remove the results of earlier calls first, and store other settings.
        list_results: Function that lists the files of earlier calls. Files of the user stay.

    Raises:
        BlockingIOError: If another process has opened the folder.
        ValueError: If an earlier call had other settings. The message names the first difference.
    """
    with lock_folder(folder, "--out"):
        path = folder / SETTINGS
        if overwrite:
            for result in [*list_results(), path]:
                result.unlink(missing_ok=True)
        content = json.dumps(settings, indent=2)
        if not path.exists():
            with atomic_write(path, folder / f"{SETTINGS}.unfinished") as file:
                file.write(content.encode())
        current = json.loads(content)
        stored = json.loads(path.read_bytes())
        for name in {**current, **stored}:
            if stored.get(name) != current.get(name):
                change = f"{name} was {stored.get(name)}, is {current.get(name)}"
                fix = "give another --out, or --overwrite"
                raise ValueError(f"{folder} has results of another run: {change}; {fix}")
        yield


def check_output(out: Path, inputs: Iterable[str | Path]) -> None:
    """Raise ValueError if an output, a file or a folder, is an input or holds one."""
    written = os.path.realpath(out)
    for path in inputs:
        real_path = os.path.realpath(path)  # unlike Path.resolve, it takes loops of links
        if "://" not in str(path) and Path(real_path).is_relative_to(written):
            relation = "is" if real_path == written else "holds"
            raise ValueError(f"--out {out} {relation} the input {path}: give another --out")


@contextmanager
def lock_folder(folder: Path, option: str) -> Iterator[None]:
    """Lock a folder until the block or this process ends. A folder that is made for this and stays
    empty is removed.

    Args:
        option: The option of the command by which a user gives another folder.

    Raises:
        BlockingIOError: If another process has locked the folder.
    """
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    with path.open("wb") as lock:
        try:
            _lock(lock)
            # The process that had the lock may have removed the file since it was opened.
            is_locked = os.path.samestat(os.fstat(lock.fileno()), path.stat())
        except (BlockingIOError, FileNotFoundError):
            is_locked = False
        except OSError as error:  # some network file systems have no locks
            print_line(f"{folder} cannot be locked ({error}): let no other process write into it")
            is_locked = True
        if not is_locked:
            fix = f"wait for its end, or give another {option}"
            raise BlockingIOError(f"another process writes into {folder}: {fix}")
        try:
            yield
        finally:
            with suppress(PermissionError):  # Windows removes no open file
                path.unlink(missing_ok=True)
            with suppress(OSError):  # of a folder that has files
                for new_folder in new_folders:
                    new_folder.rmdir()


def _lock(file: IO[bytes]) -> None:
    """Lock an open file until it is closed, or raise BlockingIOError if another process has."""
    if fcntl is not None:
        # Unlike those of flock, these locks do not pass on to processes that read images.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    windows: Any = import_module("msvcrt")
    try:
        windows.locking(file.fileno(), windows.LK_NBLCK, 1)
    except OSError as error:
        raise BlockingIOError(str(error)) from error
