"""Images as arrays: reading, and the arithmetic of OpenCV, mmdet and mmseg that resizes images, logits and masks."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

_STRIP = 2**24  # values of a segmentor's logits that are resized at a time


def read_image(path: str | Path) -> np.ndarray:
    """Read an image (H, W, 3), RGB, uint8, rotated by its EXIF orientation.

    Colours of 16 bits keep their upper 8 bits, within a grey level of OpenCV's.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it cannot be read, or is grey with more than 8 bits, which Pillow would clip.
    """
    try:
        with Image.open(path) as file:
            if file.mode.startswith(("I", "F")):
                raise ValueError(f"{path} has more than 8 bits a channel: convert it to 8")
            return np.array(ImageOps.exif_transpose(file).convert("RGB"))
    except FileNotFoundError:
        raise FileNotFoundError(f"no image at {path}") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read: {one_line(error)}") from None


def _taps(before: int, after: int, align_corners: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each of `after` entries its two neighbours among `before`, and the weight of the second."""
    if align_corners:
        position = np.arange(after) * ((before - 1) / max(after - 1, 1))
    else:
        position = (np.arange(after) + 0.5) * (before / after) - 0.5
    position = position.clip(0, before - 1)
    first = position.astype(np.int64)
    return first, np.minimum(first + 1, before - 1), (position - first).astype(np.float32)


def _interpolate(x: np.ndarray, axis: int, taps: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    first, second, weight = taps
    start = x.take(first, axis).astype(np.float32)
    return start + (x.take(second, axis) - start) * weight.reshape(-1, *[1] * (x.ndim - axis - 1))


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize an image as OpenCV's INTER_LINEAR does: in integers, with weights of 11 bits.

    A few values in a thousand differ from OpenCV's, by a grey level. Exact interpolation would change one in eight,
    which moves boxes by pixels. Pillow smooths an image that it makes smaller.
    """
    (top, bottom, above, below), (left, right, before, after) = map(_fixed_taps, image.shape, size)

    def across(rows: np.ndarray) -> np.ndarray:
        lines = image[rows]
        return (lines[:, left] * before[:, None] + lines[:, right] * after[:, None]) >> 4

    upper, lower = across(top) * above[:, None, None] >> 16, across(bottom) * below[:, None, None] >> 16
    return ((upper + lower + 2) >> 2).astype(np.uint8)


def _fixed_taps(before: int, after: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return for each of `after` entries its two neighbours among `before`, and their weights, of a sum of 2048."""
    position = ((np.arange(after) + 0.5) * (1 / (after / before)) - 0.5).astype(np.float32)
    floor = np.floor(position)
    weight = np.where((floor < 0) | (floor >= before - 1), np.float32(0), position - floor)
    first = floor.clip(0, before - 1).astype(np.int64)
    first_weight, second_weight = (np.rint(w * np.float32(2048)).astype(np.int32) for w in (1 - weight, weight))
    return first, np.minimum(first + 1, before - 1), first_weight, second_weight


def to_labels(logits: np.ndarray, size: tuple[int, int], align_corners: bool, threshold: float | None) -> np.ndarray:
    """Return the classes (H, W) of resized logits (classes, h, w). Strips save gigabytes."""
    (height, width), count = size, len(logits)
    first, second, weight = _taps(logits.shape[1], height, align_corners)
    columns = _taps(logits.shape[2], width, align_corners)
    labels = np.empty(size, np.uint8 if count <= 256 else np.uint16)
    rows = max(_STRIP // (count * width), 1)
    for top in range(0, height, rows):
        strip = slice(top, top + rows)
        resized = _interpolate(logits, 1, (first[strip], second[strip], weight[strip]))
        resized = _interpolate(resized, 2, columns)
        labels[strip] = resized.argmax(axis=0) if count > 1 else 1 / (1 + np.exp(-resized[0])) > threshold
    return labels


def paste_masks(masks: np.ndarray, boxes: np.ndarray, height: int, width: int, threshold: float) -> np.ndarray:
    """Paste probabilities (n, h, w) over their boxes into masks (n, H, W), bool: bilinear, 0 outside, as in mmdet."""
    pasted = np.zeros((len(masks), height, width), bool)
    for number, (mask, box) in enumerate(zip(masks, boxes.astype(np.float64), strict=True)):
        left, top = np.floor(box[:2] - 1).clip(0).astype(int)
        right, bottom = np.ceil(box[2:] + 1).clip(0, [width, height]).astype(int)
        across = _tents(left, right, box[0], box[2], mask.shape[1])
        down = _tents(top, bottom, box[1], box[3], mask.shape[0])
        pasted[number, top:bottom, left:right] = down @ mask @ across.T >= threshold
    return pasted


def _tents(begin: int, end: int, start: float, stop: float, count: int) -> np.ndarray:
    """Return weights (pixels, count) of `count` values spread from `start` to `stop` in the pixels `begin` to `end`."""
    position = (np.arange(begin, end) + 0.5 - start) / max(stop - start, 1e-6) * count - 0.5
    return (1 - np.abs(position[:, None] - np.arange(count))).clip(0)


def one_line(error: Exception) -> str:
    """Return the last 300 characters of an error's message in one line. onnxruntime states the cause at the end."""
    return " ".join(str(error).split())[-300:]
