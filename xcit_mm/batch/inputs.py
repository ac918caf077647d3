"""What to predict: images and the frames of videos, where each is, and under which name its results are kept."""

import hashlib
import json
import os
import posixpath
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import cv2
import mmcv
import numpy as np
from mmengine.utils import scandir

from ..geo.files import RASTER_SUFFIXES, has_more_than_8_bits, is_raster

__all__ = [
    "IMAGES",
    "VIDEOS",
    "Found",
    "Input",
    "Video",
    "files_below",
    "find_inputs",
    "first_frame",
    "read_categories",
    "read_image",
]

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm")
VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm")
_KNOWN = tuple(dict.fromkeys(IMAGES + VIDEOS + RASTER_SUFFIXES))
_REMOTE = ("http://", "https://")
_OF_RESULTS = (".jpg", ".png", ".mp4")
_LONGEST = 255 - len(".jpg")  # bytes of a file's name without its suffix
# Of 16 bits OpenCV keeps the upper 8. Where 14 or fewer are in use, as cameras and scanners have, no pixel reaches it.
_DARK = 64
_TIMEOUT = 60  # seconds without a byte


class Input(NamedTuple):
    """A file to predict.

    Attributes:
        path: Where it is, absolute, or its URL.
        name: Its path below what all inputs share, or what a COCO json calls it.
        key: What its results are called, a path without a suffix; no other input's is the same.
        image_id: That of a COCO json.
        size: Height and width of a scene, which is read by windows.
        bounds: What becomes 0 and what 255 in each band of a scene; None if its bytes are taken as they are.
    """

    path: str
    name: str
    key: str
    image_id: int | float | str | None = None
    size: list[int] | None = None
    bounds: list[list[float]] | None = None

    @property
    def is_video(self) -> bool:
        return _suffix(self.path) in VIDEOS


class Found(NamedTuple):
    """Inputs, of a folder or glob by path, of a list in its order; and lines on what is left out."""

    inputs: list[Input]
    notes: list[str]


def find_inputs(given: str, out: Path | None = None, root: str | None = None) -> Found:
    """The images and videos that a file, URL, folder (searched to its depth), glob or list stands for.

    A list is a .txt of paths and URLs, one a line, or a COCO .json. What it lists is not looked for yet: it may be
    long, and its files far away.

    Args:
        given: The file, URL, folder, glob or list.
        out: Folder of the results, of which none is an input.
        root: Folder where the relative paths of a list begin; default: this folder for a .txt, that of a .json.

    Raises:
        FileNotFoundError: If there are none.
        ValueError: If a file is neither image, video nor list, or a list is broken.
    """
    path = Path(given)
    suffix = _suffix(given)
    if root is not None and suffix not in (".txt", ".json"):
        raise ValueError(f"--root {root}: only for a list, a .txt or a COCO .json, not for {given}")
    if given.startswith(_REMOTE):
        return Found(_named([given], [_url_name(given)]), [])
    if path.is_file():
        if suffix == ".txt":
            return _of_text(path, root or ".")
        if suffix == ".json":
            return _of_coco(path, root or str(path.parent))
        if suffix not in _KNOWN and not is_raster(given):  # which tells how to convert a slide
            raise ValueError(f"{given} is neither an image, a video nor a list: {', '.join(_KNOWN)}, .txt, .json")
        return Found(_named([os.path.abspath(path)], [path.name]), [])
    return _searched(given, out)


