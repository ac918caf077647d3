"""What the headers of image files say, and which labels segmentation maps have."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import TiffImageFile

from ..utils.cli import progress_bar
from ..utils.errors import reason
from ..utils.images import count_raster_bands, read_orientation

_THREADS = 4  # which wait for the disk
_MIN_FOR_BAR = 5_000  # files that take seconds
_Fact = TypeVar("_Fact")


class Header(NamedTuple):
    """The header of an image file.

    Attributes:
        width: In pixels as mmcv loads the image, after EXIF's orientation. So is the height.
        channels: Number of channels, 1 with a palette.
        bits: Bits of a channel.
        problem: Why the file cannot be read, or ''.
    """

    width: int = 0
    height: int = 0
    channels: int = 0
    bits: int = 8
    raster_bands: int = 0
    problem: str = ""


def read_headers(paths: Sequence[str | Path]) -> list[Header]:
    """Read the headers of image files, with a progress bar if they are many."""
    return _read_all(_read_header, paths)


def read_labels(paths: Sequence[str | Path]) -> list[dict[int, int]]:
    """Return the number of pixels of each label of segmentation maps, or raise ValueError."""
    return _read_all(_count_labels, paths)


def _read_all(read: Callable[[str | Path], _Fact], paths: Sequence[str | Path]) -> list[_Fact]:
    is_short = len(paths) < _MIN_FOR_BAR
    with ThreadPoolExecutor(_THREADS) as pool:
        facts = pool.map(read, paths)
        return list(progress_bar(len(paths), "file", iterable=facts, disable=is_short))


def _read_header(path: str | Path) -> Header:
    bands = 0
    try:
        with open(path, "rb") as file:
            bands = count_raster_bands(file)
            file.seek(24)
            png_bits = file.read(1)
            file.seek(0)
            with Image.open(file) as image:
                width, height = image.size
                if read_orientation(image) >= 5:
                    width, height = height, width
                bits = png_bits[0] if image.format == "PNG" else 8  # Pillow does not tell them
                if isinstance(image, TiffImageFile):
                    bits = max(image.tag_v2.get(ExifTags.Base.BitsPerSample, (1,)))
                return Header(width, height, len(image.getbands()), bits, bands)
    except Exception as error:  # every decoder has its own exceptions
        return Header(raster_bands=bands, problem=reason(error))


def _count_labels(path: str | Path) -> dict[int, int]:
    try:
        with Image.open(path) as image:
            labels, pixels = np.unique(np.asarray(image), return_counts=True)
    except Exception as error:  # every decoder has its own exceptions
        raise ValueError(f"{path} cannot be read: {reason(error)}") from None
    return dict(zip(labels.tolist(), pixels.tolist(), strict=True))
