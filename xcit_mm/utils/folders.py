"""Folders of results that resume, and outputs that replace nothing of the user's."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from zlib import crc32

from .atomic import atomic_write, remove
from .errors import ArgumentError
from .output import say
from .ranks import Ranks

SETTINGS = "run.json"
LOCK = ".lock"


@contextmanager
def open_folder(
    folder: Path, settings: Mapping[str, Any], overwrite: bool = False
) -> Iterator[None]:
    """Lock a folder of finished items, and resume it as `resume_folder` does.

    Raises:
        BlockingIOError: If another process has opened the folder.
        FileExistsError: If the folder has files of the user.
        ArgumentError: If an earlier call had other settings.
    """
    if folder.is_dir() and not (folder / SETTINGS).exists():
        foreign = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
        if foreign:
            problem = f"{folder} has files that are not of a run, such as {foreign[0]}"
            raise FileExistsError(f"{problem}: choose another name for the result")
    with lock_folder(folder):
        resume_folder(folder, settings, overwrite)
        yield


def resume_folder(folder: Path, settings: Mapping[str, Any], overwrite: bool = False) -> None:
    """Prepare a locked folder for the items of a call. Items with the same settings stay.

    Args:
        settings: Model, options and versions that determine the items. They are stored in run.json.
        overwrite: Whether to remove all files in the folder if they were made with other settings.
            Files with the same settings stay here too: they come from an overwriting call that was
            stopped.

    Raises:
        ArgumentError: If an earlier call had other settings. The message names the first one that
            differs.
    """
    path = folder / SETTINGS
    change = find_other_run(folder, settings)
    if change and not overwrite:
        fix = "give another, or overwrite it"
        raise ArgumentError("out", f"{folder} has results of another run: {change}: {fix}")
    if change:
        clear_folder(folder)
    if not path.exists():
        with atomic_write(path) as file:
            file.write(json.dumps(as_json(settings), indent=2).encode())


def find_other_run(folder: Path, settings: Mapping[str, Any]) -> str:
    """Describe the first setting that differs from those of a folder's items, or return ''."""
    path = folder / SETTINGS
    return find_change(json.loads(path.read_bytes()), settings) if path.exists() else ""


def clear_folder(folder: Path) -> None:
    """Remove everything in a folder except its lock.

    run.json is removed last: after a kill, it still says which run has made the other files.
    """
    for path in sorted(folder.iterdir(), key=lambda path: path.name == SETTINGS):
        if path.name != LOCK:
            remove(path)


def as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a JSON has them: tuples are lists, and NumPy's numbers are Python's."""
    return json.loads(json.dumps(settings, default=float))


def find_change(stored: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Describe the first setting that differs from stored ones, or return '' if none does.

    A setting whose value says nothing to a user, such as a checksum, is a dictionary that also has
    the `change` in words.

    Args:
        stored: Settings as they were read from a JSON.
    """
    current = as_json(settings)
    for name in {**current, **stored}:
        former = stored.get(name)
        value = current.get(name)
        if former != value:
            if isinstance(value, dict):
                return value["change"]
            return f"{name} was {former}, is {value}"
    return ""


def check_output(out: Path, inputs: Iterable[str | Path], name: str = "out") -> None:
    """Raise ArgumentError if an output, a file or a folder, is an input or holds one.

    Args:
        name: The argument by which a user chooses another output.
    """
    output = os.path.realpath(out)
    for path in inputs:
        if Path(os.path.realpath(path)).is_relative_to(output):
            raise ArgumentError(name, f"{out} is or holds the input {path}: give another")


def scratch_folder(scratch: str | Path, out: Path) -> Path:
    """Return the folder for one result, inside a folder that several results may share."""
    checksum = crc32(os.fsencode(os.path.realpath(out)))
    return Path(os.path.abspath(scratch)) / f"{out.name}-{checksum:08x}"


def check_is_shared(folder: Path, ranks: Ranks) -> None:
    """Raise FileNotFoundError in all processes unless all see the folder of the first."""
    if ranks.size == 1:
        return
    mark = Path(ranks.of_first(lambda: mkdtemp(prefix=".seen-", dir=folder)))
    sees = ranks.gather((folder / mark.name).exists())
    if ranks.rank == 0:
        mark.rmdir()
    if not all(sees):
        problem = f"process {sees.index(False)} does not see what process 0 writes into {folder}"
        raise FileNotFoundError(f"{problem}: choose a folder on a disk that all processes see")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, which is made if necessary, until the block or this process ends.

    Raises:
        BlockingIOError: If another process has locked the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("wb") as lock:
        try:
            import fcntl

            # Unlike locks of flock, these do not pass on to processes that read images.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fix = "wait for its end, or choose another folder"
            raise BlockingIOError(f"another process writes into {folder}: {fix}") from None
        except (OSError, ModuleNotFoundError) as error:  # on some network file systems, and Windows
            say(f"{folder} cannot be locked ({error}): let no other process write into it")
        yield
