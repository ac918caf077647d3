"""Videos: their frames, and drawings of the frames as an MP4."""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path

import cv2
import numpy as np

from ..utils.atomic import atomic_path
from ..utils.images import URL_PREFIXES

MIN_SHARE = 0.9  # of the frames in a video's header, whose number may be an estimate


def iter_frames(path: str) -> Iterator[np.ndarray]:
    """Yield the frames of a video, (H, W, 3), BGR, uint8.

    Raises:
        OSError: If the file cannot be opened.
        ValueError: If the path is a URL or not UTF-8, or over a tenth of the frames is missing.
    """
    import supervision as sv

    if path.startswith(URL_PREFIXES):
        raise ValueError("videos are not read from URLs: download the file first")
    if any("\ud800" <= letter <= "\udfff" for letter in path):
        raise ValueError("OpenCV crashes on a path that is not UTF-8: rename the file")
    with open(path, "rb") as file:  # supervision does not say why a file cannot be opened
        if not os.fstat(file.fileno()).st_size:
            raise ValueError("the file is empty")
    expected = sv.VideoInfo.from_video_path(path).total_frames or 0
    count = 0
    for frame in sv.get_video_frames_generator(path):
        count += 1
        yield frame
    if count < max(MIN_SHARE * expected, 1):
        raise ValueError(f"the video has {count} of {expected} frames")


def write_video(path: Path, images: Iterable[np.ndarray], source: str, unfinished: Path) -> None:
    """Write images (H, W, 3), BGR, of one size as an MP4 with the frame rate of the video `source`.

    Args:
        unfinished: Where the file is written before it is read back and renamed to `path`.

    Raises:
        OSError: If the file cannot be read back, for example because the disk is full.
    """
    import supervision as sv

    images = iter(images)
    for first in islice(images, 1):
        height, width = first.shape[:2]
        info = sv.VideoInfo(width, height, sv.VideoInfo.from_video_path(source).fps or 25.0)
        written = 0
        with atomic_path(path, unfinished):
            with ExitStack() as opened:
                try:
                    sink = opened.enter_context(sv.VideoSink(str(unfinished), info))
                except RuntimeError as error:
                    raise OSError(f"OpenCV cannot write {path.name}") from error
                for image in chain([first], images):
                    sink.write_frame(image)
                    written += 1
            readable = _count_frames(unfinished)  # OpenCV writes without an error on a full disk
            if readable < written:
                counts = f"{readable} of {written} frames"
                raise OSError(f"{counts} of {path.name} can be read back")


def _count_frames(path: Path) -> int:
    """Return the number of frames that can be read."""
    video = cv2.VideoCapture(str(path))
    count = 0
    while video.grab():
        count += 1
    video.release()
    return count
