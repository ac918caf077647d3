"""Videos: their frames, and drawings of the frames as an MP4."""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import cv2
import numpy as np

from ..utils.atomic import atomic_path
from ..utils.cli import print_line
from ..utils.images import URL_PREFIXES

MIN_SHARE = 0.9  # of the frames in a video's header, whose number may be an estimate
_RATES = (1, 240)  # frames per second in a header that are plausible
_TIMED = 100  # frames whose times give the rate otherwise


def iter_frames(path: str) -> Iterator[np.ndarray]:
    """Yield the frames of a video, (H, W, 3), BGR, uint8.

    The number of frames in a header may be wrong. A line says so if over a tenth is missing.

    Raises:
        OSError: If the file cannot be opened.
        ValueError: If the path is a URL or not UTF-8, or the file is cut short or has no frame.
    """
    import supervision as sv

    if path.startswith(URL_PREFIXES):
        raise ValueError("videos are not read from URLs: download the file first")
    if any("\ud800" <= letter <= "\udfff" for letter in path):
        raise ValueError("OpenCV crashes on a path that is not UTF-8: rename the file")
    size = os.path.getsize(path)  # supervision does not say why a file cannot be opened
    if not size:
        raise ValueError("the file is empty")
    expected = sv.VideoInfo.from_video_path(path).total_frames or 0
    count = 0
    for frame in sv.get_video_frames_generator(path):
        count += 1
        yield frame
    if count < max(MIN_SHARE * expected, 1):
        with open(path, "rb") as file:
            stated_size = _stated_size(file, size)
        if size < stated_size or not count:
            cut = f", the file {size} of {stated_size} bytes" if size < stated_size else ""
            raise ValueError(f"the video has {count} of {expected} frames{cut}")
        print_line(f"{path} is complete with {count} frames, though its header says {expected}")


def _stated_size(file: BinaryIO, size: int) -> int:
    """Return how many bytes the parts of a container say that it has: AVI, MP4, WebM and kin."""
    position = 0
    while position < size:
        file.seek(position)
        head = file.read(16)
        if head[:4] == b"RIFF":
            position += 8 + int.from_bytes(head[4:8], "little")
        elif head[:4] in (b"\x1aE\xdf\xa3", b"\x18S\x80g"):  # EBML's header and its segment
            width = 9 - head[4].bit_length()  # bytes of the length that follows
            length = int.from_bytes(head[4 : 4 + width], "big") - (1 << 7 * width)
            if length == (1 << 7 * width) - 1:  # unknown, as written to a pipe
                return size
            position += 4 + width + length
        elif head[4:8].isalnum() and head[:4] != b"\0\0\0\0":
            length = int.from_bytes(head[:4], "big")
            position += length if length > 1 else int.from_bytes(head[8:16], "big") or size
        else:  # of another kind
            return size
    return position


def frame_rate(path: str) -> float:
    """Return the frames per second of a video, by the times of frames if the header is wrong."""
    video = cv2.VideoCapture(path)
    rate = video.get(cv2.CAP_PROP_FPS)
    if not _RATES[0] <= rate <= _RATES[1]:
        times: list[float] = []
        while len(times) < _TIMED and video.grab():
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
    import supervision as sv

    images = iter(images)
    for first in islice(images, 1):
        height, width = first.shape[:2]
        info = sv.VideoInfo(width, height, frame_rate(source))
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
