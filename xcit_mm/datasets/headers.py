"""Facts from the headers of image files, which are read without decoding the images."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from PIL import ExifTags, Image

from ..utils.errors import reason
from ..utils.images import find_dropped, tiff_pages
from ..utils.output import progress_bar

_ON_A_SIDE = (5, 6, 7, 8)  # orientations of EXIF
_SIZE = (ExifTags.Base.ImageWidth, ExifTags.Base.ImageLength)
_Fact = TypeVar("_Fact")


class Header(NamedTuple):
    """Facts from the header of an image file.

    Attributes:
        width: In pixels, as mmcv loads the image, after the rotation that EXIF asks for.
        height: As `width`.
        channels: Number of channels, 1 for an image with a palette.
        is_deep: Whether a channel has more than 8 bits.
        dropped: What mmcv would drop from a TIFF, as `find_dropped` puts it, or ''.
    """

    width: int
    height: int
    channels: int
    is_deep: bool
    dropped: str


def read_headers(paths: Sequence[str | Path]) -> list[Header]:
    """Read the headers of image files, and raise the errors of `read_all`."""
    return read_all(_read_header, paths)


def read_all(read: Callable[[BinaryIO], _Fact], paths: Sequence[str | Path]) -> list[_Fact]:
    """Read files, with a progress bar if there are many. A broken file raises ValueError."""

    def read_file(path: str | Path) -> _Fact:
        try:
            with open(path, "rb") as file:
                return read(file)
        except Exception as error:  # every decoder has its own exceptions
            raise ValueError(f"{path} cannot be read: {reason(error)}") from None

    with ThreadPool(4) as pool, _large_images():  # threads wait for the disk
        facts = pool.imap(read_file, paths, chunksize=64)
        return list(progress_bar(len(paths), "file", iterable=facts, delay=2))


@contextmanager
def _large_images() -> Iterator[None]:
    """Let Pillow open images up to the size that OpenCV reads."""
    former = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = 2**30
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = former


def _read_header(file: BinaryIO) -> Header:
    """Read the header of a file. Pillow, which reads all but TIFF, shows 16 bits of PPM as 8."""
    pages = tiff_pages(file)
    if pages:
        return _header_of_tiff(pages)
    file.seek(0)
    image = Image.open(file)
    width, height = image.size
    # Pillow decodes a whole PNG to look for EXIF behind the pixels.
    has_exif = image.format != "PNG" or "exif" in image.info
    image.info.pop("xmp", None)  # Pillow takes an orientation from there too, OpenCV does not
    exif = image.getexif() if has_exif else {}
    if exif.get(ExifTags.Base.Orientation) in _ON_A_SIDE:
        width, height = height, width
    # Pillow opens colors of 16 bits as 8, which shows only in the decoder's arguments.
    is_deep = image.mode[0] in "IF" or ";16" in str(image.tile)
    return Header(width, height, len(image.getbands()), is_deep, "")


def _header_of_tiff(pages: Sequence[Mapping[int, Any]]) -> Header:
    """Return the header of the first page. Pillow opens few of the TIFFs that GDAL reads."""
    tags = pages[0]
    width, height = (tags[tag] for tag in _SIZE)
    if tags.get(ExifTags.Base.Orientation) in _ON_A_SIDE:
        width, height = height, width
    channels = tags.get(ExifTags.Base.SamplesPerPixel, 1)
    is_deep = max(tags.get(ExifTags.Base.BitsPerSample, (1,))) > 8
    return Header(width, height, channels, is_deep, find_dropped(pages))
