"""Videos: their frames, and drawings of the frames as an MP4."""

import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import cv2
import numpy as np

from ..utils.atomic import atomic_path
from ..utils.cli import print_line
from ..utils.images import URL_PREFIXES

MIN_SHARE = 0.9  # of the frames in a video's header, whose number may be an estimate
RATES = (1, 240)  # frames per second in a header that are plausible
TIMED = 100  # frames whose times give the rate otherwise


def iter_frames(path: str) -> Iterator[np.ndarray]:
    """Yield the frames of a video, (H, W, 3), BGR, uint8.

    The number of frames in a header may be wrong, or the file cut short. A line says so if over a
    tenth is missing.

    Raises:
        OSError: If the file cannot be opened.
        ValueError: If the path is a URL or not UTF-8, or the file is empty or has no frame.
    """
    import supervision as sv

    if path.startswith(URL_PREFIXES):
        raise ValueError("videos are not read from URLs: download the file first")
    if not path.isascii() and any("\ud800" <= letter <= "\udfff" for letter in path):
        raise ValueError("OpenCV crashes on a path that is not UTF-8: rename the file")
    if not os.path.getsize(path):  # supervision does not say why a file cannot be opened
        raise ValueError("the file is empty")
    expected = sv.VideoInfo.from_video_path(path).total_frames or 0
    count = 0
    for frame in sv.get_video_frames_generator(path):
        count += 1
        yield frame
    if not count:
        raise ValueError("the video has no frame that can be read")
    if count < MIN_SHARE * expected:
        print_line(f"{path} ends after {count} frames, though its header says {expected}")


def frame_rate(path: str) -> float:
    """Return the frames per second of a video, by the times of frames if the header is wrong."""
    video = cv2.VideoCapture(path)
    rate = video.get(cv2.CAP_PROP_FPS)
    if not RATES[0] <= rate <= RATES[1]:
        times: list[float] = []
        while len(times) < TIMED and video.grab():
            times.append(video.get(cv2.CAP_PROP_POS_MSEC) / 1000)
        duration = times[-1] - times[0] if times else 0
        rate = (len(times) - 1) / duration if duration else 25.0
    video.release()
    return rate


def write_video(path: Path, images: Iterable[np.ndarray], source: str, unfinished: Path) -> None:
    """Write images (H, W, 3), BGR, of one size as an MP4 with the frame rate of the video `source`.

    Args:
        unfinished: Where the file is written before it is read back and renamed to `path`.

    Raises:
        OSError: If the file cannot be read back, for example because the disk is full.
    """
    images = iter(images)
    for first in islice(images, 1):
        with atomic_path(path, unfinished):
            code = cv2.VideoWriter.fourcc(*"mp4v")
            rate = frame_rate(source)
            writer = cv2.VideoWriter(str(unfinished), code, rate, first.shape[1::-1])
            written = 0
            try:
                for image in chain([first], images):
                    writer.write(image)
                    written += 1
            finally:
                writer.release()
            readable = _count_frames(unfinished)  # OpenCV writes without an error on a full disk
            if readable < written:
                counts = f"{readable} of {written} frames"
                raise OSError(f"{counts} of {path.name} can be read back")


def _count_frames(path: Path) -> int:
    video = cv2.VideoCapture(str(path))
    count = 0
    while video.grab():
        count += 1
    video.release()
    return count
