"""Listing of images and videos: files, URLs, folders, globs, lists of paths and COCO annotation files."""

import hashlib
import json
import os
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..utils.images import URL_PREFIXES

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
        name: Unique path of its results, with its suffix: relative to the folder that was given, or COCO's `file_name`.
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
    """Items in the order of their sources, notes on files that were left out, and ids of classes in a COCO json."""

    items: list[Item] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    categories: dict[str, int] | None = None


def find_items(sources: Sequence[str | Path], root: str | Path | None = None, out: Path | None = None) -> Listing:
    """List the images and videos of files, URLs, folders, globs and lists.

    Folders are searched recursively, except for hidden files and `out`. A list is a .txt with a path or URL per line,
    or a COCO .json. Files in a list are not opened, and may be missing.

    Args:
        root: Folder of relative paths in a list. Default: the current folder for a .txt; for a .json, the first of its
            folder and that folder's parent that has the images, or has them in images/ or in a folder named as the
            json.
        out: Folder of results.

    Raises:
        FileNotFoundError: If a source does not exist or has no images or videos.
        ValueError: If a list is invalid.
    """
    listing, found = Listing(), []
    texts = [str(source) for source in sources]
    files = [text for text in texts if _suffix(text) not in (".txt", ".json") and os.path.isfile(text)]
    common = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in files]) if files else ""
    if root is not None and not any(_suffix(text) in (".txt", ".json") for text in texts):
        raise ValueError(f"root {root}: only a list has a root, a .txt or a COCO .json")
    for text in texts:
        if text.startswith(URL_PREFIXES):
            found.append(Item(text, _url_name(text)))
        elif text in files:
            found.append(Item(os.path.abspath(text), os.path.relpath(os.path.abspath(text), common)))
        elif not os.path.isfile(text):
            found += _search(text, out, listing.notes)
        elif _suffix(text) == ".txt":
            found += _read_text_list(Path(text), str(root or "."))
        else:
            found += _read_coco(Path(text), root, listing)
    listing.items = list(_with_unique_names({item.path: item for item in found}.values(), ()))
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
        if item.id is not None and (before != item.id or owners.setdefault(item.id, item.path) != item.path):
            problem = f"{item.path} has the id {item.id} in its json, and another image or id in the results"
            raise ValueError(f"{problem}: give another --out")
    free = (number for number in range(1, len(owners) + len(items) + 1) if number not in owners)
    named = _with_unique_names((item for item in items if item.path not in known), [i.name for i in known.values()])
    new = {item.path: item if item.id is not None else item._replace(id=next(free)) for item in named}
    return [known.get(item.path) or new[item.path] for item in items]


def _with_unique_names(items: Iterable[Item], taken: Iterable[str]) -> Iterator[Item]:
    """Yield items with names that stay in a folder, are not too long, and unique like the names of their drawings."""
    used = set(map(drawing_name, taken))
    for item in items:
        folder, file = os.path.split(posixpath.normpath("/" + item.name.replace(os.sep, "/")).lstrip("/"))
        stem, suffix = os.path.splitext(file)
        if len(os.fsencode(file)) > _MAX_NAME:
            stem = f"{stem[:40]}-{hashlib.sha256(file.encode(errors='backslashreplace')).hexdigest()[:12]}"
        name, count = os.path.join(folder, stem + suffix), 1
        while drawing_name(name) in used:
            count += 1
            name = os.path.join(folder, f"{stem}-{count}{suffix}")
        used.add(drawing_name(name))
        yield item._replace(name=name)


def drawing_name(name: str) -> str:
    """Return the file name of an item's drawing: .mp4 of a video, else .jpg. Another suffix stays before it."""
    suffix = ".mp4" if _suffix(name) in VIDEO_SUFFIXES else ".jpg"
    return name if name.endswith(suffix) else name + suffix


def _suffix(path: str) -> str:
    return os.path.splitext(urlsplit(path).path if path.startswith(URL_PREFIXES) else path)[1].lower()


