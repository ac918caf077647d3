"""Listing of images and videos: files, URLs, folders, globs, lists of paths and COCO annotation
files.
"""

import glob
import hashlib
import json
import os
import posixpath
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from ..utils.images import URL_PREFIXES, find_image_folder

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm"),
    *(".avif", ".heic", ".heif", ".jp2"),
)
VIDEO_SUFFIXES = (".mp4", ".avi", ".mov", ".mkv", ".webm")
_MAX_NAME = 200  # bytes, since results are named after it


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
    """Items in the order of their sources, notes on files that were left out, and ids of classes in
    a COCO json.
    """

    items: list[Item] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    categories: dict[str, int] | None = None


def find_items(
    sources: Sequence[str | Path], root: str | Path | None = None, out: Path | None = None
) -> Listing:
    """List the images and videos of files, URLs, folders, globs and lists.

    Folders are searched recursively, except for hidden files and `out`. A list is a .txt with a
    path or URL per line, or a COCO .json. Files in a list are not opened, and may be missing.

    Args:
        root: Folder of relative paths in a list. Default: the current folder for a .txt; for a
            .json, the first of its folder and that folder's parent that has the images, or has them
            in images/ or in a folder named as the json.
        out: Folder of results.

    Raises:
        FileNotFoundError: If a source does not exist or has no images or videos.
        ValueError: If a list is invalid.
    """
    listing, files = Listing(), [str(source) for source in sources]
    lists = [path for path in files if path.endswith((".txt", ".json")) and os.path.isfile(path)]
    if root is not None and not lists:
        raise ValueError(f"root {root}: only a list has a root, a .txt or a COCO .json")
    singles = [
        path for path in files if path not in lists and (_is_url(path) or os.path.isfile(path))
    ]
    found = _name_paths(singles, "")
    for source in files:
        if source in lists:
            read = _read_text_list if source.endswith(".txt") else _read_coco
            found += read(Path(source), root, listing)
        elif source not in singles:
            found += _search(source, out, listing.notes)
    listing.items = _make_unique(list({item.path: item for item in found}.values()), ())
    if len(listing.items) < len(found):
        listing.notes.append(f"left out {len(found) - len(listing.items)} listed twice")
    return listing


def number_items(items: Sequence[Item], known: dict[str, Item]) -> list[Item]:
    """Give ids and names to the items that are not `known`, by path; known items keep theirs.

    Raises:
        ValueError: If the id of a COCO json differs from the known id, or belongs to another image.
    """
    owners = {item.id: item.path for item in known.values()}
    for item in items:
        before = known[item.path].id if item.path in known else item.id
        if item.id is not None and (
            before != item.id or owners.setdefault(item.id, item.path) != item.path
        ):
            problem = f"{item.path} has the id {item.id} in its json, and another image or id in the results"
            raise ValueError(f"{problem}: give another --out")
    free = (number for number in range(1, len(owners) + len(items) + 1) if number not in owners)
    named = _make_unique(
        [item for item in items if item.path not in known], [item.name for item in known.values()]
    )
    new = {
        item.path: item if item.id is not None else item._replace(id=next(free)) for item in named
    }
    return [known.get(item.path) or new[item.path] for item in items]


def _make_unique(items: list[Item], taken: Iterable[str]) -> list[Item]:
    """Give items names that stay in a folder, are not too long, and are unique like the names of
    their drawings.
    """
    used, unique = set(map(drawing_name, taken)), []
    for item in items:
        folder, file = os.path.split(posixpath.normpath("/" + item.name).lstrip("/"))
        stem, suffix = os.path.splitext(file)
        if len(os.fsencode(file)) > _MAX_NAME:
            stem = f"{stem[:40]}-{_digest(file)}"
        name, count = os.path.join(folder, stem + suffix), 1
        while drawing_name(name) in used:
            count += 1
            name = os.path.join(folder, f"{stem}-{count}{suffix}")
        used.add(drawing_name(name))
        unique.append(item._replace(name=name))
    return unique


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:12]


def drawing_name(name: str) -> str:
    """Return the file name of an item's drawing: .mp4 of a video, else .jpg. Another suffix stays
    before it.
    """
    suffix = ".mp4" if _suffix(name) in VIDEO_SUFFIXES else ".jpg"
    return name if name.endswith(suffix) else name + suffix


def _is_url(path: str) -> bool:
    return path.startswith(URL_PREFIXES)


