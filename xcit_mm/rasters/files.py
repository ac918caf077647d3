"""Files of results: each is whole or absent, even where the disk is full."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..utils.atomic import atomic_path
from ..utils.errors import reason

MADE_FROM = "MADE_FROM"
"""Key of what a result was made from in the metadata of its file: a JSON for people to read."""
UNFINISHED = "unfinished-"
"""Start of the names of files that are being written, in the folder of the rows."""


def rows_folder(out: Path) -> Path:
    """Return the folder of the rows and the unfinished files of a result."""
    return out.with_name(f"{out.name}.parts")


@contextmanager
def written_file(path: Path, folder: Path) -> Iterator[Path]:
    """Yield a path in `folder` for a file to write and to read back, which then moves to `path`.

    Raises:
        OSError: If the block raises an error. The message is one line.
    """
    unfinished = folder / f"{UNFINISHED}{path.name}"
    unfinished.unlink(missing_ok=True)
    try:
        with atomic_path(path, unfinished):
            yield unfinished
    except Exception as error:  # each library has errors of its own
        fix = "see whether the disk is full, then start the same command again"
        cause = reason(error.__cause__ or error)
        raise OSError(f"{path} cannot be written ({cause}): {fix}") from error


def write_bytes(path: Path, folder: Path, data: bytes) -> None:
    """Write a file by way of a file in `folder`."""
    with written_file(path, folder) as unfinished:
        unfinished.write_bytes(data)
