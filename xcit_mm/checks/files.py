"""What the headers of image files say, and the labels of segmentation maps, of all files of a data
set. A later start reads what has changed.
"""

import contextlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from ..utils.atomic import atomic_write
from ..utils.cli import progress_bar
from ..utils.images import read_orientation

_THREADS = 16  # most of the time they wait for the disk
_BAR = 2_000  # files that take seconds
_TAIL = 1024  # bytes in which a whole file has its end
_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}


class Facts(NamedTuple):
    """What is known of an image file.

    Attributes:
        width: As stored, before EXIF turns the image.
        orientation: EXIF's, 1 to 8. From 5 on width and height are exchanged.
        bits: Bits of a channel.
        problem: Why the file cannot be read, or ''.
        labels: Each label of a segmentation map with its number of pixels.
    """

    width: int = 0
    height: int = 0
    orientation: int = 1
    channels: int = 0
    bits: int = 8
    problem: str = ""
    labels: Sequence[tuple[int, int]] = ()

    def shape(self, is_turned: bool) -> tuple[int, int]:
        """Return height and width, as stored or as EXIF turns the image."""
        is_exchanged = is_turned and self.orientation >= 5
        return (self.width, self.height) if is_exchanged else (self.height, self.width)


def read_facts(paths: Sequence[str], are_maps: bool = False) -> dict[str, Facts]:
    """Read the headers of image files, and the labels if they are maps, with a progress bar.

    Facts of former calls are taken from the user's cache if size and time of a file are the same.
    """
    cache = _cache_path(paths[0], are_maps) if paths else Path()
    known = _read_cache(cache)
    states = {path: _state(path) for path in paths}
    facts = {}
    for path, state in states.items():
        if path in known and known[path][:2] == state:
            facts[path] = Facts(*known[path][2:])
    changed = [path for path in paths if path not in facts]
    if not changed:
        return facts

    read = partial(_read_file, is_map=are_maps)
    is_long = len(changed) >= _BAR
    with (
        ThreadPoolExecutor(_THREADS) as pool,
        progress_bar(len(changed), "file", disable=not is_long, leave=False) as bar,
    ):
        for path, fact in zip(changed, pool.map(read, changed), strict=True):
            facts[path] = fact
            known[path] = [*states[path], *fact]
            bar.update()
    # Without a place to write the next start reads all files again.
    with contextlib.suppress(OSError), atomic_write(cache) as file:
        file.write(json.dumps(known).encode())
    return facts


def _cache_path(path: str, are_maps: bool) -> Path:
    folder = f"{os.path.realpath(os.path.dirname(path))} {os.getcwd()} {are_maps}"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    name = f"{sha256(os.fsencode(folder)).hexdigest()[:16]}.json"
    return Path(cache).expanduser() / "xcit_mm" / name


def _read_cache(path: Path) -> dict[str, list]:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}


def _state(path: str) -> list[int]:
    state = os.stat(path)
    return [state.st_size, state.st_mtime_ns]


def _read_file(path: str, is_map: bool) -> Facts:
    facts = Facts()
    try:
        if not os.path.getsize(path):
            return Facts(problem="the file is empty")
        with Image.open(path) as image:
            bits = _bits(path, image)
            size = image.size
            facts = Facts(*size, read_orientation(image), len(image.getbands()), bits)
            if is_map or not _has_end(path, image.format):
                image.load()
            if is_map and facts.channels == 1:
                facts = facts._replace(labels=_count(np.asarray(image)))
    except UnidentifiedImageError:
        return Facts(problem="it is not an image")
    except Exception as error:  # every decoder has its own exceptions
        return facts._replace(problem=" ".join(str(error).split()))
    return facts


def _bits(path: str, image: Image.Image) -> int:
    if image.format == "PNG":
        with open(path, "rb") as file:
            return file.read(25)[24]
    tags: Any = getattr(image, "tag_v2", {})
    return int(np.max(tags.get(ExifTags.Base.BitsPerSample, 8)))


def _has_end(path: str, image_format: str | None) -> bool:
    """Return whether a file is surely not cut off."""
    end = _ENDS.get(image_format or "")
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _TAIL))
        return end is None or end in file.read()


def _count(labels: np.ndarray) -> list[tuple[int, int]]:
    values, pixels = np.unique(labels, return_counts=True)
    return list(zip(map(int, values), map(int, pixels), strict=True))
