"""Images to predict, and the unique names of their results."""

import hashlib
import os
import posixpath
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_MAX_NAME = 200  # bytes, since results are named after it


class Item(NamedTuple):
    """An image to predict.

    Attributes:
        path: Absolute path.
        name: Unique path of its results, with its suffix: relative to the folder that was given, or
            COCO's `file_name`.
        id: `id` in a COCO json. Default: given by the run.
    """

    path: str
    name: str
    id: int | str | None = None


def make_unique(items: Sequence[Item], taken: Iterable[str] = ()) -> list[Item]:
    """Give items short and unique names of results, which do not lead out of their folder.

    Args:
        taken: Names of other items.
    """
    used = _Names()
    for other in taken:
        used.add(other)
    renamed = []
    for item in items:
        folder, file = os.path.split(posixpath.normpath("/" + item.name).lstrip("/"))
        stem, suffix = os.path.splitext(file)
        if len(os.fsencode(file)) > _MAX_NAME:
            digest = hashlib.sha256(os.fsencode(file)).hexdigest()
            stem = f"{stem[:40]}-{digest[:12]}"
        folder = used.free_folder(folder)
        name = os.path.join(folder, stem + suffix)
        count = 1
        while used.has(name):
            count += 1
            name = os.path.join(folder, f"{stem}-{count}{suffix}")
        used.add(name)
        renamed.append(item._replace(name=name))
    return renamed


class _Names:
    """Names of items, and the files and folders of their results."""

    def __init__(self) -> None:
        self._files: set[tuple[str, str]] = set()
        self._folders: set[str] = set()

    def add(self, name: str) -> None:
        self._files.update(self._results(name))
        folder = os.path.dirname(name)
        while folder and folder not in self._folders:
            self._folders.add(folder)
            folder = os.path.dirname(folder)

    def has(self, name: str) -> bool:
        """Return whether a result of this name is taken, or is a folder of others."""
        results = self._results(name)
        is_folder = any(path in self._folders for _, path in results)
        return is_folder or not results.isdisjoint(self._files)

    def free_folder(self, folder: str) -> str:
        """Return a folder, renamed if a part of it is a result of an item."""
        free = ""
        for part in filter(None, folder.split("/")):
            path = os.path.join(free, part)
            count = 1
            while {("drawing", path), ("map", path)} & self._files:
                count += 1
                path = os.path.join(free, f"{part}-{count}")
            free = path
        return free

    @staticmethod
    def _results(name: str) -> set[tuple[str, str]]:
        """Return the paths of a drawing and of a map."""
        return {("drawing", drawing_name(name)), ("map", f"{name}.png")}


def drawing_name(name: str) -> str:
    """Return the file name of an item's drawing: a.jpg of a.jpg, b.png.jpg of b.png."""
    return name if name.endswith(".jpg") else f"{name}.jpg"