def _suffix(path: str) -> str:
    return os.path.splitext(urlsplit(path).path if _is_url(path) else path)[1].lower()


def _name_paths(paths: Sequence[str], root: str) -> list[Item]:
    """Name URLs by host and path, with a digest of a query, and files by their path below the
    folder they share.
    """
    absolute = [
        path if _is_url(path) else os.path.abspath(os.path.join(root, path)) for path in paths
    ]
    folders = [os.path.dirname(path) for path in absolute if not _is_url(path)]
    common, items = os.path.commonpath(folders) if folders else "", []
    for path in absolute:
        parts = urlsplit(path)
        stem, suffix = os.path.splitext(f"{parts.netloc}{parts.path}")
        url_name = stem + f"-{_digest(path)}" * bool(parts.query) + suffix
        items.append(Item(path, url_name if _is_url(path) else os.path.relpath(path, common)))
    return items


def _search(source: str, out: Path | None, notes: list[str]) -> list[Item]:
    """Search a folder or a glob. Names are relative to the folder, or to the part of the glob
    without wildcards.
    """
    pattern = os.path.join(glob.escape(source), "**") if os.path.isdir(source) else source
    paths = [
        Path(path) for path in sorted(glob.glob(pattern, recursive=True)) if not os.path.isdir(path)
    ]
    folders = sorted({path.parent for path in paths}, key=lambda folder: -len(folder.parts))
    kept = set(
        {os.path.realpath(folder): folder for folder in folders}.values()
    )  # a link may lead to a folder above
    paths = [path for path in paths if path.parent in kept]
    if below := [
        path for path in paths if out is not None and path.resolve().is_relative_to(out.resolve())
    ]:
        notes.append(f"left out {len(below)} below the results' folder {out}")
        paths = sorted(set(paths) - set(below))
    found = [path for path in paths if _suffix(path.name) in IMAGE_SUFFIXES + VIDEO_SUFFIXES]
    others = Counter(_suffix(path.name) or "without a suffix" for path in paths)
    others -= Counter(_suffix(path.name) for path in found)
    if others:
        counts = ", ".join(f"{count} {suffix}" for suffix, count in others.most_common(9))
        notes.append(f"left out {others.total()} neither image nor video: {counts}")
    if not found:
        reasons = f" ({'; '.join(notes)})" if notes else ""
        raise FileNotFoundError(
            f"no images or videos at {source}{reasons}: give a file, folder, glob, URL or list"
        )
    fixed = takewhile(lambda part: not glob.has_magic(part), Path(source).parts)
    root = Path(source) if os.path.isdir(source) else Path(*fixed)
    return [Item(os.path.abspath(path), path.relative_to(root).as_posix()) for path in found]


def _read_text_list(path: Path, root: str | Path | None, listing: Listing) -> list[Item]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a list of paths: {error}") from None
    if not any(lines):
        raise ValueError(f"{path} is empty: write a path or URL on each line")
    return _name_paths([line for line in lines if line], str(root or ""))


def _read_coco(path: Path, root: str | Path | None, listing: Listing) -> list[Item]:
    """Read the images of a COCO json, and add its categories to the listing."""
    try:
        content = json.loads(path.read_bytes())
        names = [os.fspath(image["file_name"]) for image in content["images"]]
        ids = [image["id"] for image in content["images"]]
        categories = {
            category["name"]: category["id"] for category in content.get("categories", [])
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a COCO json of images with file_name and id: {error!r}"
        ) from None
    if not names:
        raise ValueError(f"{path} lists no images")
    for kind, values in (("file_name", names), ("id", ids)):
        value, count = Counter(values).most_common(1)[0]
        if count > 1:
            raise ValueError(f"{path} has {count} images with the {kind} {value}: keep one of them")
    if listing.categories is not None and listing.categories != categories:
        raise ValueError(
            f"{path} has other categories than the json before: predict them into another --out"
        )
    listing.categories = categories
    folder = root or find_image_folder(path, names[:100])
    if folder is None and not _is_url(names[0]):
        raise FileNotFoundError(
            f"{names[0]} of {path} is not found beside it: give the folder of images by --root"
        )
    items = [
        _name_paths([name], str(folder or path.parent))[0]._replace(id=id_)
        for name, id_ in zip(names, ids, strict=True)
    ]
    return [
        item if _is_url(item.path) else item._replace(name=name)
        for item, name in zip(items, names, strict=True)
    ]
