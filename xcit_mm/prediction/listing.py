"""Listing of images and videos: files, URLs, folders, globs, lists of paths and COCO jsons."""

import glob
import hashlib
import os
import posixpath
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from ..datasets.coco_json import find_image_folder, read_images
from ..utils.errors import preview, reason
from ..utils.folders import SETTINGS, check_output
from ..utils.images import IMAGE_SUFFIXES, URL_PREFIXES
from ..utils.texts import read_lines
from ..utils.walk import iter_files

VIDEO_SUFFIXES = (".mp4", ".m4v", ".avi", ".mov", ".mkv", ".webm")
JOURNAL = "journal"
"""Folder of the journals in a folder of predictions."""
MAX_NAME = 200  # bytes, since results are named after it


class Item(NamedTuple):
    """An image or video to predict.

    Attributes:
        path: Absolute path, or URL.
        name: Unique path of its results, with its suffix: relative to the folder that was given, or
            COCO's `file_name`.
        id: `id` in a COCO json. Default: given by the run.
    """

    path: str
    name: str
    id: int | str | None = None

    @property
    def is_video(self) -> bool:
        return _suffix(self.path) in VIDEO_SUFFIXES


@dataclass
class Listing:
    """What is to be predicted.

    Attributes:
        notes: Lines on files that were left out.
        failures: Path and reason of each folder that cannot be read.
        categories: Ids of the categories in a COCO json, by name.
    """

    items: list[Item] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    categories: dict[str, int] | None = None


def find_items(
    sources: Sequence[str | Path], root: str | Path | None = None, out: Path | None = None
) -> Listing:
    """List the images and videos of files, URLs, folders, globs and lists.

    Folders are searched recursively, except for hidden files and folders of results. A file counts
    once, by whatever link to its folder it is listed. A list is a .txt with a path or URL per line,
    or a COCO .json. Files in a list are not opened, and may be missing.

    Args:
        root: Folder of relative paths in a list. Default: the current folder for a .txt, that of
            `find_image_folder` for a .json.

    Raises:
        FileNotFoundError: If a source does not exist or has no images or videos.
        PermissionError: If no folder can be read, and there is nothing else.
        ValueError: If a list is invalid, or `out` is or holds a source.
    """
    listing = Listing()
    names = [str(source) for source in sources]
    if out is not None:
        check_output(out, names)
    files = []
    lists = []
    searched = []
    for name in names:
        if not _is_url(name) and not os.path.isfile(name):
            searched.append(name)
        elif not _is_url(name) and name.endswith((".txt", ".json")):
            lists.append(name)
        else:
            files.append(name)
    if root is not None and not lists:
        raise ValueError(f"root {root}: only a list has a root, a .txt or a COCO .json")
    items = _list_files(files, root="")
    for name in lists:
        if name.endswith(".json"):
            items += _read_coco(Path(name), root, listing)
        else:
            items += _list_files(_read_list(Path(name)), root or "")
    for name in searched:
        items += _search(name, out, listing)
    listing.items = make_unique(_once_each(items))
    if not listing.items:
        raise PermissionError(f"nothing can be read: {preview(listing.failures)}")
    repeated = len(items) - len(listing.items)
    if repeated:
        listing.notes.append(f"left out {repeated} listed twice")
    return listing


def make_unique(items: Sequence[Item], taken: Iterable[str] = ()) -> list[Item]:
    """Give items short and unique names of results, which do not lead out of their folder.

    Args:
        taken: Names of other items.
    """
    used = set(map(drawing_name, taken))
    renamed = []
    for item in items:
        folder, file = os.path.split(posixpath.normpath("/" + item.name).lstrip("/"))
        stem, suffix = os.path.splitext(file)
        if len(os.fsencode(file)) > MAX_NAME:
            stem = f"{stem[:40]}-{_digest(file)}"
        name = os.path.join(folder, stem + suffix)
        count = 1
        while drawing_name(name) in used:
            count += 1
            name = os.path.join(folder, f"{stem}-{count}{suffix}")
        used.add(drawing_name(name))
        renamed.append(item._replace(name=name))
    return renamed


def drawing_name(name: str) -> str:
    """Return the file name of an item's drawing: a.jpg of a.jpg, b.png.jpg of b.png."""
    suffix = ".mp4" if _suffix(name) in VIDEO_SUFFIXES else ".jpg"
    return name if name.endswith(suffix) else name + suffix


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:12]


def _is_url(path: str) -> bool:
    return path.startswith(URL_PREFIXES)


def _suffix(path: str) -> str:
    return os.path.splitext(urlsplit(path).path if _is_url(path) else path)[1].lower()


def _locate(path: str, root: str | Path) -> str:
    return path if _is_url(path) else os.path.abspath(os.path.join(root, path))


