"""What to predict: images and the frames of videos."""

import os
from collections.abc import Iterator
from pathlib import Path

import mmcv
import numpy as np

__all__ = ["IMAGES", "VIDEOS", "files_below", "find_inputs", "read_frames"]

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm")
VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm")


def find_inputs(given: str) -> list[Path]:
    """The images and videos that a path, a folder (searched to its depth) or a glob stands for, sorted.

    Raises:
        FileNotFoundError: If there are none.
        ValueError: If a file is neither by its name.
    """
    path = Path(given)
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = files_below(path, IMAGES + VIDEOS)
    else:
        anchor = Path(path.anchor)
        found = list(anchor.glob(str(path.relative_to(anchor)))) if any(c in given for c in "*?[") else []
        found = [one for one in found if one.is_file()]
    if not found:
        raise FileNotFoundError(f"no images or videos at {given}: give a file, a folder or a quoted glob")
    other = next((one for one in found if one.suffix.lower() not in IMAGES + VIDEOS), None)
    if other:
        raise ValueError(f"{other} is neither an image nor a video: {', '.join(IMAGES + VIDEOS)}")
    return sorted(found)


def files_below(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Files below a folder, through links too, sorted; `suffixes` in lower case."""
    names = (Path(root, name) for root, _, files in os.walk(folder, followlinks=True) for name in files)
    return sorted(path for path in names if path.suffix.lower() in suffixes)


def read_frames(path: Path) -> Iterator[np.ndarray]:
    """An image, or the frames of a video, as (H, W, 3), BGR, 8 bit; of an animation the first frame.

    Raises:
        ValueError: If it cannot be decoded.
        OSError: If it cannot be read.
    """
    if path.suffix.lower() in VIDEOS:
        with path.open("rb"):  # a missing permission is its own error
            video = mmcv.VideoReader(str(path))
        if not video.opened or len(video) == 0:
            raise ValueError("it holds no frames")
        yield from (frame for frame in video if frame is not None)
        return
    image = mmcv.imfrombytes(path.read_bytes()) if path.stat().st_size else None
    if image is None:
        raise ValueError("it is empty, broken or not an image")
    yield image
