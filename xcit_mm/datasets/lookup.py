"""Photos that jsons and lists name, perhaps by paths of another machine."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath, PureWindowsPath

from ..utils.texts import compose

Parts = tuple[str, ...]
"""The folders and the name of a path, with composed letters."""


class PhotoIndex:
    """Photos by each end of their paths.

    Args:
        photos: Photos, each with its path in the data set.
    """

    def __init__(self, photos: Iterable[tuple[Path, PurePath]]) -> None:
        self._by_path: dict[Parts, list[Path]] = defaultdict(list)
        self._by_end: dict[Parts, list[Path]] = defaultdict(list)
        for photo, path in photos:
            parts = tuple(map(compose, path.parts))
            self._by_path[parts].append(photo)
            for start in range(len(parts)):
                self._by_end[parts[start:]].append(photo)

    def find(self, names: Sequence[Sequence[Parts]], is_whole: bool = False) -> list[list[Path]]:
        """Return the photos that each name means by an end of their paths.

        Names may be of another machine: those of one root lose the first folders that no photo has.

        Args:
            names: The paths that each name may be, of which the first that any photo has counts.
            is_whole: Whether relative paths lose no folders.
        """
        rows_of_root: dict[str, list[int]] = defaultdict(list)
        for row, paths in enumerate(names):
            first = paths[0][0] if paths and paths[0] else ""
            rows_of_root[first if is_root(first) or first == ".." else ""].append(row)
        found: list[list[Path]] = [[] for _ in names]
        for root, rows in rows_of_root.items():
            length = max(len(parts) for row in rows for parts in names[row])
            for start in range(min(length, 1) if is_whole and not root else length):
                for row in rows:
                    found[row] = self._find([parts[start:] for parts in names[row]])
                if any(found[row] for row in rows):
                    break
        return found

    def _find(self, ends: Sequence[Parts]) -> list[Path]:
        for photos_of in (self._by_path, self._by_end):
            for end in ends:
                if end in photos_of:
                    return photos_of[end]
        return []


def path_parts(name: str) -> Parts:
    """Return the parts of a path of any system."""
    return tuple(map(compose, PureWindowsPath(name).parts))  # which also reads slashes


def is_root(part: str) -> bool:
    """Return whether a part of `path_parts` is a root, which may be `\\` for / or `C:\\`."""
    return part.endswith("\\")


def find_photos(
    names: Sequence[str], index: PhotoIndex, is_whole: bool = False
) -> list[Path | None]:
    """Return the photo that each name means, or None for a photo that is missing.

    Raises:
        ValueError: If a name may mean several photos, or different names mean one.
    """
    found: list[Path | None] = []
    name_of: dict[Path, str] = {}
    photos_of_names = index.find([[path_parts(name)] for name in names], is_whole)
    for name, photos in zip(names, photos_of_names, strict=True):
        if len(photos) > 1:
            raise ValueError(f"{name} may be {photos[0]} or {photos[1]}: write more of its path")
        found += photos or [None]
        for photo in photos:
            other = name_of.setdefault(photo, name)
            if path_parts(other) != path_parts(name):
                fix = "keep the photos in the folders that are named"
                raise ValueError(f"{other} and {name} may both be {photo}: {fix}")
    return found