def _name(path: str, folder: str | Path) -> str:
    """Return a file's path relative to a folder, or a URL's host and path, with a digest of the URL
    if it has a query.
    """
    if not _is_url(path):
        return os.path.relpath(path, folder)
    parts = urlsplit(path)
    stem, suffix = os.path.splitext(f"{parts.netloc}{parts.path}")
    return f"{stem}-{_digest(path)}{suffix}" if parts.query else stem + suffix


def _list_files(paths: Sequence[str], root: str | Path) -> list[Item]:
    """List files and URLs. Names of files are relative to the folder that all share."""
    located = [_locate(path, root) for path in paths]
    folders = [os.path.dirname(path) for path in located if not _is_url(path)]
    shared_folder = os.path.commonpath(folders) if folders else ""
    return [Item(path, _name(path, shared_folder)) for path in located]


def _once_each(items: Sequence[Item]) -> list[Item]:
    """Return the items without those of the same file in the same real folder. A link to a file
    stays a file of its own.
    """
    real_folder = cache(os.path.realpath)
    first: dict[str, Item] = {}
    for item in items:
        folder, name = os.path.split(item.path)
        is_url = _is_url(item.path)
        first.setdefault(item.path if is_url else os.path.join(real_folder(folder), name), item)
    return list(first.values())


def _search(source: str, out: Path | None, listing: Listing) -> list[Item]:
    """Search a folder or a glob, and add notes on the files that are left out, and failures.

    Names are relative to the folder, or to the part of the glob before its first wildcard.
    """
    root = Path(source)
    if root.is_dir():
        errors: list[OSError] = []
        paths = set(iter_files(root, errors.append))
        listing.failures += [f"{error.filename}: {reason(error)}" for error in errors]
    else:  # pathlib does not follow links for `**`, which glob.glob does without end
        root = Path(*takewhile(lambda part: not glob.has_magic(part), root.parts[:-1]))
        pattern = os.path.relpath(source, root)
        paths = set(root.glob(f"{pattern}/*" if pattern.endswith("**") else pattern))
    results = _find_results({path.parent for path in paths}, root, out)
    items = []
    left_out = Counter[str]()
    for path in sorted(path for path in paths if not path.is_dir()):
        name = path.relative_to(root)
        problem: str | None = "in results of another run"
        if results.isdisjoint(path.parents):
            problem = _why_left_out(path, name, out)
        if problem:
            left_out[problem] += 1
        else:
            items.append(Item(os.path.abspath(path), name.as_posix()))
    if left_out:
        counts = ", ".join(f"{count} {problem}" for problem, count in left_out.most_common(9))
        listing.notes.append(f"left out {left_out.total()} files: {counts}")
    if not items and not listing.failures:
        reasons = f" ({'; '.join(listing.notes)})" if listing.notes else ""
        raise FileNotFoundError(
            f"no images or videos at {source}{reasons}: give a file, folder, glob, URL or list"
        )
    return items


def _why_left_out(path: Path, name: Path, out: Path | None) -> str | None:
    if any(part.startswith(".") for part in name.parts):
        return "hidden"
    if not path.is_file():
        return "no regular file"
    if out is not None and path.resolve().is_relative_to(out.resolve()):
        return f"below the results' folder {out}"
    suffix = _suffix(path.name)
    if suffix not in IMAGE_SUFFIXES + VIDEO_SUFFIXES:
        return suffix or "without a suffix"
    return None


def _find_results(folders: set[Path], root: Path, out: Path | None) -> set[Path]:
    """Return which folders, or folders between a root and them, have results of a run, other than
    `out`.
    """
    between = {parent for folder in folders for parent in folder.parents}
    searched = {folder for folder in folders | between if folder.is_relative_to(root)}
    return {
        folder
        for folder in searched
        if (folder / SETTINGS).is_file() and (folder / JOURNAL).is_dir()
        if out is None or folder.resolve() != out.resolve()
    }


def _read_list(path: Path) -> list[str]:
    """Return the lines of a list of paths, except for empty lines."""
    lines = read_lines(path)
    if not lines:
        raise ValueError(f"{path} is empty: write a path or URL on each line")
    return lines


def _read_coco(path: Path, root: str | Path | None, listing: Listing) -> list[Item]:
    """Read the images of a COCO json, and add its categories to the listing."""
    coco = read_images(path)
    names = [os.fspath(image["file_name"]) for image in coco["images"]]
    categories = {category["name"]: category["id"] for category in coco.get("categories") or []}
    if listing.categories and categories and listing.categories != categories:
        raise ValueError(
            f"{path} has other categories than the json before: predict them into another --out"
        )
    listing.categories = categories or listing.categories  # a json may only list images
    folder = root or find_image_folder(path, names)
    if folder is None and not _is_url(names[0]):
        raise FileNotFoundError(
            f"{names[0]} of {path} is not found beside it: give the folder of images by --root"
        )
    folder = folder or path.parent
    paths = [_locate(name, folder) for name in names]
    ids = [image["id"] for image in coco["images"]]
    return [Item(path, _name(path, folder), id_) for path, id_ in zip(paths, ids, strict=True)]
