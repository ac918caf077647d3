"""Files below a folder, whatever links lead to it."""

import os
from collections.abc import Iterator
from pathlib import Path


def iter_files(root: Path) -> Iterator[Path]:
    """Yield the files of a folder and its folders. Each real folder is searched once.

    Links to folders are followed last, so that files keep the names of their real folders.
    """
    searched = set()
    pending = [root]
    for top in pending:  # which grows by links
        for folder, folders, names in os.walk(top):
            place = os.path.realpath(folder)
            if place in searched:
                folders.clear()
                continue
            searched.add(place)
            folders.sort()
            yield from (Path(folder, name) for name in names)
            paths = (Path(folder, name) for name in folders)
            pending += [path for path in paths if path.is_symlink()]
