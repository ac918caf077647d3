"""Videos: their frames, and drawings of the frames as an MP4."""

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import cv2
import numpy as np

from ..utils.atomic import atomic_path
from ..utils.cli import print_line
from ..utils.images import URL_PREFIXES

MIN_SHARE = 0.9  # of the number of frames in a header, which may be an estimate
PLAUSIBLE_RATES = (1, 240)  # frames per second
MAX_SIDE = 8191  # in pixels, of MPEG-4
TIMED_FRAMES = 100  # first frames, whose times give the rate if the header's is not plausible


def iter_frames(path: str) -> Iterator[np.ndarray]:
    """Yield the frames of a video, (H, W, 3), BGR, uint8.

    A line says so if more than a tenth of the frames in the header is missing: the header is wrong
    or the file was cut short.

    Raises:
        OSError: If the file cannot be opened.
        ValueError: If the path is a URL or not UTF-8, or the file is empty or has no frame.
    """
    import supervision as sv

    if path.startswith(URL_PREFIXES):
        raise ValueError("videos are not read from URLs: download the file first")
    if any("\ud800" <= letter <= "\udfff" for letter in path):  # bytes that os.fsdecode kept
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


def _frame_rate(path: str) -> float:
    """Return the frames per second of a video: those of its header if plausible, else those by the
    times of its first frames, else 25.
    """
    video = cv2.VideoCapture(path)
    rate = video.get(cv2.CAP_PROP_FPS)
    lowest, highest = PLAUSIBLE_RATES
    if lowest <= rate <= highest:
        return rate
    seconds: list[float] = []
    while len(seconds) < TIMED_FRAMES and video.grab():
        seconds.append(video.get(cv2.CAP_PROP_POS_MSEC) / 1000)
    duration = seconds[-1] - seconds[0] if seconds else 0
    return (len(seconds) - 1) / duration if duration else 25.0


def write_video(path: Path, images: Iterable[np.ndarray], source: str, unfinished: Path) -> int:
    """Write an MP4 with the frame rate of the video `source`, and return the number of frames. A
    line says so if frames are too large to write.

    Args:
        images: At least one frame (H, W, 3), BGR. All have the same size.
        unfinished: Where the file is written before it is read back and renamed to `path`.

    Raises:
        OSError: If the file cannot be read back, for example because the disk is full.
    """
    images = iter(images)
    first = next(images)
    if max(first.shape) > MAX_SIDE:
        height, width = first.shape[:2]
        print_line(f"not drawn: {source}: {width}x{height} pixels are too large for MPEG-4")
        return 1 + sum(1 for _ in images)
    count = 0
    with atomic_path(path, unfinished):
        code = cv2.VideoWriter.fourcc(*"mp4v")
        writer = cv2.VideoWriter(str(unfinished), code, _frame_rate(source), first.shape[1::-1])
        try:
            for image in chain([first], images):
                writer.write(image)
                count += 1
        finally:
            writer.release()
        written = cv2.VideoCapture(str(unfinished))
        readable = 0  # OpenCV writes without an error on a full disk
        while written.grab():
            readable += 1
        if readable < count:
            raise OSError(f"{readable} of {count} frames of {path.name} can be read back")
    return count
