"""What to predict: images and the frames of videos, and under which name each is kept."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cv2
import mmcv
import numpy as np
from mmengine.utils import scandir

__all__ = ["IMAGES", "VIDEOS", "Input", "Video", "files_below", "find_inputs", "first_frame", "read_image"]

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm")
VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm")


class Input(NamedTuple):
    """A file to predict.

    Attributes:
        path: Where it is.
        name: Its path below what all inputs share.
        key: What its results are called, a path without a suffix; no other input's is the same.
    """

    path: Path
    name: str
    key: str

    @property
    def is_video(self) -> bool:
        return self.path.suffix.lower() in VIDEOS


def find_inputs(given: str, out: Path | None = None) -> tuple[list[Input], list[str]]:
    """The images and videos that a path, a folder (searched to its depth) or a glob stands for, sorted by path.

    Names are relative to the folder, or to the part of the glob before its first wildcard.

    Args:
        given: The path, folder or glob.
        out: Folder of the results, of which none is an input.

    Returns:
        The inputs, and a line for each kind of file that is left out.

    Raises:
        FileNotFoundError: If there are none.
        ValueError: If the path is of a file that is neither by its name.
    """
    root = Path(given)
    if root.is_file():
        found, root = [root], root.parent
        if found[0].suffix.lower() not in IMAGES + VIDEOS:
            raise ValueError(f"{given} is neither an image nor a video: {', '.join(IMAGES + VIDEOS)}")
    elif root.is_dir():
        found = files_below(root, IMAGES + VIDEOS)
    else:
        root, pattern = _split_glob(given)
        found = sorted(path for path in root.glob(pattern) if path.is_file()) if pattern else []
    others = [path for path in found if path.suffix.lower() not in IMAGES + VIDEOS]
    results = [path for path in found if out is not None and path.resolve().is_relative_to(out.resolve())]
    kept = sorted(set(found) - set(others) - set(results))
    notes = [
        f"left out {len(paths)} {reason}: {paths[0]}{', ...' * (len(paths) > 1)}"
        for paths, reason in ((others, "neither image nor video"), (results, f"below --out {out}"))
        if paths
    ]
    if not kept:
        reasons = f" ({'; '.join(notes)})" if notes else ""
        raise FileNotFoundError(f"no images or videos at {given}{reasons}: give a file, a folder or a quoted glob")
    names = [path.relative_to(root).as_posix() for path in kept]
    return [Input(*one) for one in zip(kept, names, _keys(names), strict=True)], notes


def _split_glob(given: str) -> tuple[Path, str]:
    """The folder that a glob searches and the rest of it, which is empty without a wildcard."""
    parts = Path(given).parts
    first = next((number for number, part in enumerate(parts) if any(c in part for c in "*?[")), len(parts))
    return Path(*parts[:first]), "/".join(parts[first:])


def _keys(names: list[str]) -> list[str]:
    """The names without their suffixes, but with them where two would be the same."""
    keys = [str(Path(name).with_suffix("")) for name in names]
    while len(set(keys)) < len(keys):
        count = Counter(keys)
        keys = [name if count[key] > 1 else key for name, key in zip(names, keys, strict=True)]
    return keys


def files_below(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Files below a folder, through links too, sorted, without hidden ones; `suffixes` in lower case."""
    return sorted(folder / name for name in scandir(folder, suffixes, recursive=True, case_sensitive=False))


def read_image(path: Path) -> np.ndarray:
    """An image (H, W, 3), BGR, 8 bit; of an animation the first frame.

    Raises:
        ValueError: If it cannot be decoded.
        OSError: If it cannot be read.
    """
    image = mmcv.imfrombytes(path.read_bytes()) if path.stat().st_size else None
    if image is None:
        raise ValueError("it is empty, broken or not an image")
    return image


class Video:
    """Frames of a video, as of `read_image`, to iterate over once; `rate` is their number a second.

    Frames are read until none comes: a header may count none or too many.

    Raises:
        ValueError: If it holds no frames.
        OSError: If it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb"):  # a missing permission is its own error
            self._capture = cv2.VideoCapture(str(path))
        self.rate = self._capture.get(cv2.CAP_PROP_FPS) or 25.0

    def __iter__(self) -> Iterator[np.ndarray]:
        there, frame = self._capture.read()
        if not there:
            raise ValueError("it holds no frames")
        while there:
            yield frame
            there, frame = self._capture.read()


def first_frame(path: Path) -> np.ndarray:
    """An image, or the first frame of a video; raises as they do."""
    return next(iter(Video(path))) if path.suffix.lower() in VIDEOS else read_image(path)