def _searched(given: str, out: Path | None) -> Found:
    """Files of a folder or glob, named relative to the folder, or to the glob's part before its first wildcard."""
    root = Path(given)
    if root.is_dir():
        found = files_below(root, _KNOWN)
    else:
        root, pattern = _split_glob(given)
        found = sorted(path for path in root.glob(pattern) if path.is_file()) if pattern else []
    below = out.resolve() if out is not None else None
    results = [path for path in found if below is not None and path.resolve().is_relative_to(below)]
    inputs = sorted(set(found) - set(results))
    others = [path for path in inputs if path.suffix.lower() not in _KNOWN]
    kept = [path for path in inputs if path.suffix.lower() in _KNOWN]
    notes = [
        f"left out {len(paths)} {reason}: {paths[0]}{', ...' * (len(paths) > 1)}"
        for paths, reason in ((others, "neither image nor video"), (results, f"below --out {out}"))
        if paths
    ]
    if not kept:
        reasons = f" ({'; '.join(notes)})" if notes else ""
        raise FileNotFoundError(
            f"no images or videos at {given}{reasons}: give a file, a folder, a quoted glob, a URL or a list"
        )
    return Found(
        _named([os.path.abspath(path) for path in kept], [p.relative_to(root).as_posix() for p in kept]), notes
    )


def _of_text(path: Path, root: str) -> Found:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no list of paths: {error}") from None
    given = [line for line in lines if line]
    paths = list(dict.fromkeys(_absolute(line, root) for line in given))
    if not paths:
        raise ValueError(f"{path} is empty: write a path or URL on each line")
    notes = [f"left out {len(given) - len(paths)} that are listed twice"] * (len(paths) < len(given))
    local = [os.path.dirname(one) for one in paths if not one.startswith(_REMOTE)]
    common = os.path.commonpath(local) if local else ""
    names = [_url_name(one) if one.startswith(_REMOTE) else os.path.relpath(one, common) for one in paths]
    return Found(_named(paths, names), notes)


def _of_coco(path: Path, root: str) -> Found:
    images = _read_coco(path, "images")
    try:
        listed = [(_absolute(one["file_name"], root), one["file_name"], one["id"]) for one in images]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: every image of a COCO json needs a file_name and an id: {error!r}") from None
    if not listed:
        raise ValueError(f"{path} lists no images")
    for kind, values in (("file_name", [one[1] for one in listed]), ("id", [one[2] for one in listed])):
        twice = [value for value, count in Counter(values).items() if count > 1]
        if twice:
            raise ValueError(f"{path} has two images with the {kind} {twice[0]}: make them one")
    paths, names, ids = zip(*listed, strict=True)
    places = [_inside(name) if "://" not in name else _url_name(name) for name in names]
    inputs = [
        one._replace(name=name, image_id=id_) for one, name, id_ in zip(_named(paths, places), names, ids, strict=True)
    ]
    return Found(inputs, [])


def read_categories(path: Path, classes: Sequence[str]) -> list[int]:
    """Ids of a COCO json's categories, for classes by name.

    Raises:
        ValueError: If it is not a COCO json, or lacks a class.
    """
    try:
        categories = {one["name"]: one["id"] for one in _read_coco(path, "categories")}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: every category of a COCO json needs a name and an id: {error!r}") from None
    missing = [name for name in classes if name not in categories]
    if missing:
        known = ", ".join(map(str, categories))
        raise ValueError(f"{path} has no category {', '.join(missing)} of the config's classes, but {known[:200]}")
    return [categories[name] for name in classes]


def _read_coco(path: Path, part: str) -> list[Any]:
    try:
        return list(json.loads(path.read_bytes())[part])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a COCO json with {part}: {error}") from None


def _absolute(path: str, root: str) -> str:
    return path if path.startswith(_REMOTE) else os.path.abspath(os.path.join(root, path))


def _suffix(path: str) -> str:
    return os.path.splitext(urlsplit(path).path if path.startswith(_REMOTE) else path)[1].lower()


def _inside(path: str) -> str:
    """A path that stays in the folder it is joined to: "/../a" is "a"."""
    return posixpath.normpath("/" + path.lstrip("/")).lstrip("/")


def _url_name(url: str) -> str:
    """host/path of a URL; what does not fit into a file's name, or would be lost, stands as a hash."""
    parts = urlsplit(url)
    name = f"{parts.netloc}/{_inside(parts.path)}"
    if not parts.query and len(name) < 200:
        return name
    stem, suffix = os.path.splitext(name)
    return f"{stem[:150]}-{hashlib.sha256(url.encode()).hexdigest()[:12]}{suffix[:10]}"


