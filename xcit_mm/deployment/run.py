"""Predict photos by a model in ONNX, with numpy, opencv-python and onnxruntime alone.

    python run.py model.onnx photo.jpg

`xcit-mm export` writes such models. This file uses nothing of xcit_mm: copy it to the target
machine. The exit code is 3 if a photo failed.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime

Arrays = dict[str, np.ndarray]
Size = tuple[int, ...]  # height and width of an image


def read_image(path: str | Path) -> np.ndarray:
    """Read a photo as OpenCV does: (H, W, 3), BGR, uint8, upright by its EXIF orientation."""
    # Not by imread, which some names of files crash.
    image = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise ValueError("the file is broken or not an image")
    return image


def bilinear(grid: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Interpolate a grid (h, w) at fractional rows and columns. Outside, its edge is repeated."""
    for axis, positions in enumerate((rows, columns)):
        positions = positions.clip(0, grid.shape[axis] - 1)
        first = positions.astype(int)
        second = np.minimum(first + 1, grid.shape[axis] - 1)
        weight = (positions - first).astype(np.float32)
        if axis == 0:
            weight = weight[:, None]
        grid = grid.take(first, axis) * (1 - weight) + grid.take(second, axis) * weight
    return grid


def paste_mask(mask: np.ndarray, box: np.ndarray, size: Size, threshold: Any) -> np.ndarray:
    """Paste probabilities (h, w) into a box of an image of `size`, as a mask (H, W), bool."""
    x1, y1, x2, y2 = box.tolist()
    pixels = []
    positions = []  # of the pixels, in cells of the mask with a ring of zeros
    for axis, start, end in ((0, y1, y2), (1, x1, x2)):
        inside = np.arange(max(int(start) - 1, 0), min(int(end) + 2, size[axis]))
        cells = (inside + 0.5 - start) / max(end - start, 1e-6) * mask.shape[axis]
        pixels.append(inside)
        positions.append(cells + 0.5)  # + 1 for the ring, - 0.5 for the centre of a cell
    pasted = np.zeros(size, bool)
    pasted[np.ix_(*pixels)] = bilinear(np.pad(mask, 1), *positions) >= threshold
    return pasted


def to_objects(outputs: Arrays, size: Size, scale: tuple[float, float], threshold: Any) -> Arrays:
    """Convert the outputs of a detector to objects in the image of `size` before it was resized.

    Args:
        scale: Factors by which its width and height were resized.
        threshold: Minimum probability of a mask.
    """
    boxes = outputs["boxes"] / np.array([*scale, *scale], np.float32)
    limits = np.array([size[1], size[0]] * 2, np.float32)
    objects = dict(boxes=boxes.clip(0, limits), scores=outputs["scores"], labels=outputs["labels"])
    if "masks" in outputs:
        objects["masks"] = np.zeros((len(boxes), *size), bool)
        for index, mask in enumerate(outputs["masks"]):
            objects["masks"][index] = paste_mask(mask, boxes[index], size, threshold)
    return objects


