"""Predict images by a detector or segmentor in ONNX, with numpy, opencv-python and onnxruntime
alone.

    python run.py model.onnx photo.jpg --out drawn    # or a folder of photos

`xcit-mm export` writes such models. This file uses nothing of xcit_mm: copy it to the target
machine. In Python:

    model = Model("model.onnx")
    found = model(read_image("photo.jpg"))
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime


def read_image(path: str | Path) -> np.ndarray:
    """Read an image as OpenCV does: (H, W, 3), BGR, uint8, rotated by its EXIF orientation.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it cannot be decoded, or uses so few of 16 bits that the upper 8 would be
            nearly black.
    """
    content = np.frombuffer(Path(path).read_bytes(), np.uint8)
    image, raw = (cv2.imdecode(content, flag) for flag in (cv2.IMREAD_COLOR, cv2.IMREAD_UNCHANGED))
    if image is None or raw is None:
        raise ValueError(f"{path} is empty, broken or not an image")
    if image.max() < 64 and raw.dtype != np.uint8:
        raise ValueError(f"{path} uses few of its 16 bits and would be nearly black: scale it")
    return image


def bilinear(grid: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Interpolate a grid (h, w) at fractional rows and columns. Beyond its edge, the values are
    those of the edge.
    """
    for axis, position in enumerate((rows, columns)):
        position = position.clip(0, grid.shape[axis] - 1)
        first = position.astype(int)
        weight = (position - first).astype(np.float32).reshape((-1, 1) if axis == 0 else -1)
        second = np.minimum(first + 1, grid.shape[axis] - 1)
        grid = grid.take(first, axis) * (1 - weight) + grid.take(second, axis) * weight
    return grid


def paste_mask(mask: np.ndarray, box: np.ndarray, size: tuple, threshold: Any) -> np.ndarray:
    """Paste probabilities (h, w) into their box, left, top, right and bottom, of an image of
    `size`: (H, W), bool.
    """
    pasted, axes = np.zeros(size, bool), []
    for axis in range(2):
        start, end = float(box[1 - axis]), float(box[3 - axis])
        pixels = np.arange(max(int(start) - 1, 0), min(int(end) + 2, size[axis]))
        axes.append(
            (pixels, (pixels + 0.5 - start) / max(end - start, 1e-6) * mask.shape[axis] + 0.5)
        )
    (rows, down), (columns, across) = axes  # `down` and `across` count from a ring of zeros
    pasted[np.ix_(rows, columns)] = bilinear(np.pad(mask, 1), down, across) >= threshold
    return pasted


def to_objects(
    outputs: dict[str, Any], size: tuple, scale: tuple, threshold: Any
) -> dict[str, Any]:
    """Convert a detector's outputs to an image (H, W) of `size`, whose width and height were
    multiplied by `scale`.
    """
    boxes = outputs["boxes"] / np.array([*scale, *scale], np.float32)
    found = dict(outputs, boxes=boxes.clip(0, [size[1], size[0]] * 2).astype(np.float32))
    if "masks" in outputs:
        pairs = zip(outputs["masks"], boxes, strict=True)
        found["masks"] = np.array(
            [paste_mask(*pair, size, threshold) for pair in pairs], bool
        ).reshape(-1, *size)
    found.pop("images", None)
    return found


