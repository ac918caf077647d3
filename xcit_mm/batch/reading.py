"""Reading of images and of video frames, from files and URLs."""

import importlib.util
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import cv2
import mmcv
import numpy as np
from PIL import UnidentifiedImageError

from ..geo.files import has_more_than_8_bits
from .inputs import HEIF_NEEDS, URL_PREFIXES, VIDEO_SUFFIXES

__all__ = ["Video", "read_first_frame", "read_image"]


def read_image(path: str | Path, color_type: str = "color", imdecode_backend: str = "cv2") -> np.ndarray:
    """Read an image, or the first frame of an animation, from a file or URL: (H, W, 3), BGR, 8 bits.

    `color_type` and `imdecode_backend` are those of `LoadImageFromFile`, which may return other shapes and types.

    Raises:
        ValueError: If the file cannot be decoded, or uses at most 14 of 16 bits per channel.
        OSError: If the file cannot be read.
    """
    if str(path).startswith(URL_PREFIXES):
        with urllib.request.urlopen(_ascii_url(str(path)), timeout=60) as response:
            content = response.read()
    else:
        content = Path(path).read_bytes()
    if content[4:8] == b"ftyp":  # HEIC or AVIF, which not every version of OpenCV reads
        if importlib.util.find_spec("pillow_heif"):
            importlib.import_module("pillow_heif").register_heif_opener()
        imdecode_backend = "pillow"
    try:
        image = mmcv.imfrombytes(content, color_type, backend=imdecode_backend) if content else None
    except UnidentifiedImageError:
        raise ValueError(f"Pillow does not read the image; {HEIF_NEEDS}") from None
    if image is None:
        raise ValueError("the file is empty, broken or not an image")
    # OpenCV keeps the upper 8 of 16 bits. No pixel reaches 64 if 14 bits or fewer are in use, as in many cameras.
    if image.max() < 64 and has_more_than_8_bits(content):
        raise ValueError("the image uses few of its 16 bits and would be nearly black: scale it, or convert it to TIFF")
    return np.ascontiguousarray(image)  # Pillow's channels are reversed by a stride


def _ascii_url(url: str) -> str:
    """Encode spaces and letters beyond ASCII. Encoded characters stay."""
    parts = urlsplit(url)
    netloc = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
    return quote(urlunsplit(parts._replace(netloc=netloc)), safe="%/:;?#[]@!$&'()*+,=~")


class Video:
    """Frames of a video file, (H, W, 3), BGR, 8 bits. The object can be iterated once.

    Frames are read until the decoder returns none, because the number in a header may be wrong or missing.

    Raises:
        ValueError: If the path is a URL or not UTF-8, or there are no frames.
    """

    def __init__(self, path: str | Path) -> None:
        if str(path).startswith(URL_PREFIXES):
            raise ValueError("videos are not read from URLs: download the file first")
        if any("\ud800" <= letter <= "\udfff" for letter in str(path)):
            raise ValueError("OpenCV crashes on a path that is not UTF-8: rename the file")
        with open(path, "rb"):  # OpenCV would not report a missing file or permission
            self._capture = cv2.VideoCapture(str(path))
        self.rate = self._capture.get(cv2.CAP_PROP_FPS) or 25.0  # frames per second
        self._count = 0  # of frames read

    def __iter__(self) -> Iterator[np.ndarray]:
        success, frame = self._capture.read()
        if not success:
            raise ValueError("the video has no frames")
        while success:
            self._count += 1
            yield frame
            success, frame = self._capture.read()

    def check_end(self) -> None:
        """Compare the number of frames that were read with the header, whose number may be an estimate.

        Raises:
            ValueError: If over a tenth of the frames is missing.
        """
        expected = int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT))  # negative if unknown
        if self._count < 0.9 * expected:
            raise ValueError(f"{self._count} of {expected} frames can be read: repair the video, or its header")


def read_first_frame(path: Path) -> np.ndarray:
    """Read an image, or the first frame of a video; see `read_image` and `Video`."""
    return next(iter(Video(path))) if path.suffix.lower() in VIDEO_SUFFIXES else read_image(path)
