"""Listing of images and videos: files, URLs, folders, globs, lists of paths and COCO annotation files."""

import hashlib
import importlib.util
import json
import os
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..geo.files import RASTER_SUFFIXES, is_raster
from ..utils.images import HEIF_NEEDS, URL_PREFIXES

HEIF_SUFFIXES = (".heic", ".heif")
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm", ".avif"),
    *(HEIF_SUFFIXES if importlib.util.find_spec("pillow_heif") else ()),
)
VIDEO_SUFFIXES = (".mp4", ".avi", ".mov", ".mkv", ".webm")
_SUPPORTED = tuple(dict.fromkeys(IMAGE_SUFFIXES + VIDEO_SUFFIXES + RASTER_SUFFIXES))


class Input(NamedTuple):
    """An image, video or raster to predict.

    Attributes:
        path: Absolute path, or URL.
        name: Path relative to the folder that all inputs share, or `file_name` in a COCO json.
        key: Unique path of its results, relative to their folder, without a suffix.
        image_id: `id` in a COCO json, else None.
        size: Height and width in pixels of a raster, which is read by windows; None for images and videos.
        bounds: Values of each band of a raster that become 0 and 255; None if the values are not scaled.
        stamp: Size in bytes, modification time in nanoseconds and checksum of a sample of a raster's file.
    """

    path: str
    name: str
    key: str
    image_id: int | float | str | None = None
    size: list[int] | None = None
    bounds: list[list[float]] | None = None
    stamp: list[int] | None = None

    @property
    def is_video(self) -> bool:
        return _suffix(self.path) in VIDEO_SUFFIXES

    @property
    def is_image(self) -> bool:
        return self.size is None and not self.is_video


class InputListing(NamedTuple):
    """Inputs, sorted by path or in the order of their list, and notes on files that were left out."""

    inputs: list[Input]
    notes: list[str]


def find_inputs(source: str, out: Path | None = None, root: str | None = None) -> InputListing:
    """List the images and videos of a file, URL, folder, glob or list.

    Folders are searched recursively. A list is a .txt with a path or URL per line, or a COCO .json. Files in a list are
    not opened, and may be missing.

    Args:
        source: Path, URL, glob pattern or list.
        out: Folder of the results, which is excluded from the search.
        root: Base folder of relative paths in a list. The default is the current folder for a .txt, and the folder of
            the file for a .json.

    Raises:
        FileNotFoundError: If no images or videos are found.
        ModuleNotFoundError: If a HEIC is given and pillow-heif is not installed.
        ValueError: If the file type is not supported, or a list is invalid.
    """
    path, suffix = Path(source), _suffix(source)
    if root is not None and suffix not in (".txt", ".json"):
        raise ValueError(f"root {root}: only a list has a root, a .txt or a COCO .json, not {source}")
    if source.startswith(URL_PREFIXES):
        return InputListing(_inputs([source], [_url_name(source)]), [])
    if not path.is_file():
        return _search(source, out)
    if suffix == ".txt":
        return _read_text_list(path, root or ".")
    if suffix == ".json":
        return _read_coco_list(path, root or str(path.parent))
    if suffix in HEIF_SUFFIXES and suffix not in _SUPPORTED:
        raise ModuleNotFoundError(f"{source}: {HEIF_NEEDS}")
    if suffix not in _SUPPORTED and not is_raster(source):  # is_raster raises for slides
        raise ValueError(f"{source} is not an image, a video or a list: use {', '.join(_SUPPORTED)}, .txt or .json")
    return InputListing(_inputs([os.path.abspath(path)], [path.name]), [])


def find_files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """List the files below a folder, sorted; see `_iter_files`. `suffixes` are in lower case."""
    return sorted(path for path in _iter_files(folder) if path.suffix.lower() in suffixes)


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
        elif entry.is_symlink() or entry.is_file():  # a broken link is reported as a failure
            yield folder / entry.name


def read_category_ids(path: Path, classes: Sequence[str]) -> list[int]:
    """Read the ids of classes from the categories of a COCO json, by name."""
    try:
        ids = {category["name"]: category["id"] for category in _read_coco(path, "categories")}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: every category of a COCO json needs a name and an id: {error!r}") from None
    missing = [name for name in classes if name not in ids]
    if missing:
        categories = ", ".join(map(str, ids))[:200]
        raise ValueError(f"{path} has no category {', '.join(missing)}, a class of the config: it has {categories}")
    return [ids[name] for name in classes]


def _search(source: str, out: Path | None) -> InputListing:
    """Search a folder or a glob. Names are relative to the folder, or to the part of the glob without wildcards."""
    root = Path(source)
    paths = set(_iter_files(root)) if root.is_dir() else set()
    if not root.is_dir():
        root, pattern = _split_glob(source)
        found = root.glob(pattern) if pattern else ()
        paths = {path for path in found if path.is_file() and (_is_hidden(pattern) or not _is_hidden(path, root))}
    results_folder = None if out is None else out.resolve()
    results = {path for path in paths if results_folder and path.resolve().is_relative_to(results_folder)}
    supported = {path for path in paths - results if path.suffix.lower() in _SUPPORTED}
    suffixes = Counter(path.suffix.lower() or "without a suffix" for path in paths - results - supported)
    notes = []
    if suffixes:
        counts = ", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common())
        notes.append(f"left out {suffixes.total()} neither image nor video: {counts[:200]}")
        if not suffixes.keys().isdisjoint(HEIF_SUFFIXES):
            notes[-1] += f" ({HEIF_NEEDS})"
    if results:
        notes.append(f"left out {len(results)} below the results' folder {out}")
    if not supported:
        reasons = f" ({'; '.join(notes)})" if notes else ""
        raise FileNotFoundError(
            f"no images or videos at {source}{reasons}: give a file, a folder, a quoted glob, a URL or a list"
        )
    files = sorted(supported)
    names = [path.relative_to(root).as_posix() for path in files]
    return InputListing(_inputs([os.path.abspath(path) for path in files], names), notes)


