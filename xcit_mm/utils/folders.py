"""Folders of results that resume, and outputs that replace nothing of the user's."""

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from .atomic import atomic_write
from .cli import print_line

SETTINGS = "run.json"
_LOCK = ".lock"


@contextmanager
def open_folder(
    folder: Path,
    settings: Mapping[str, Any],
    overwrite: bool = False,
    list_results: Callable[[], Iterable[Path]] = tuple,
) -> Iterator[None]:
    """Open a folder of results that a later call with the same settings resumes.

    A new folder stores the settings in run.json. Until the block ends, no other process can open
    the folder.

    Args:
        settings: Everything that determines the results: model, options, versions. Values are
            plain, as in a JSON file.
        overwrite: Whether to remove the results of earlier calls first, and store other settings.
        list_results: Function that lists the files of earlier calls. Files of the user stay.

    Raises:
        BlockingIOError: If another process has opened the folder.
        ValueError: If an earlier call had other settings. The message names the first difference.
    """
    with lock_folder(folder, "--out"):
        path = folder / SETTINGS
        if overwrite:
            _remove(folder, [*list_results(), path])
        if path.exists():
            stored = None
            with suppress(ValueError):
                stored = json.loads(path.read_bytes())
            if not isinstance(stored, dict):
                raise ValueError(f"{path} is damaged: give another --out, or --overwrite")
            check_settings(folder, stored, settings)
        else:
            with atomic_write(path, folder / f"{SETTINGS}.unfinished") as file:
                file.write(json.dumps(settings, indent=2).encode())
        yield


def check_output(out: Path, inputs: Iterable[str | Path]) -> None:
    """Raise ValueError if an output is one of the inputs, or a folder that holds one.

    Args:
        out: File or folder to write.
        inputs: Paths of files and folders. URLs are skipped.
    """
    written = out.resolve()
    for path in inputs:
        if "://" not in str(path) and Path(path).resolve().is_relative_to(written):
            relation = "is" if Path(path).resolve() == written else "holds"
            raise ValueError(f"--out {out} {relation} the input {path}: give another --out")


@contextmanager
def lock_folder(folder: Path, option: str) -> Iterator[None]:
    """Lock a folder, which is made if necessary. The lock ends with the process, however the
    process ends. A folder that was made and stays empty is removed.

    Args:
        option: The option of the command by which a user gives another folder.

    Raises:
        BlockingIOError: If another process has locked the folder.
        NotADirectoryError: If it is a file, or below one.
    """
    file = next((path for path in (folder, *folder.parents) if path.is_file()), None)
    if file is not None:
        raise NotADirectoryError(f"{option} {folder}: {file} is a file, give a folder")
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _LOCK
    with path.open("wb") as lock:
        if not _try_lock(lock, path):
            fix = f"wait for its end, or give another {option}"
            raise BlockingIOError(f"another process writes into {folder}: {fix}")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                for new_folder in new_folders:
                    new_folder.rmdir()


def _try_lock(file: IO[bytes], path: Path) -> bool:
    """Lock the open file of a path, and return False if another process has locked it."""
    try:
        # Unlike those of flock, these locks do not pass on to processes that read images.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:  # the process that had the lock has removed the file since
        return False
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        print_line(f"{path.parent} cannot be locked: start no other process with this folder")
        return True  # some network file systems have no locks


def check_settings(out: Path, stored: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise ValueError if the settings of earlier results, as read from JSON, differ from those of
    a run.
    """
    settings = json.loads(json.dumps(settings))
    for name in {**settings, **stored}:
        if stored.get(name) != settings.get(name):
            change = f"{name} was {stored.get(name)}, is {settings.get(name)}"
            fix = "give another --out, or --overwrite"
            raise ValueError(f"{out} has results of another run: {change}; {fix}")


def _remove(folder: Path, files: Iterable[Path]) -> None:
    """Remove files of a folder, and the folders in it that become empty."""
    for path in files:
        path.unlink(missing_ok=True)
        for parent in path.parents:
            is_inside = folder in parent.parents and parent.is_dir()
            if not is_inside or any(parent.iterdir()):
                break
            parent.rmdir()
