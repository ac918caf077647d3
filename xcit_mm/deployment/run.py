"""Run a detector or segmentor that tools/export.py has written, with numpy, onnxruntime and pillow alone.

    python run.py model.onnx photo.jpg --out drawn.png --json results.json

This file uses nothing else of its package: copy it to the target machine. In a program:

    model = Model("model.onnx")
    image = read_image("photo.jpg")
    results = model(image)  # Detections or Segmentation, in pixels of the image
    drawn = draw(image, results, model.classes)
"""

import argparse
import json
import os
import sys
from colorsys import hsv_to_rgb
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from PIL import Image, ImageDraw, ImageFont, ImageOps

__all__ = ["Detections", "Model", "Segmentation", "draw", "read_image", "to_json"]

_STRIP = 2**24  # values of a segmentor's logits that are resized at a time


class Detections(NamedTuple):
    """Objects in an image (H, W).

    Attributes:
        boxes: Left, top, right and bottom in pixels, (n, 4).
        scores: (n,).
        labels: Class numbers from 0, (n,).
        masks: (n, H, W), bool; None for a model without masks.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | None


class Segmentation(NamedTuple):
    """Class of every pixel of an image, from 0, (H, W)."""

    labels: np.ndarray


class Model:
    """A model in a file of tools/export.py, with or without preprocessing in the file, on the CPU.

    Args:
        path: The .onnx file.
        threads: Number of threads; default: onnxruntime's choice.

    Attributes:
        classes: Names of the classes.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is not such a model, or its metadata do not specify the preprocessing.
    """

    def __init__(self, path: str | Path, threads: int | None = None) -> None:
        if not Path(path).is_file():
            raise FileNotFoundError(f"no model at {path}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's classes share no base but Exception
            raise ValueError(f"{path} is not an ONNX file that can be run: {_one_line(error)}") from None
        facts = self._session.get_modelmeta().custom_metadata_map
        task = facts.get("task", "")
        if task == "backbone" or "classes" not in facts:
            kind = "a backbone, which predicts nothing" if task == "backbone" else "not written by tools/export.py"
            raise ValueError(f"{path} is {kind}: give a whole model that tools/export.py has written")
        self.classes: list[str] = json.loads(facts["classes"])
        self._steps: dict[str, Any] = json.loads(facts.get("preprocessing", "{}"))
        self._has_preprocessing = self._session.get_inputs()[0].name == "pixels"
        if "resize" not in self._steps and not self._has_preprocessing:
            cause = self._steps.get("unknown", "missing metadata: export it again")
            raise ValueError(f"{path} does not specify the preprocessing of images because of {cause}")
        self._order = slice(None, None, -1 if facts["channel_order"] == "BGR" else 1)
        self._mean, self._std = (json.loads(facts[name]) for name in ("mean", "std"))
        self._mask_threshold: Any = (json.loads(facts["test_cfg"]).get("rcnn") or {}).get("mask_thr_binary")
        self._align_corners: bool = json.loads(facts.get("align_corners", "false"))
        self._threshold: float | None = json.loads(facts.get("threshold", "null"))

    def __call__(self, image: np.ndarray, score_thr: float = 0.0) -> Detections | Segmentation:
        """Predict an image.

        Args:
            image: (H, W, 3), RGB, uint8.
            score_thr: Minimum score of a detection.

        Returns:
            Results in pixels of the image.

        Raises:
            ValueError: If the image is of another shape or type, or too narrow for the model's resizing.
            RuntimeError: If onnxruntime fails, for example for lack of memory.
        """
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise ValueError(f"an image of {image.shape}, {image.dtype}: give it as (H, W, 3), RGB, uint8")
        height, width = image.shape[:2]
        size = self._resized_size(height, width)
        inputs = dict(pixels=image) if self._has_preprocessing else dict(image=self._preprocess(image, size))
        names = [output.name for output in self._session.get_outputs()]
        try:
            outputs = dict(zip(names, self._session.run(names, inputs), strict=True))
        except Exception as error:  # see above
            raise RuntimeError(f"the model cannot be run on {height}x{width} pixels: {_one_line(error)}") from None
        if "segmentation_map" in outputs:
            return Segmentation(outputs["segmentation_map"])
        if "logits" in outputs:
            logits = outputs["logits"][0, :, : size[0], : size[1]]
            return Segmentation(_labels(logits, (height, width), self._align_corners, self._threshold))
        kept = outputs["scores"] >= score_thr
        boxes, scores, labels = (outputs[name][kept] for name in ("boxes", "scores", "labels"))
        if not self._has_preprocessing:
            boxes = boxes / np.array([size[1] / width, size[0] / height] * 2, np.float32)
        masks = None
        if "masks" in outputs:
            masks = _paste(outputs["masks"][kept], boxes, height, width, self._mask_threshold)
        # After the masks, which fill whole boxes. Rounding may place a side of a box beyond the image.
        return Detections(boxes.clip(0, [width, height] * 2).astype(np.float32), scores, labels, masks)

    def _resized_size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of a resized image by mmcv's rule, with its rounding."""
        resize = self._steps.get("resize")
        if resize is None:
            return height, width
        if resize["keep_ratio"]:
            long, short = max(resize["scale"]), min(resize["scale"])
            factor = min(long / max(height, width), short / min(height, width))
            size = int(height * factor + 0.5), int(width * factor + 0.5)
        else:
            size = resize["scale"][1], resize["scale"][0]
        if not min(size):
            raise ValueError(f"an image of {height}x{width} pixels: the model's resizing leaves nothing of it; pad it")
        return size

    def _preprocess(self, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Resize, normalise and pad an image to the model's input (1, 3, h, w)."""
        resized = image if size == image.shape[:2] else _resize(image, size)
        values: np.ndarray = resized[..., self._order].astype(np.float32)
        if self._mean is not None:
            values = (values - np.array(self._mean, np.float32)) / np.array(self._std, np.float32)
        pad = [(0, -length % self._steps["pad_divisor"]) for length in size]
        values = np.pad(values, [*pad, (0, 0)], constant_values=self._steps["pad_value"])
        return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


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


def _resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
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


def _labels(logits: np.ndarray, size: tuple[int, int], align_corners: bool, threshold: float | None) -> np.ndarray:
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


def _paste(masks: np.ndarray, boxes: np.ndarray, height: int, width: int, threshold: float) -> np.ndarray:
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
        raise ValueError(f"{path} cannot be read: {_one_line(error)}") from None


def draw(image: np.ndarray, results: Detections | Segmentation, classes: list[str]) -> np.ndarray:
    """Draw results over an image (H, W, 3), RGB, and a legend beside a segmentation map."""
    colours = _colours(len(classes))
    font: Any = ImageFont.load_default(max(min(image.shape[:2]) // 40, 10))
    if isinstance(results, Segmentation):
        blended = (image + colours[results.labels].astype(np.uint16)) // 2
        return np.hstack([blended.astype(np.uint8), _legend(results.labels, classes, colours, font)])
    drawn = image.copy()
    areas = (results.boxes[:, 2:] - results.boxes[:, :2]).prod(axis=1)
    order = np.argsort(-areas, kind="stable")  # small objects on top
    for number, inside in zip(order, [] if results.masks is None else results.masks[order], strict=False):
        drawn[inside] = (drawn[inside] + colours[results.labels[number]].astype(np.uint16)) // 2
    canvas = Image.fromarray(drawn)
    pen = ImageDraw.Draw(canvas)
    for number in order:
        outline = tuple(colours[results.labels[number]].tolist())
        pen.rectangle(results.boxes[number].tolist(), outline=outline, width=max(min(image.shape[:2]) // 300, 1))
    for number in np.argsort(results.scores, kind="stable"):  # the best on top
        colour = colours[results.labels[number]]
        ink = "black" if colour @ np.array([0.299, 0.587, 0.114]) > 140 else "white"
        left, top = results.boxes[number, :2].tolist()
        text = f"{classes[results.labels[number]]} {results.scores[number]:.2f}"
        start = (left + 2, max(top - 1.3 * font.size, 0))
        _, label_top, label_right, label_bottom = pen.textbbox(start, text, font=font)
        pen.rectangle((left, label_top - 2, label_right + 2, label_bottom + 2), fill=tuple(colour.tolist()))
        pen.text(start, text, font=font, fill=ink)
    return np.array(canvas)


def _colours(count: int) -> np.ndarray:
    """Return distinct colours (count, 3), RGB: the golden ratio separates the hues of successive classes."""
    hsv = [(n * 0.618034 % 1, 0.85 - 0.2 * (n % 3 == 1), 0.95 - 0.2 * (n % 2)) for n in range(count)]
    return np.array([[round(255 * value) for value in hsv_to_rgb(*c)] for c in hsv], np.uint8).reshape(-1, 3)


def _legend(labels: np.ndarray, classes: list[str], colours: np.ndarray, font: Any) -> np.ndarray:
    """Draw the classes of a map, the largest first, as high as the map."""
    tall = 2 * font.size
    canvas = Image.new("RGB", (round(max(map(font.getlength, classes)) + 1.5 * tall), len(labels)), "white")
    pen = ImageDraw.Draw(canvas)
    areas = np.bincount(labels.ravel(), minlength=len(classes))
    present = [label for label in np.argsort(-areas, kind="stable") if areas[label]]
    for row, label in enumerate(present):
        middle = (row + 0.5) * tall
        square = (tall / 4, middle - tall / 4, 3 * tall / 4, middle + tall / 4)
        pen.rectangle(square, fill=tuple(colours[label].tolist()))
        pen.text((tall, middle), classes[label], font=font, fill="black", anchor="lm")
    return np.asarray(canvas)


def to_json(results: Detections | Segmentation, classes: list[str]) -> dict[str, Any]:
    """Convert results to `instances`, or to the `regions` of classes, for JSON.

    Masks are COCO's uncompressed run-length code: `counts` of pixels outside, inside, outside ..., down the columns.
    """
    if isinstance(results, Segmentation):
        regions = []
        for label in np.unique(results.labels).tolist():
            mask = results.labels == label
            regions.append(dict(label=label, name=classes[label], pixels=int(mask.sum()), mask=_run_lengths(mask)))
        return dict(regions=regions)
    instances = []
    values = (results.labels.tolist(), results.scores.tolist(), results.boxes.tolist())
    for number, (label, score, box) in enumerate(zip(*values, strict=True)):
        instance = dict(label=label, name=classes[label], score=round(score, 4), box=[round(side, 2) for side in box])
        if results.masks is not None:
            instance["mask"] = _run_lengths(results.masks[number])
        instances.append(instance)
    return dict(instances=instances)


def _run_lengths(mask: np.ndarray) -> dict[str, list[int]]:
    flat = np.concatenate([[False], mask.ravel(order="F")])  # counts begin with pixels outside
    edges = np.flatnonzero(flat[1:] != flat[:-1])
    return dict(size=list(mask.shape), counts=np.diff(edges, prepend=0, append=mask.size).tolist())


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _summary(results: Detections | Segmentation, classes: list[str]) -> list[str]:
    if isinstance(results, Segmentation):
        shares = np.bincount(results.labels.ravel(), minlength=len(classes)) / results.labels.size
        return [f"{classes[label]:20} {shares[label]:7.2%}" for label in np.argsort(-shares) if shares[label]]
    return [
        f"{classes[label]:20} {score:.3f} " + " ".join(f"{side:7.1f}" for side in box)
        for label, score, box in zip(results.labels, results.scores, results.boxes, strict=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="an .onnx file of tools/export.py")
    parser.add_argument("image", type=Path)
    parser.add_argument("--out", type=Path, metavar="PNG", help="write the image with the results drawn over it")
    parser.add_argument("--json", type=Path, metavar="JSON", help="write the results as JSON")
    parser.add_argument("--score-thr", type=float, default=0.3, help="minimum score (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="number of threads (default: onnxruntime's choice)")
    args = parser.parse_args()
    try:
        for path, suffix in ((args.out, ".png"), (args.json, ".json")):
            if path and path.suffix.lower() != suffix:
                raise ValueError(f"{path}: name it {suffix}")
            if path and not path.parent.is_dir():
                raise FileNotFoundError(f"no folder {path.parent}: make it first")
        image = read_image(args.image)
        model = Model(args.model, args.threads)
        results = model(image, args.score_thr)
        if args.out:
            drawn = BytesIO()
            Image.fromarray(draw(image, results, model.classes)).save(drawn, "PNG")
            _write(args.out, drawn.getvalue())
        if args.json:
            _write(args.json, json.dumps(to_json(results, model.classes)).encode())
    except (OSError, ValueError, RuntimeError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    try:
        lines = "\n".join(_summary(results, model.classes))
        print(lines or f"no detection with a score of {args.score_thr} or more", flush=True)
    except BrokenPipeError:  # the reader of the output has gone, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
        return 141  # exit code of SIGPIPE
    return 0


if __name__ == "__main__":
    sys.exit(main())