def _is_hidden(path: str | Path, root: Path = Path()) -> bool:
    return any(part.startswith(".") for part in Path(os.path.relpath(path, root)).parts)


def _split_glob(source: str) -> tuple[Path, str]:
    """Split a glob into a folder without wildcards and a pattern, which is empty if there is no wildcard."""
    parts = Path(source).parts
    first = next((number for number, part in enumerate(parts) if any(c in part for c in "*?[")), len(parts))
    return Path(*parts[:first]), "/".join(parts[first:])


def _read_text_list(path: Path, root: str) -> InputListing:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a list of paths: {error}") from None
    listed = [_absolute(line, root) for line in lines if line]
    paths = list(dict.fromkeys(listed))
    if not paths:
        raise ValueError(f"{path} is empty: write a path or URL on each line")
    folders = [os.path.dirname(path) for path in paths if not path.startswith(URL_PREFIXES)]
    common = os.path.commonpath(folders) if folders else ""
    names = [_url_name(path) if path.startswith(URL_PREFIXES) else os.path.relpath(path, common) for path in paths]
    duplicates = len(listed) - len(paths)
    return InputListing(_inputs(paths, names), [f"left out {duplicates} listed twice"] * bool(duplicates))


def _read_coco_list(path: Path, root: str) -> InputListing:
    images = _read_coco(path, "images")
    try:
        names, ids = [image["file_name"] for image in images], [image["id"] for image in images]
        paths = [_absolute(name, root) for name in names]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: every image of a COCO json needs a file_name and an id: {error!r}") from None
    if not names:
        raise ValueError(f"{path} lists no images")
    for field, values in (("file_name", names), ("id", ids)):
        value, count = Counter(values).most_common(1)[0]
        if count > 1:
            raise ValueError(f"{path} has {count} images with the {field} {value}: keep one of them")
    inputs = _inputs(paths, [_url_name(name) if "://" in name else _normalized(name) for name in names])
    return InputListing(
        [input_._replace(name=name, image_id=id_) for input_, name, id_ in zip(inputs, names, ids, strict=True)], []
    )


def _read_coco(path: Path, field: str) -> list[Any]:
    try:
        return list(json.loads(path.read_bytes())[field])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a COCO json with {field}: {error}") from None


def _inputs(paths: Sequence[str], names: Sequence[str]) -> list[Input]:
    return list(map(Input, paths, names, _result_keys(names)))


def _result_keys(names: Sequence[str]) -> list[str]:
    """Return a unique key for each input, given by its path relative to a common folder: the name without the suffix.

    Where two keys would be equal, one is too long, or a result file would have the name of a folder, the key keeps
    the suffix. If that does not suffice, the key gets a hash.
    """
    folders = set(map(os.path.dirname, names))
    while parents := set(map(os.path.dirname, folders)) - folders:
        folders |= parents
    files = (".jpg", ".png", *VIDEO_SUFFIXES)
    reserved = {os.path.splitext(folder)[0] for folder in folders if folder.endswith(files)}
    stems = [os.path.splitext(name)[0] for name in names]
    keys = list(stems)
    for alternative in (
        lambda number: names[number],
        lambda number: _hashed(stems[number], f"{number} {names[number]}"),
    ):
        changed = True
        while changed:  # a new key may be equal to another one
            count = Counter(keys)
            changed = False
            for number, key in enumerate(keys):
                length = len(os.path.basename(f"{key}.jpg").encode(errors="replace"))
                is_valid = count[key] == 1 and key not in reserved and length <= 255
                if not is_valid and key != alternative(number):
                    keys[number], changed = alternative(number), True
    return keys


def _hashed(stem: str, text: str) -> str:
    folder, name = os.path.split(stem)
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return os.path.join(folder, f"{name[:50]}-{digest[:12]}")


def _suffix(path: str) -> str:
    return os.path.splitext(urlsplit(path).path if path.startswith(URL_PREFIXES) else path)[1].lower()


def _absolute(path: str, root: str) -> str:
    return path if path.startswith(URL_PREFIXES) else os.path.abspath(os.path.join(root, path))


def _normalized(path: str) -> str:
    """Return a relative path without "..", so that results stay in their folder: "/../a" becomes "a"."""
    return posixpath.normpath("/" + path.lstrip("/")).lstrip("/")


def _url_name(url: str) -> str:
    """Return host/path of a URL, shortened and with a hash if it has a query or is too long for a file name."""
    parts = urlsplit(url)
    name = f"{parts.netloc}/{_normalized(parts.path)}".lstrip("/")
    if not parts.query and len(name) < 200:
        return name
    stem, suffix = os.path.splitext(name)
    return f"{stem[:150]}-{hashlib.sha256(url.encode()).hexdigest()[:12]}{suffix[:10]}"
