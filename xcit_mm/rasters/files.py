"""Files of a raster's result."""

from contextlib import AbstractContextManager
from pathlib import Path

from ..utils.atomic import atomic_path

MADE_FROM = "MADE_FROM"
"""Key of what a result was made from in the metadata of its file: a JSON for people to read."""


def rows_folder(out: Path) -> Path:
    """Return the folder of the rows and the unfinished files of a result."""
    return out.with_name(f"{out.name}.parts")


def written_file(path: Path, folder: Path) -> AbstractContextManager[Path]:
    """Yield a path in `folder` for a file to write, which then moves to `path`."""
    unfinished = folder / f"unfinished-{path.name}"
    unfinished.unlink(missing_ok=True)
    return atomic_path(path, unfinished)
