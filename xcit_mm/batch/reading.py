"""Reading of video frames."""

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from ..utils.images import URL_PREFIXES, read_image
from .inputs import VIDEO_SUFFIXES


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