def _split_glob(given: str) -> tuple[Path, str]:
    """The folder that a glob searches and the rest of it, which is empty without a wildcard."""
    parts = Path(given).parts
    first = next((number for number, part in enumerate(parts) if any(c in part for c in "*?[")), len(parts))
    return Path(*parts[:first]), "/".join(parts[first:])


def _named(paths: Sequence[str], names: Sequence[str]) -> list[Input]:
    return [Input(*one) for one in zip(paths, names, _keys(names), strict=True)]


def _keys(names: Iterable[str]) -> list[str]:
    """The names without their suffixes; where two would be the same, or a file's name is taken or too long, longer.

    With its suffix first, and if that does not help, such as where two inputs have one name, with a hash.
    """
    names = list(names)
    folders = set(map(os.path.dirname, names))
    while above := set(map(os.path.dirname, folders)) - folders:
        folders |= above
    # No file can have a folder's name: beside a folder a.jpg the picture of a.png is another.
    taken = {os.path.splitext(folder)[0] for folder in folders if folder.endswith(_OF_RESULTS)}
    stems = [os.path.splitext(name)[0] for name in names]
    keys = list(stems)
    for longer in (lambda number: names[number], lambda number: _hashed(stems[number], f"{number} {names[number]}")):
        while True:
            count = Counter(keys)
            clashing = [number for number, key in enumerate(keys) if count[key] > 1 or key in taken or not _fits(key)]
            changed = {number: longer(number) for number in clashing if keys[number] != longer(number)}
            if not changed:
                break
            for number, key in changed.items():
                keys[number] = key
    return keys


def _fits(key: str) -> bool:
    return len(os.path.basename(key).encode(errors="replace")) <= _LONGEST


def _hashed(stem: str, of: str) -> str:
    folder, name = os.path.split(stem)
    digest = hashlib.sha256(of.encode(errors="backslashreplace")).hexdigest()
    return os.path.join(folder, f"{name[:50]}-{digest[:12]}")


def files_below(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Files below a folder, through links too, sorted, without hidden ones; `suffixes` in lower case."""
    return sorted(folder / name for name in scandir(folder, suffixes, recursive=True, case_sensitive=False))


def read_image(path: str | Path) -> np.ndarray:
    """An image (H, W, 3), BGR, 8 bit, from a file or URL; of an animation the first frame.

    Raises:
        ValueError: If it cannot be decoded, or has 16 bits a channel of which the upper ones are empty.
        OSError: If it cannot be read.
    """
    if str(path).startswith(_REMOTE):
        with urllib.request.urlopen(str(path), timeout=_TIMEOUT) as answer:
            content = answer.read()
    else:
        content = Path(path).read_bytes()
    image = mmcv.imfrombytes(content) if content else None
    if image is None:
        raise ValueError("it is empty, broken or not an image")
    if image.max() < _DARK and has_more_than_8_bits(content):
        raise ValueError(
            "it holds fewer bits than its 16, and would be nearly black: scale it, or give a TIFF to infer.py"
        )
    return image


class Video:
    """Frames of a video, as of `read_image`, to iterate over once; `rate` is their number a second.

    Frames are read until none comes: a header may count none or too many.

    Raises:
        ValueError: If it holds no frames.
        OSError: If it cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        if str(path).startswith(_REMOTE):
            raise ValueError("a video is not read from a server: download it first")
        with open(path, "rb"):  # a missing permission is its own error
            self._capture = cv2.VideoCapture(str(path))
        self.rate = self._capture.get(cv2.CAP_PROP_FPS) or 25.0

    def __iter__(self) -> Iterator[np.ndarray]:
        there, frame = self._capture.read()
        if not there:
            raise ValueError("it holds no frames")
        while there:
            yield frame
            there, frame = self._capture.read()


def first_frame(path: Path) -> np.ndarray:
    """An image, or the first frame of a video; raises as they do."""
    return next(iter(Video(path))) if path.suffix.lower() in VIDEOS else read_image(path)
