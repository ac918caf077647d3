"""What the headers of all image files of a data set say, and which labels segmentation maps have.

A later start reads the files that have changed.
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
from ..utils.images import count_raster_bands, read_orientation

_THREADS = 16  # most of the time they wait for the disk
_MIN_FOR_BAR = 2_000  # files that take seconds
_TAIL_BYTES = 1024  # in which a whole file has its end marker
_END_MARKERS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}


class ImageInfo(NamedTuple):
    """Properties of an image file. The cache stores them in this order.

    Attributes:
        width: As stored, before EXIF turns the image.
        orientation: Orientation in EXIF, 1 to 8. From 5 on it exchanges width and height.
        bits: Bits of a channel.
        problem: Why the file cannot be read, or ''.
        labels: Each label of a segmentation map with its number of pixels.
        raster_bands: As `count_raster_bands`.
        colors: The colour (red, green, blue) of each label of a map with a palette.
        is_lossy: Whether the file is a JPEG.
    """

    width: int = 0
    height: int = 0
    orientation: int = 1
    channels: int = 0
    bits: int = 8
    problem: str = ""
    labels: Sequence[tuple[int, int]] = ()
    raster_bands: int = 0
    colors: Sequence[tuple[int, int, int]] = ()
    is_lossy: bool = False

    def shape(self, is_turned: bool) -> tuple[int, int]:
        """Return height and width, as stored or as EXIF turns the image."""
        is_exchanged = is_turned and self.orientation >= 5
        return (self.width, self.height) if is_exchanged else (self.height, self.width)

    @property
    def map_problem(self) -> str:
        """Why the file is not a segmentation map, with the remedy, or ''."""
        if self.problem:
            return f"cannot be read: {self.problem}"
        if self.channels > 1:
            fix = "write maps of one channel, or with a palette, whose values are class numbers"
            return f"has colours instead of labels: {fix}"
        return "is a JPEG, which changes labels: export the maps as PNG" if self.is_lossy else ""


def read_infos(paths: Sequence[str], are_maps: bool = False) -> dict[str, ImageInfo]:
    """Read the headers of image files, and the labels if they are maps, with a progress bar.

    Files whose size and time have not changed since a former call are taken from the user's cache.
    """
    if not paths:
        return {}
    cache_path = _cache_path(paths[0], are_maps)
    cache: dict[str, list] = {}
    # Without a cache that can be read and written, each start reads all files.
    with contextlib.suppress(OSError, ValueError):
        cache = json.loads(cache_path.read_bytes())
    states = {}
    infos = {}
    for path in paths:
        stat = os.stat(path)
        states[path] = [stat.st_size, stat.st_mtime_ns]
        if cache.get(path, [])[:2] == states[path]:
            infos[path] = ImageInfo(*cache[path][2:])
    changed = [path for path in paths if path not in infos]
    if not changed:
        return infos

    read = partial(_read_file, is_map=are_maps)
    is_long = len(changed) >= _MIN_FOR_BAR
    with (
        ThreadPoolExecutor(_THREADS) as pool,
        progress_bar(len(changed), "file", disable=not is_long, leave=False) as bar,
    ):
        for path, info in zip(changed, pool.map(read, changed), strict=True):
            infos[path] = info
            cache[path] = [*states[path], *info]
            bar.update()
    with contextlib.suppress(OSError), atomic_write(cache_path) as file:
        file.write(json.dumps(cache).encode())
    return infos


def _cache_path(path: str, are_maps: bool) -> Path:
    """Return the path of the user's cache for the folder of an image."""
    # Paths in a cache may be relative to the working folder.
    key = repr((os.path.realpath(os.path.dirname(path)), os.getcwd(), are_maps))
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    name = f"{sha256(os.fsencode(key)).hexdigest()[:16]}.json"
    return Path(root).expanduser() / "xcit_mm" / name


def _read_file(path: str, is_map: bool) -> ImageInfo:
    """Read a header, and pixels of a map or a file without its end. Errors become `problem`."""
    info = ImageInfo()
    header = b""
    try:
        with open(path, "rb") as file:
            header = file.read(25)
            if not header:
                return info._replace(problem="the file is empty")
            file.seek(0)
            info = ImageInfo(raster_bands=count_raster_bands(file))
            with Image.open(file) as image:
                width, height = image.size
                channels = len(image.getbands())
                tags: Any = getattr(image, "tag_v2", {})
                bits = int(np.max(tags.get(ExifTags.Base.BitsPerSample, 8)))
                if image.format == "PNG":  # Pillow does not tell its bits
                    bits = header[24]
                info = info._replace(
                    width=width,
                    height=height,
                    orientation=read_orientation(image),
                    channels=channels,
                    bits=bits,
                    is_lossy=image.format == "JPEG",
                )
                if is_map or not _has_end(path, image.format):
                    image.load()
                if is_map and channels == 1:
                    info = _add_labels(info, image)
    except UnidentifiedImageError:
        is_heif = header[4:8] == b"ftyp"
        problem = "it is HEIC or AVIF: convert it to JPEG" if is_heif else "it is not an image"
        return info._replace(problem=problem)
    except Image.DecompressionBombError:
        return info._replace(problem="it has more pixels than Pillow reads, 179 million")
    except Exception as error:  # every decoder has its own exceptions
        return info._replace(problem=" ".join(str(error).split()))
    return info


def _has_end(path: str, image_format: str | None) -> bool:
    """Return whether a JPEG or PNG has its end marker: else it is cut off. Other formats pass."""
    marker = _END_MARKERS.get(image_format or "", b"")
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _TAIL_BYTES))
        return marker in file.read()


def _add_labels(info: ImageInfo, image: Image.Image) -> ImageInfo:
    """Add a map's labels, each with its number of pixels, and their colours to its properties."""
    if image.mode == "F":
        return info._replace(problem="its labels are floats: write whole numbers of 8 bits")
    numbers, pixels = np.unique(np.asarray(image), return_counts=True)
    labels = list(zip(numbers.tolist(), pixels.tolist(), strict=True))
    palette = image.getpalette() if image.mode == "P" else None
    if palette is None:
        return info._replace(labels=labels)
    colors: Any = [palette[3 * label : 3 * label + 3] for label, _ in labels]
    return info._replace(labels=labels, colors=colors)