class Model:
    """A detector or segmentor in an ONNX file.

    Args:
        path: File of `xcit-mm export`. One that is missing or that needs other preprocessing raises
            ValueError.
        options: Arguments of `onnxruntime.InferenceSession`, such as `providers`.
    """

    def __init__(self, path: str | Path, **options: Any) -> None:
        try:
            self.session = onnxruntime.InferenceSession(path, **options)
        except Exception as error:  # onnxruntime's classes share no base
            raise ValueError(
                f"{path} cannot be run: {' '.join(str(error).split())[-300:]}"
            ) from None
        texts = self.session.get_modelmeta().custom_metadata_map
        if "classes" not in texts:
            raise ValueError(f"{path} is a backbone or not of xcit-mm export: export a whole model")
        self.facts: dict[str, Any] = {key: json.loads(text) for key, text in texts.items()}
        if self.facts["unsupported"]:
            raise ValueError(
                f"{path} was trained with {self.facts['unsupported']}, which this script lacks: add it"
            )
        self.classes: list[str] = self.facts["classes"]

    def __call__(self, image: np.ndarray) -> dict[str, Any]:
        """Predict an image (H, W, 3), BGR, uint8.

        Returns:
            `boxes` (n, 4), left, top, right and bottom in pixels, `scores` and `labels` (n,), the
            best first, and of a mask head `masks` (n, H, W), bool; or of a segmentor `map` (H, W),
            the class of each pixel.
        """
        if image.dtype != np.uint8 or image.shape[2:] != (3,):
            raise ValueError(
                f"an image of {image.shape}, {image.dtype}: give it as (H, W, 3), BGR, uint8"
            )
        size, (batch, (height, width)) = image.shape[:2], self.preprocess(image)
        outputs = dict(
            zip(self.facts["outputs"], self.session.run(None, {"image": batch}), strict=True)
        )
        if "logits" in outputs:
            return {"map": self.to_classes(outputs["logits"][0, :, :height, :width], size)}
        return to_objects(
            outputs, size, (width / size[1], height / size[0]), self.facts["mask_threshold"]
        )

    def preprocess(self, image: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
        """Resize an image by mmcv's rule, normalise and pad it: the model's input (1, 3, h, w) and
        the resized size.
        """
        height, width = image.shape[:2]
        if self.facts["resize"]:
            new_width, new_height = scale = self.facts["resize"]["scale"]
            if self.facts["resize"]["keep_ratio"]:
                factor = min(max(scale) / max(height, width), min(scale) / min(height, width))
                new_width, new_height = int(width * factor + 0.5), int(height * factor + 0.5)
            height, width = new_height, new_width
        bottom, right = (-side % self.facts["pad_divisor"] for side in (height, width))
        if min(height + bottom, width + right) < self.facts["min_side"]:
            raise ValueError(
                f"resized to {height}x{width}, the model takes {self.facts['min_side']} or more a side"
            )
        pixels = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
        values = pixels[..., :: -1 if self.facts["channel_order"] == "RGB" else 1].astype(
            np.float32
        )
        values = (values - np.float32(self.facts["mean"] or 0)) / np.float32(self.facts["std"] or 1)
        values = np.pad(
            values, [(0, bottom), (0, right), (0, 0)], constant_values=self.facts["pad_value"]
        )
        return np.ascontiguousarray(values.transpose(2, 0, 1)[None]), (height, width)

    def to_classes(self, logits: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
        """Resize logits (classes, h, w), one class at a time to save memory, and return the best
        class (H, W).
        """
        axes = []
        for old, new in zip(logits.shape[1:], size, strict=True):
            centers = (np.arange(new) + 0.5) * (old / new) - 0.5
            axes.append(np.linspace(0, old - 1, new) if self.facts["align_corners"] else centers)
        best = bilinear(logits[0], *axes)
        if len(logits) == 1:
            return (1 / (1 + np.exp(-best)) > self.facts["threshold"]).astype(np.uint8)
        labels = np.zeros(size, np.uint8 if len(logits) <= 256 else np.uint16)
        for label in range(1, len(logits)):
            values = bilinear(logits[label], *axes)
            labels[values > best] = label
            best = np.maximum(values, best)
        return labels


def list_found(found: dict[str, Any], classes: list[str]) -> list[tuple[int, str, list[float]]]:
    """Return for each object its label, its name and score, its box; for each class of a map its
    share, and no box.
    """
    if "map" in found:
        shares = np.bincount(found["map"].ravel()) / found["map"].size
        return [
            (label, f"{classes[label]} {share:.1%}", [])
            for label, share in enumerate(shares)
            if share
        ]
    rows = zip(*(found[name].tolist() for name in ("labels", "scores", "boxes")), strict=True)
    return [(label, f"{classes[label]} {score:.2f}", box) for label, score, box in rows]


def draw(image: np.ndarray, found: dict[str, Any], classes: list[str]) -> np.ndarray:
    """Return an image with its objects, or with its map and the shares of the classes."""
    hues = np.array(
        [[(n * 111 % 180, 150, 255 - 60 * (n % 2)) for n in range(len(classes))]], np.uint8
    )
    colours = cv2.cvtColor(hues, cv2.COLOR_HSV2BGR)[0]
    drawn = image // 2 + colours[found["map"]] // 2 if "map" in found else image.copy()
    for number, (label, text, box) in reversed(
        list(enumerate(list_found(found, classes)))
    ):  # the best on top
        colour, left, bottom = colours[label].tolist(), 4, 20 * number + 16
        if "masks" in found:
            drawn[found["masks"][number]] = drawn[found["masks"][number]] // 2 + colours[label] // 2
        if box:
            left, top, right, bottom = map(round, box)
            cv2.rectangle(drawn, (left, top), (right, bottom), colour, 2)
            bottom = max(top - 4, 16)
        cv2.rectangle(drawn, (left, bottom - 12), (left + 9 * len(text), bottom + 4), colour, -1)
        cv2.putText(
            drawn, text, (left, bottom), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (0, 0, 0), 1, cv2.LINE_AA
        )
    return drawn


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="an .onnx file of xcit-mm export")
    parser.add_argument("image", type=Path, help="an image or a folder of images")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder for the drawn images")
    parser.add_argument(
        "--score-thr", type=float, default=0.3, help="minimum score (default: %(default)s)"
    )
    args = parser.parse_args()
    model, failed = Model(args.model), False
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    for path in (
        sorted(filter(Path.is_file, args.image.iterdir())) if args.image.is_dir() else [args.image]
    ):
        try:
            found = model(image := read_image(path))
        except (OSError, ValueError) as error:
            print(error, file=sys.stderr)
            failed = True
            continue
        if "scores" in found:
            found = {
                name: values[found["scores"] >= args.score_thr] for name, values in found.items()
            }
        for _, text, box in list_found(found, model.classes):
            print(path, text, *(f"{side:.1f}" for side in box))
        if args.out:
            cv2.imwrite(str(args.out / f"{path.name}.png"), draw(image, found, model.classes))
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
