"""Files below a folder, whatever links lead to it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path


def iter_files(root: Path, on_error: Callable[[OSError], object] | None = None) -> Iterator[Path]:
    """Yield the files of a folder and its folders. Each real folder is searched once.

    `on_error` is called with the error of each folder that cannot be read. Links to folders are
    followed last, so that files keep the names of their real folders.
    """
    for path, _ in iter_real_files(root, on_error):
        yield path


def iter_real_files(
    root: Path, on_error: Callable[[OSError], object] | None = None
) -> Iterator[tuple[Path, str]]:
    """Yield the files of a folder and its folders, as `iter_files`, each with its real path."""
    searched = set()
    pending = [root]
    for top in pending:  # which grows by links
        for folder, folders, names in os.walk(top, onerror=on_error):
            real_folder = os.path.realpath(folder)
            if real_folder in searched:
                folders.clear()
                continue
            searched.add(real_folder)
            folders.sort()
            for name in names:
                path = os.path.join(folder, name)
                is_link = os.path.islink(path)
                real_path = os.path.realpath(path) if is_link else os.path.join(real_folder, name)
                yield Path(path), real_path
            paths = (Path(folder, name) for name in folders)
            pending += [path for path in paths if path.is_symlink()]
