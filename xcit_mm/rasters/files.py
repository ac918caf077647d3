"""The rasters of a folder, and files of results: whole, as they were written, or absent, also where
the disk is full.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..utils.atomic import atomic_path
from ..utils.errors import reason

UNFINISHED = "unfinished-"
"""Start of the names of files that are being written, in the folder of the rows."""

SUFFIXES = (".tif", ".tiff", ".jp2", ".j2k", ".vrt", ".img", ".ntf", ".nitf")
"""Suffixes of the rasters in a folder."""


class WriteError(OSError):
    """A result could not be written, most often because the disk is full."""


def rows_folder(out: Path) -> Path:
    """Return the folder of the rows and the unfinished files of a result."""
    return out.with_name(f"{out.name}.parts")


@contextmanager
def written_file(path: Path, folder: Path) -> Iterator[Path]:
    """Yield a path in `folder` to write and to read back. Then its file becomes that at `path`.

    Raises:
        WriteError: If the block raises an error. The message is one line.
    """
    unfinished = folder / f"{UNFINISHED}{path.name}"
    unfinished.unlink(missing_ok=True)
    try:
        with atomic_path(path, unfinished):
            yield unfinished
    except Exception as error:  # each library has errors of its own
        fix = "see whether the disk is full, then start the same command again"
        cause = reason(error.__cause__ or error)
        raise WriteError(f"{path} cannot be written ({cause}): {fix}") from error


def write_bytes(path: Path, folder: Path, content: bytes) -> None:
    """Write a file by way of a file in `folder`, and read it back."""
    with written_file(path, folder) as unfinished:
        unfinished.write_bytes(content)
        if unfinished.read_bytes() != content:
            raise OSError("another content was read back")


def require_space(path: Path, size: int) -> None:
    """Raise WriteError if the disk has less free space than `size` bytes for a file."""
    free = shutil.disk_usage(path.parent).free
    if free < size:
        needs = f"needs up to {size / 1e6:.1f} MB, but the disk has {free / 1e6:.1f} MB free"
        raise WriteError(f"{path} {needs}: free the rest, then start the same command again")


def list_rasters(path: Path) -> list[Path]:
    """List the rasters of a folder, of which each has a name of its own without its suffix, or a
    file alone.
    """
    if not path.is_dir():
        return [path]
    paths = sorted(other for other in path.iterdir() if other.suffix.lower() in SUFFIXES)
    if not paths:
        raise FileNotFoundError(f"{path} has no rasters ({', '.join(SUFFIXES)})")
    if len({other.stem for other in paths}) < len(paths):
        raise ValueError(f"{path} has rasters of the same name and other suffixes: rename them")
    return paths
