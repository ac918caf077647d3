"""The files of a data set, found by one walk, and what becomes of each."""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import attrgetter
from pathlib import Path, PurePath

from ..utils.errors import counted
from ..utils.folders import SETTINGS
from ..utils.images import PHOTO_SUFFIXES
from ..utils.texts import is_unicode
from ..utils.walk import iter_real_files
from .lookup import PhotoIndex

# Beginnings of names that systems give to their files beside those of the user.
_HIDDEN = (".", "Thumbs.db", "desktop.ini", "__MACOSX", "Icon\r")
_RESULT_FILES = ("last_checkpoint", "args.yaml", "opt.yaml")  # of mmengine and Ultralytics
_TASKS = ("detect", "segment", "pose", "obb", "classify")  # of Ultralytics, with runs/TASK/NAME
LABEL_SUFFIXES = (".txt", ".json", ".yaml", ".yml")
STATE = "source.json"
"""The file of a folder of copies, see writing.py, that says what was copied."""


@dataclass
class LeftOut:
    """What a data set holds and does not use.

    Attributes:
        root: Folder to which names of files are relative.
        reasons: Names of what is left out, by (noun, reason): ("photo", "in no split").
        files: Files that are left out as a whole.
    """

    root: Path
    reasons: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    files: set[Path] = field(default_factory=set)

    def add(self, noun: str, reason: str, name: str | Path | None, count: int = 1) -> None:
        """Record what is left out and is not a file, such as `count` objects of a file."""
        if isinstance(name, Path) and name.is_relative_to(self.root):
            name = name.relative_to(self.root)
        self.reasons.setdefault((noun, reason), []).extend([str(name)] * count)

    def add_files(self, noun: str, reason: str, paths: Iterable[Path]) -> None:
        """Record files that are left out."""
        for path in paths:
            self.files.add(path)
            self.add(noun, reason, path)

    def rename(self, path: Path, reason: str) -> None:
        """Give a reason for a file that was left out as another file."""
        self.reasons[("other file", "")].remove(str(path.relative_to(self.root)))
        self.add("file", reason, path)

    def __str__(self) -> str:
        lines = []
        for (noun, reason), names in self.reasons.items():
            if names:
                example = names[0] if len(names) == 1 else f"such as {names[0]}"
                of_reason = f" {reason}" if reason else ""
                lines.append(f"{counted(len(names), noun)}{of_reason} ({example})")
        return ", ".join(lines)


def _find_results(paths: Iterable[Path], roots: Sequence[Path]) -> set[Path]:
    """Return the folders of results below the data that they were made from: of trainings, of
    predictions, and of copies; also those of Ultralytics.
    """
    journals = {path.parents[1] for path in paths if path.parent.name == "journal"}
    results = set()
    for path in paths:
        folder = path.parent
        is_of_copies = path.name == STATE and folder.name.endswith(("-coco", "-maps"))
        is_of_predictions = path.name == SETTINGS and folder in journals
        is_of_task = folder.parent.parent.name == "runs" and folder.parent.name in _TASKS
        if path.name in _RESULT_FILES or is_of_copies or is_of_predictions or is_of_task:
            results.add(folder)
        elif "work_dirs" in path.parts[:-1]:
            results |= {folder for folder in path.parents if folder.name == "work_dirs"}
    below = {folder for folder in results if not {*roots}.isdisjoint(folder.parents)}
    return {folder for folder in below if below.isdisjoint(folder.parents)}


