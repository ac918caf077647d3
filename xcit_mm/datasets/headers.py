"""What the headers of image files say, and which labels segmentation maps have."""

from collections.abc import Callable, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import ExifTags, Image

from ..utils.cli import progress_bar
from ..utils.errors import reason
from ..utils.images import count_raster_bands

_Fact = TypeVar("_Fact")


class Header(NamedTuple):
    """The header of an image file.

    Attributes:
        width: In pixels as mmcv loads the image, after EXIF's orientation. So is the height.
        channels: Number of channels, 1 with a palette.
        is_deep: Whether a channel has more than 8 bits.
        problem: Why the file cannot be read, or ''.
    """

    width: int = 0
    height: int = 0
    channels: int = 0
    is_deep: bool = False
    raster_bands: int = 0
    problem: str = ""


def read_headers(paths: Sequence[str | Path]) -> list[Header]:
    """Read the headers of image files, with a progress bar if they are many."""
    return _read_all(_read_header, paths)


def read_labels(paths: Sequence[str | Path]) -> list[list[int]]:
    """Return the labels of the pixels of each segmentation map, or raise ValueError."""
    return _read_all(_read_map, paths)


def _read_all(read: Callable[[str | Path], _Fact], paths: Sequence[str | Path]) -> list[_Fact]:
    with ThreadPool(4) as pool:  # which waits for the disk
        facts = pool.imap(read, paths, chunksize=64)
        return list(progress_bar(len(paths), "file", iterable=facts, delay=2))


def _read_header(path: str | Path) -> Header:
    bands = 0
    try:
        with open(path, "rb") as file:
            bands = count_raster_bands(file)
            file.seek(0)
            with Image.open(file) as image:
                width, height = image.size
                # Pillow decodes a whole PNG to look for EXIF behind the pixels.
                has_exif = image.format != "PNG" or "exif" in image.info
                exif = image.getexif() if has_exif else {}
                if exif.get(ExifTags.Base.Orientation) in (5, 6, 7, 8):  # on a side
                    width, height = height, width
                # Pillow opens colors of 16 bits as 8, and tells it in the decoder's arguments.
                is_deep = image.mode[0] in "IF" or ";16" in str(image.tile)
                return Header(width, height, len(image.getbands()), is_deep, bands)
    except Exception as error:  # every decoder has its own exceptions
        return Header(raster_bands=bands, problem=reason(error))


def _read_map(path: str | Path) -> list[int]:
    try:
        with Image.open(path) as image:
            return np.unique(np.asarray(image)).tolist()
    except Exception as error:  # every decoder has its own exceptions
        raise ValueError(f"{path} cannot be read: {reason(error)}") from None