class Model:
    """A detector or segmentor in an ONNX file.

    Args:
        path: File that `xcit-mm export` wrote.
        options: Arguments of `onnxruntime.InferenceSession`, such as `providers`.

    Raises:
        ValueError: If `xcit-mm export` did not write the file, or it needs other preprocessing.
            onnxruntime has its own exceptions for a file that is missing or broken.
    """

    def __init__(self, path: str | Path, **options: Any) -> None:
        self.session = onnxruntime.InferenceSession(path, **options)
        metadata = self.session.get_modelmeta().custom_metadata_map
        if "xcit_mm_version" not in metadata:
            raise ValueError(f"{path} was not written by xcit-mm export")
        self.facts: dict[str, Any] = {
            key: json.loads(text)
            for key, text in metadata.items()
            if not key.startswith("onnx.")  # entries of onnxruntime's quantisation are not JSON
        }
        unsupported = self.facts["unsupported"]
        if unsupported:
            raise ValueError(f"{path} needs {unsupported}, which is not in this script: add it")
        self.classes: list[str] = self.facts["classes"]

    def __call__(self, image: np.ndarray, min_score: float = 0.0) -> Arrays:
        """Predict an image (H, W, 3), BGR, uint8.

        Args:
            min_score: Minimum score of a detector's objects.

        Returns:
            For a detector `boxes` (n, 4), left, top, right and bottom in pixels, `scores` and
            `labels` (n,), the best first, and with a mask head `masks` (n, H, W), bool. For a
            segmentor `map` (H, W), the class of each pixel.

        Raises:
            ValueError: If the image has another type or shape, or is too small for the model.
        """
        if image.dtype != np.uint8 or image.shape[2:] != (3,):
            problem = f"an image of {image.shape}, {image.dtype}"
            raise ValueError(f"{problem}: give it as (H, W, 3), BGR, uint8")
        size = image.shape[:2]
        batch, (height, width) = self.preprocess(image)
        arrays = self.session.run(None, {"image": batch})
        outputs = dict(zip(self.facts["outputs"], arrays, strict=True))
        if "logits" in outputs:
            return {"map": self.to_classes(outputs["logits"][0, :, :height, :width], size)}
        is_kept = outputs["scores"] >= min_score
        kept = {name: output[is_kept] for name, output in outputs.items()}
        scale = width / size[1], height / size[0]
        return to_objects(kept, size, scale, self.facts["mask_threshold"])

    def preprocess(self, image: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
        """Return the model's input (1, 3, h, w), and its height and width without padding."""
        facts = self.facts
        height, width = self.resized_size(*image.shape[:2])
        bottom = -height % facts["pad_divisor"]
        right = -width % facts["pad_divisor"]
        minimum = facts["min_side"]
        if min(height + bottom, width + right) < minimum:
            problem = f"resized to {height}x{width} pixels, the image has a side below {minimum}"
            raise ValueError(f"{problem}: give a larger image")
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
        if facts["channel_order"] == "RGB":
            image = image[..., ::-1]
        mean = np.float32(facts["mean"] or 0)
        std = np.float32(facts["std"] or 1)
        normalised = (image.astype(np.float32) - mean) / std
        padding = [(0, bottom), (0, right), (0, 0)]
        padded = np.pad(normalised, padding, constant_values=facts["pad_value"])
        return np.ascontiguousarray(padded.transpose(2, 0, 1)[None]), (height, width)

    def resized_size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width to which an image is resized, by the rule of mmcv."""
        rule = self.facts["resize"]
        if not rule:
            return height, width
        scale = rule["scale"]  # width and height
        if not rule["keep_ratio"]:
            return scale[1], scale[0]
        factor = min(max(scale) / max(height, width), min(scale) / min(height, width))
        return int(height * factor + 0.5), int(width * factor + 0.5)

    def to_classes(self, logits: np.ndarray, size: Size) -> np.ndarray:
        """Return the best class (H, W) of the pixels of an image.

        Logits (classes, h, w) are resized one class at a time, which saves memory.
        """
        positions = []  # of the image's rows and columns in the logits
        for length, pixels in zip(logits.shape[1:], size, strict=True):
            if self.facts["align_corners"]:
                positions.append(np.linspace(0, length - 1, pixels))
            else:
                positions.append((np.arange(pixels) + 0.5) * (length / pixels) - 0.5)
        highest = bilinear(logits[0], *positions)
        if len(logits) == 1:
            return (1 / (1 + np.exp(-highest)) > self.facts["threshold"]).astype(np.uint8)
        labels = np.zeros(size, np.min_scalar_type(len(logits) - 1))
        for label in range(1, len(logits)):
            resized = bilinear(logits[label], *positions)
            labels[resized > highest] = label
            highest = np.maximum(resized, highest)
        return labels


def describe(prediction: Arrays, classes: list[str]) -> list[str]:
    """Return class, score and box of each object, or class and share of each class in a map."""
    if "map" in prediction:
        shares = np.bincount(prediction["map"].ravel()) / prediction["map"].size
        return [f"{classes[label]} {shares[label]:.1%}" for label in shares.nonzero()[0]]
    lines = []
    columns = (prediction[name].tolist() for name in ("labels", "scores", "boxes"))
    for label, score, box in zip(*columns, strict=True):
        sides = " ".join(f"{side:.1f}" for side in box)
        lines.append(f"{classes[label]} {score:.2f} {sides}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="Predict photos by a model of `xcit-mm export`.")
    parser.add_argument("model", help="an .onnx file")
    parser.add_argument("photos", nargs="+", metavar="photo")
    parser.add_argument("--min-score", type=float, default=0.3, help="minimum score (0.3)")
    providers = onnxruntime.get_available_providers()
    parser.add_argument("--provider", default="CPUExecutionProvider", choices=providers)
    args = parser.parse_args()
    model = Model(args.model, providers=[args.provider])
    streams: Any = (sys.stdout, sys.stderr)
    for stream in streams:
        stream.reconfigure(errors="backslashreplace")  # for names that are not UTF-8
    code = 0
    for path in args.photos:
        try:
            prediction = model(read_image(path), args.min_score)
        except Exception as error:  # the classes of OpenCV and onnxruntime share no base
            print(f"{path}: {' '.join(str(error).split())}", file=sys.stderr)
            code = 3
            continue
        for line in describe(prediction, model.classes):
            print(path, line, flush=True)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception as error:  # of stdout, or of the model
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")