class Inventory:
    """The files below folders, without hidden files, those of systems, and results of this package.

    Attributes:
        data: The file or folder that the user gave. Other files beside a file do not describe it.
        root: The first folder.
        roots: All folders.
        files: All files, sorted.
        photos: The files with a suffix of photos.
        results: Folders of results, whose files are not listed.
    """

    def __init__(self, data: Path, *roots: Path) -> None:
        self.data = data
        self.root = roots[0]
        self.roots = roots
        self._real_paths: dict[Path, str] = {}
        missing = set()  # links to files that do not exist
        errors: list[OSError] = []  # of folders that cannot be read
        for root in roots:
            for path, real_path in iter_real_files(root, errors.append):
                parts = path.parts[len(root.parts) :]
                is_hidden = any(part.startswith(_HIDDEN) for part in parts)
                if is_hidden:
                    continue
                if os.path.isfile(real_path):
                    self._real_paths[path] = real_path
                elif not os.path.exists(real_path):  # else a pipe, whose reader would wait for ever
                    self._real_paths[path] = real_path
                    missing.add(path)
        if errors:
            raise errors[0]
        self.results = _find_results(self._real_paths, roots)
        if self.results:
            paths = self._real_paths.items()
            self._real_paths = {
                path: real_path
                for path, real_path in paths
                if not any(folder in self.results for folder in path.parents)
            }
        self.files = sorted(self._real_paths, key=attrgetter("parts"))  # the order of paths, faster
        self._by_suffix: dict[str, list[Path]] = defaultdict(list)
        for path in self.files:
            self._by_suffix[path.suffix.lower()].append(path)
        self.photos = self.with_suffix(*PHOTO_SUFFIXES)
        for path in [*self.photos, *self.with_suffix(*LABEL_SUFFIXES)]:
            if not is_unicode(str(path)):
                raise ValueError(f"the name of {str(path)!a} is not UTF-8: rename the file")
            if path in missing:
                problem = f"{path} is a link to {self._real_paths[path]}, which does not exist"
                raise FileNotFoundError(f"{problem}: restore that file, or remove the link")

    @classmethod
    def of(cls, data: Path) -> "Inventory":
        """Find the files of a folder, or those around a file that describes a data set."""
        if data.is_dir():
            return cls(data, data)
        # Images lie beside the folder annotations/.
        is_annotations = data.suffix.lower() == ".json" and "ann" in data.parent.name
        return cls(data, data.parent.parent if is_annotations else data.parent)

    def covers(self, path: Path) -> bool:
        """Return whether a path lies below one of the folders."""
        return any(path.is_relative_to(root) for root in self.roots)

    def relative(self, path: Path) -> PurePath:
        """Return a path below its root, after that root if it is not the first."""
        root = next(root for root in self.roots if path.is_relative_to(root))
        relative = path.relative_to(root)
        return relative if root == self.root else PurePath(str(root).strip("/"), relative)

    def with_suffix(self, *suffixes: str) -> list[Path]:
        """List the files that have one of the suffixes, in small or capital letters."""
        paths = chain(*(self._by_suffix.get(suffix, ()) for suffix in suffixes))
        return sorted(paths, key=attrgetter("parts"))

    def describing(self, *suffixes: str) -> list[Path]:
        """List the files with one of the suffixes that may describe the data set: the given file,
        or all below the given folder.
        """
        if self.data.is_dir():
            # A file and links to it count once, by the path nearest to the root.
            paths = sorted(self.with_suffix(*suffixes), key=lambda path: -len(path.parts))
            return sorted({self._real_paths[path]: path for path in paths}.values())
        return [self.data] if self.data.suffix.lower() in suffixes else []

    @cached_property
    def photo_index(self) -> PhotoIndex:
        """The photos by the ends of their paths."""
        return PhotoIndex((photo, self.relative(photo)) for photo in self.photos)

    def real_path(self, path: Path) -> str:
        """Return the path of a file without links."""
        return self._real_paths.get(path) or os.path.realpath(path)

    def photos_in(self, folder: Path) -> list[Path]:
        """List the photos below a folder, also if links lead to it, by their paths below it."""
        photos = [path for path in self.photos if folder in path.parents]
        if photos:
            return photos
        real_folder = os.path.realpath(folder)
        real_paths = [os.path.relpath(self._real_paths[path], real_folder) for path in self.photos]
        return sorted(folder / path for path in real_paths if not path.startswith(".."))

    def without(self, used: Iterable[Path]) -> list[Path]:
        """List the files that are not used, by whatever links."""
        paths = set(used)
        unused = [path for path in self.files if path not in paths]
        if not unused:
            return []
        real_paths = set(map(self.real_path, paths))
        return [path for path in unused if self._real_paths[path] not in real_paths]

    def other_photos(self, used: Iterable[Path]) -> list[Path]:
        """List the photos that are not used, by whatever links."""
        return [path for path in self.without(used) if path.suffix.lower() in PHOTO_SUFFIXES]
