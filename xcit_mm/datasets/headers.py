"""What the headers of image files say, and which labels segmentation maps have."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import ExifTags, Image

from ..utils.cli import progress_bar
from ..utils.errors import reason
from ..utils.images import count_raster_bands, read_orientation

_THREADS = 16  # most of the time they wait for the disk
_MIN_FOR_BAR = 5_000  # files that take seconds
_Fact = TypeVar("_Fact")


class Header(NamedTuple):
    """The header of an image file.

    Attributes:
        width: In pixels as mmcv loads the image, after EXIF's orientation. So is the height.
        channels: Number of channels, 1 with a palette.
        bits: Bits of a channel.
        raster_bands: As `count_raster_bands`.
        problem: Why the file cannot be read, or ''.
        is_label_map: Whether it is a PNG of 8 bits with one channel, or with a palette.
    """

    width: int = 0
    height: int = 0
    channels: int = 0
    bits: int = 8
    raster_bands: int = 0
    problem: str = ""
    is_label_map: bool = False


def read_headers(paths: Sequence[str | Path]) -> list[Header]:
    """Read the headers of image files, with a progress bar if they are many."""
    return _read_all(_read_header, paths)


def read_labels(paths: Sequence[str | Path]) -> list[dict[int, int]]:
    """Read segmentation maps, with a progress bar if they are many. Return the number of pixels of
    each label of each map.

    Raises:
        ValueError: If a map cannot be decoded.
    """
    return _read_all(_count_labels, paths)


def _read_all(read: Callable[[str | Path], _Fact], paths: Sequence[str | Path]) -> list[_Fact]:
    facts = []
    is_short = len(paths) < _MIN_FOR_BAR
    with (
        ThreadPoolExecutor(_THREADS) as pool,
        progress_bar(len(paths), "file", disable=is_short, leave=False) as bar,
    ):
        for fact in pool.map(read, paths):
            facts.append(fact)
            bar.update()
    return facts


def _read_header(path: str | Path) -> Header:
    try:
        with open(path, "rb") as file:
            raster_bands = count_raster_bands(file)
            file.seek(0)
            start = file.read(26)
            file.seek(0)
            with Image.open(file) as image:
                width, height = image.size
                if read_orientation(image) >= 5:
                    width, height = height, width
                tags: Any = getattr(image, "tag_v2", {})
                bits = int(np.max(tags.get(ExifTags.Base.BitsPerSample, 8)))
                is_label_map = False
                if image.format == "PNG":  # Pillow does not tell its bits
                    bits = start[24]
                    color_type = start[25]
                    is_label_map = color_type == 3 or (color_type == 0 and bits == 8)
                channels = len(image.getbands())
                return Header(width, height, channels, bits, raster_bands, "", is_label_map)
    except Exception as error:  # every decoder has its own exceptions
        return Header(problem=reason(error))


def _count_labels(path: str | Path) -> dict[int, int]:
    try:
        with Image.open(path) as image:
            labels, pixels = np.unique(np.asarray(image), return_counts=True)
    except Exception as error:  # every decoder has its own exceptions
        raise ValueError(f"{path} cannot be read: {reason(error)}") from None
    return dict(zip(labels.tolist(), pixels.tolist(), strict=True))