def _search(source: str, out: Path | None, notes: list[str]) -> list[Item]:
    """Search a folder or a glob. Names are relative to the folder, or to the part of the glob without wildcards."""
    parts = Path(source).parts
    first = next((number for number, part in enumerate(parts) if any(c in part for c in "*?[")), len(parts))
    is_folder = os.path.isdir(source)
    root = Path(source) if is_folder else Path(*parts[:first])
    pattern = "/".join(parts[first:])
    paths = sorted(_iter_files(root)) if is_folder else sorted(root.glob(pattern)) if pattern else []
    if not is_folder:
        hidden = {part for part in parts if part.startswith(".")}
        paths = [path for path in paths if path.is_file() and not _hidden_parts(path.relative_to(root)) - hidden]
    results = None if out is None else out.resolve()
    kept = [path for path in paths if results is None or not path.resolve().is_relative_to(results)]
    found = [path for path in kept if _suffix(path.name) in IMAGE_SUFFIXES + VIDEO_SUFFIXES]
    suffixes = Counter(_suffix(path.name) or "without a suffix" for path in kept)
    others = suffixes - Counter(_suffix(path.name) for path in found)
    if others:
        counts = ", ".join(f"{count} {suffix}" for suffix, count in others.most_common(9))
        notes.append(f"left out {others.total()} neither image nor video: {counts}")
    if not found:
        reasons = f" ({'; '.join(notes)})" if notes else ""
        raise FileNotFoundError(f"no images or videos at {source}{reasons}: give a file, folder, glob, URL or list")
    return [Item(os.path.abspath(path), path.relative_to(root).as_posix()) for path in found]


def _hidden_parts(path: Path) -> set[str]:
    return {part for part in path.parts if part.startswith(".")}


def _iter_files(folder: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """Iterate over the files below a folder that are not hidden. Links are followed, except to a folder `above`."""
    target = os.path.realpath(folder)
    if target in above:
        return
    for entry in os.scandir(folder):
        if entry.name.startswith("."):
            continue
        if os.path.isdir(entry.path):
            yield from _iter_files(folder / entry.name, (*above, target))
        elif entry.is_symlink() or entry.is_file():  # a broken link is a failure
            yield folder / entry.name


def _read_text_list(path: Path, root: str) -> list[Item]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a list of paths: {error}") from None
    paths = [_absolute(line, root) for line in lines if line]
    if not paths:
        raise ValueError(f"{path} is empty: write a path or URL on each line")
    folders = [os.path.dirname(path) for path in paths if not path.startswith(URL_PREFIXES)]
    common = os.path.commonpath(folders) if folders else ""
    names = [_url_name(path) if path.startswith(URL_PREFIXES) else os.path.relpath(path, common) for path in paths]
    return list(map(Item, paths, names))


def _read_coco(path: Path, root: str | Path | None, listing: Listing) -> list[Item]:
    """Read the images of a COCO json, and add its categories to the listing."""
    try:
        content = json.loads(path.read_bytes())
        names = [os.fspath(image["file_name"]) for image in content["images"]]
        ids = [image["id"] for image in content["images"]]
        categories = {category["name"]: category["id"] for category in content.get("categories", [])}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a COCO json of images with file_name and id: {error!r}") from None
    if not names:
        raise ValueError(f"{path} lists no images")
    for kind, values in (("file_name", names), ("id", ids)):
        value, count = Counter(values).most_common(1)[0]
        if count > 1:
            raise ValueError(f"{path} has {count} images with the {kind} {value}: keep one of them")
    if listing.categories is not None and listing.categories != categories:
        raise ValueError(f"{path} has other categories than the json before: predict them into another --out")
    listing.categories = categories
    folder = str(root) if root is not None else _find_folder(path, names)
    return [Item(_absolute(name, folder), _url_name(name), id_) for name, id_ in zip(names, ids, strict=True)]


def _find_folder(path: Path, names: list[Any]) -> str:
    """Find the folder of a json's images, beside the json or beside its folder."""
    stem, first = path.stem.removeprefix("instances_"), str(names[0])
    if first.startswith(URL_PREFIXES):
        return str(path.parent)
    places = [base / each for base in (path.parent, path.parent.parent) for each in ("", "images", stem)]
    places += [base / "images" / stem for base in (path.parent, path.parent.parent)]
    found = next((place for place in places if any((place / name).is_file() for name in names[:100])), None)
    if found is None:
        raise FileNotFoundError(f"{first} of {path} is not found beside it: give the folder of its images by --root")
    return str(found)


def _absolute(path: str, root: str) -> str:
    return path if path.startswith(URL_PREFIXES) else os.path.abspath(os.path.join(root, path))


def _url_name(url: str) -> str:
    """Return host/path of a URL, with a hash if it has a query. Other paths stay."""
    if not url.startswith(URL_PREFIXES):
        return url
    parts = urlsplit(url)
    stem, suffix = os.path.splitext(f"{parts.netloc}{parts.path}")
    return f"{stem}-{hashlib.sha256(url.encode()).hexdigest()[:12]}{suffix}" if parts.query else stem + suffix
