"""Run a detector or segmentor that tools/export.py has written: numpy, onnxruntime and pillow are all it needs.

    python run.py model.onnx photo.jpg --out drawn.png --json found.json

This file uses nothing else of its package: copy it to where the model goes. In a program:

    model = Model("model.onnx")
    picture = read_picture("photo.jpg")
    found = model(picture)  # Detections or Segmentation, in pixels of the picture
    drawn = draw(picture, found, model.classes)
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

__all__ = ["Detections", "Model", "Segmentation", "draw", "read_picture", "to_json"]

_STRIP = 2**24  # values of a segmentor's logits that are resized at a time


class Detections(NamedTuple):
    """Objects found in a picture (H, W).

    Attributes:
        boxes: Left, top, right and bottom in pixels, (n, 4).
        scores: (n,).
        labels: Class numbers from 0, (n,).
        masks: (n, H, W), bool; None of a model without masks.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | None


class Segmentation(NamedTuple):
    """The class of every pixel of a picture, from 0, (H, W)."""

    labels: np.ndarray


class Model:
    """A file of tools/export.py, with or without the preparation of pictures in it, on the CPU.

    Args:
        path: The .onnx file.
        threads: How many onnxruntime uses; default: its own choice.

    Attributes:
        classes: Their names.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no such model, or how it wants pictures to be prepared is not told in it.
    """

    def __init__(self, path: str | Path, threads: int | None = None) -> None:
        if not Path(path).is_file():
            raise FileNotFoundError(f"no model at {path}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises classes of its own, all of them Exception's
            raise ValueError(f"{path} is no ONNX file that can be run: {_one_line(error)}") from None
        facts = self._session.get_modelmeta().custom_metadata_map
        task = facts.get("task", "")
        if task == "backbone" or "classes" not in facts:
            kind = "a backbone, which finds nothing" if task == "backbone" else "not written by tools/export.py"
            raise ValueError(f"{path} is {kind}: give a whole model that tools/export.py has written")
        self.classes: list[str] = json.loads(facts["classes"])
        self._preparation: dict[str, Any] = json.loads(facts.get("preparation", "{}"))
        self._takes_pictures = self._session.get_inputs()[0].name == "picture"
        if "resize" not in self._preparation and not self._takes_pictures:
            reason = self._preparation.get("unknown", "want of such metadata: export it again")
            raise ValueError(f"{path} cannot tell how to prepare pictures, for {reason}")
        self._order = slice(None, None, -1 if facts["channel_order"] == "BGR" else 1)
        self._mean, self._std = (json.loads(facts[name]) for name in ("mean", "std"))
        self._mask_threshold: Any = (json.loads(facts["test_cfg"]).get("rcnn") or {}).get("mask_thr_binary")
        self._align_corners: bool = json.loads(facts.get("align_corners", "false"))
        self._threshold: float | None = json.loads(facts.get("threshold", "null"))

    def __call__(self, picture: np.ndarray, score_thr: float = 0.0) -> Detections | Segmentation:
        """What is in a picture (H, W, 3), RGB, uint8, in its pixels; of detections those of at least this score.

        Raises:
            ValueError: If it is no such picture, or resizing as the model wants it leaves nothing of it.
            RuntimeError: If onnxruntime fails, as where memory runs out.
        """
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
            raise ValueError(f"a picture of {picture.shape}, {picture.dtype}: give it as (H, W, 3), RGB, uint8")
        height, width = picture.shape[:2]
        size = self._prepared_size(height, width)
        given = dict(picture=picture) if self._takes_pictures else dict(image=self._prepare(picture, size))
        names = [output.name for output in self._session.get_outputs()]
        try:
            outputs = dict(zip(names, self._session.run(names, given), strict=True))
        except Exception as error:  # as above
            raise RuntimeError(f"the model cannot be run on {height}x{width} pixels: {_one_line(error)}") from None
        if "segmentation_map" in outputs:
            return Segmentation(outputs["segmentation_map"])
        if "logits" in outputs:
            logits = outputs["logits"][0, :, : size[0], : size[1]]
            return Segmentation(_labels(logits, (height, width), self._align_corners, self._threshold))
        kept = outputs["scores"] >= score_thr
        boxes, scores, labels = (outputs[name][kept] for name in ("boxes", "scores", "labels"))
        if not self._takes_pictures:
            boxes = boxes / np.array([size[1] / width, size[0] / height] * 2, np.float32)
        masks = None
        if "masks" in outputs:
            masks = _paste(outputs["masks"][kept], boxes, height, width, self._mask_threshold)
        # Only now, since masks fill their whole boxes; by rounding these may end beyond the picture.
        return Detections(boxes.clip(0, [width, height] * 2).astype(np.float32), scores, labels, masks)

    def _prepared_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width to which a picture is resized: mmcv's rule, rounding included."""
        resize = self._preparation.get("resize")
        if resize is None:
            return height, width
        if resize["keep_ratio"]:
            long, short = max(resize["scale"]), min(resize["scale"])
            factor = min(long / max(height, width), short / min(height, width))
            size = int(height * factor + 0.5), int(width * factor + 0.5)
        else:
            size = resize["scale"][1], resize["scale"][0]
        if not min(size):
            raise ValueError(f"a picture of {height}x{width} pixels: the model's resizing leaves nothing of it; pad it")
        return size

    def _prepare(self, picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """The normalised image (1, 3, h, w) of a picture."""
        resized = picture if size == picture.shape[:2] else _resize(picture, size)
        image: np.ndarray = resized[..., self._order].astype(np.float32)
        if self._mean is not None:
            image = (image - np.array(self._mean, np.float32)) / np.array(self._std, np.float32)
        pad = [(0, -length % self._preparation["pad_divisor"]) for length in size]
        image = np.pad(image, [*pad, (0, 0)], constant_values=self._preparation["pad_value"])
        return np.ascontiguousarray(image.transpose(2, 0, 1)[None])


def _taps(before: int, after: int, align_corners: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each of `after` entries the two of `before` that it lies between, and the second one's weight."""
    if align_corners:
        place = np.arange(after) * ((before - 1) / max(after - 1, 1))
    else:
        place = (np.arange(after) + 0.5) * (before / after) - 0.5
    place = place.clip(0, before - 1)
    first = place.astype(np.int64)
    return first, np.minimum(first + 1, before - 1), (place - first).astype(np.float32)


def _interpolate(x: np.ndarray, axis: int, taps: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    first, second, weight = taps
    start = x.take(first, axis).astype(np.float32)
    return start + (x.take(second, axis) - start) * weight.reshape(-1, *[1] * (x.ndim - axis - 1))


def _resize(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A picture resized as by OpenCV's INTER_LINEAR: in integers, with weights of 11 bits.

    The same values, but for some in a thousand that differ by a grey level. To interpolate exactly would change one in
    eight, which moves boxes by pixels. Pillow smooths what it makes smaller.
    """
    (top, bottom, above, below), (left, right, before, after) = map(_fixed_taps, picture.shape, size)

    def across(rows: np.ndarray) -> np.ndarray:
        lines = picture[rows]
        return (lines[:, left] * before[:, None] + lines[:, right] * after[:, None]) >> 4

    upper, lower = across(top) * above[:, None, None] >> 16, across(bottom) * below[:, None, None] >> 16
    return ((upper + lower + 2) >> 2).astype(np.uint8)


def _fixed_taps(before: int, after: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For each of `after` entries the two of `before` that it lies between, and both weights, of a sum of 2048."""
    place = ((np.arange(after) + 0.5) * (1 / (after / before)) - 0.5).astype(np.float32)
    first = np.floor(place)
    weight = np.where((first < 0) | (first >= before - 1), np.float32(0), place - first)
    start = first.clip(0, before - 1).astype(np.int64)
    weights = [np.rint(one * np.float32(2048)).astype(np.int32) for one in (1 - weight, weight)]
    return start, np.minimum(start + 1, before - 1), weights[0], weights[1]


def _labels(logits: np.ndarray, size: tuple[int, int], align_corners: bool, threshold: float | None) -> np.ndarray:
    """The classes (H, W) of logits (classes, h, w) resized, in strips: whole, they would take gigabytes."""
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
    """Masks (n, H, W), bool, of probabilities (n, h, w) over their boxes: bilinear, 0 beyond, as mmdet's."""
    pasted = np.zeros((len(masks), height, width), bool)
    for number, (mask, box) in enumerate(zip(masks, boxes.astype(np.float64), strict=True)):
        left, top = np.floor(box[:2] - 1).clip(0).astype(int)
        right, bottom = np.ceil(box[2:] + 1).clip(0, [width, height]).astype(int)
        across = _tents(left, right, box[0], box[2], mask.shape[1])
        down = _tents(top, bottom, box[1], box[3], mask.shape[0])
        pasted[number, top:bottom, left:right] = down @ mask @ across.T >= threshold
    return pasted


def _tents(begin: int, end: int, start: float, stop: float, count: int) -> np.ndarray:
    """Weights (pixels, count) of `count` values spread from `start` to `stop` in the pixels from `begin` to `end`."""
    place = (np.arange(begin, end) + 0.5 - start) / max(stop - start, 1e-6) * count - 0.5
    return (1 - np.abs(place[:, None] - np.arange(count))).clip(0)


def read_picture(path: str | Path) -> np.ndarray:
    """A picture file (H, W, 3), RGB, uint8, turned as its EXIF orientation says.

    Of 16 bits a colour the upper 8 are kept, within a grey level of what OpenCV reads.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it cannot be read, or is grey with more than 8 bits, which Pillow would cut off.
    """
    try:
        with Image.open(path) as file:
            if file.mode.startswith(("I", "F")):
                raise ValueError(f"{path} has more than 8 bits a channel: convert it to 8")
            return np.array(ImageOps.exif_transpose(file).convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(f"no picture at {path}") from None
        raise ValueError(f"{path} cannot be read: {_one_line(error)}") from None


def draw(picture: np.ndarray, found: Detections | Segmentation, classes: list[str]) -> np.ndarray:
    """The picture (H, W, 3), RGB, under what was found in it; beside a segmentation map, a legend."""
    colours = _colours(len(classes))
    font: Any = ImageFont.load_default(max(min(picture.shape[:2]) // 40, 10))
    if isinstance(found, Segmentation):
        blended = (picture + colours[found.labels].astype(np.uint16)) // 2
        return np.hstack([blended.astype(np.uint8), _legend(found.labels, classes, colours, font)])
    drawn = picture.copy()
    areas = (found.boxes[:, 2:] - found.boxes[:, :2]).prod(axis=1)
    order = np.argsort(-areas, kind="stable")  # small ones on top
    for number, inside in zip(order, [] if found.masks is None else found.masks[order], strict=False):
        drawn[inside] = (drawn[inside] + colours[found.labels[number]].astype(np.uint16)) // 2
    canvas = Image.fromarray(drawn)
    pen = ImageDraw.Draw(canvas)
    for number in order:
        outline = tuple(colours[found.labels[number]].tolist())
        pen.rectangle(found.boxes[number].tolist(), outline=outline, width=max(min(picture.shape[:2]) // 300, 1))
    for number in np.argsort(found.scores, kind="stable"):  # the best on top
        colour = colours[found.labels[number]]
        left, top = found.boxes[number, :2].tolist()
        text = f"{classes[found.labels[number]]} {found.scores[number]:.2f}"
        start = (left + 2, max(top - 1.3 * font.size, 0))
        plate = pen.textbbox(start, text, font=font)
        pen.rectangle((left, plate[1] - 2, plate[2] + 2, plate[3] + 2), fill=tuple(colour.tolist()))
        pen.text(start, text, font=font, fill=_ink(colour))
    return np.array(canvas)


def _colours(count: int) -> np.ndarray:
    """Colours (count, 3), RGB, far apart: the golden ratio parts the hues of neighbours."""
    hsv = [
        (number * 0.618034 % 1, 0.85 - 0.2 * (number % 3 == 1), 0.95 - 0.2 * (number % 2)) for number in range(count)
    ]
    return np.array([[round(255 * value) for value in hsv_to_rgb(*one)] for one in hsv], np.uint8).reshape(-1, 3)


def _ink(colour: np.ndarray) -> str:
    return "black" if colour @ np.array([0.299, 0.587, 0.114]) > 140 else "white"


def _legend(labels: np.ndarray, classes: list[str], colours: np.ndarray, font: Any) -> np.ndarray:
    """The classes of a map, largest first, as high as the map."""
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


def to_json(found: Detections | Segmentation, classes: list[str]) -> dict[str, Any]:
    """What was found in plain numbers: `instances`, or the `regions` of classes.

    Masks are COCO's uncompressed run-length code: `counts` of pixels outside, inside, outside ..., down the columns.
    """
    if isinstance(found, Segmentation):
        present = np.unique(found.labels).tolist()
        masks: Any = (found.labels == label for label in present)
        regions = [
            dict(label=label, name=classes[label], pixels=int(mask.sum()), mask=_run_lengths(mask))
            for label, mask in zip(present, masks, strict=True)
        ]
        return dict(regions=regions)
    instances = [
        dict(label=label, name=classes[label], score=round(score, 4), box=[round(side, 2) for side in box])
        for label, score, box in zip(found.labels.tolist(), found.scores.tolist(), found.boxes.tolist(), strict=True)
    ]
    for instance, mask in zip(instances, found.masks if found.masks is not None else (), strict=False):
        instance["mask"] = _run_lengths(mask)
    return dict(instances=instances)


def _run_lengths(mask: np.ndarray) -> dict[str, list[int]]:
    flat = np.concatenate([[False], mask.ravel(order="F")])  # counts begin with pixels outside
    edges = np.flatnonzero(flat[1:] != flat[:-1])
    return dict(size=list(mask.shape), counts=np.diff(edges, prepend=0, append=mask.size).tolist())


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _check_target(path: Path, suffixes: list[str]) -> None:
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"{path}: name it {suffixes[0]}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent}: make it first")


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _summary(found: Detections | Segmentation, classes: list[str]) -> list[str]:
    if isinstance(found, Segmentation):
        shares = np.bincount(found.labels.ravel(), minlength=len(classes)) / found.labels.size
        return [f"{classes[label]:20} {shares[label]:7.2%}" for label in np.argsort(-shares) if shares[label]]
    lines = zip(found.labels, found.scores, found.boxes, strict=True)
    return [
        f"{classes[label]:20} {score:.3f} " + " ".join(f"{side:7.1f}" for side in box) for label, score, box in lines
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="an .onnx file of tools/export.py")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--out", type=Path, metavar="PNG", help="draw what is found over the picture")
    parser.add_argument("--json", type=Path, metavar="JSON", help="write what is found in plain numbers")
    parser.add_argument(
        "--score-thr", type=float, default=0.3, help="least score of a detection (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, help="default: onnxruntime's choice")
    args = parser.parse_args()
    try:
        for path, suffixes in ((args.out, [".png"]), (args.json, [".json"])):
            if path is not None:
                _check_target(path, suffixes)
        picture = read_picture(args.picture)
        model = Model(args.model, args.threads)
        found = model(picture, args.score_thr)
        if args.out:
            drawn = BytesIO()
            Image.fromarray(draw(picture, found, model.classes)).save(drawn, "PNG")
            _write(args.out, drawn.getvalue())
        if args.json:
            _write(args.json, json.dumps(to_json(found, model.classes)).encode())
    except (OSError, ValueError, RuntimeError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    try:
        lines = "\n".join(_summary(found, model.classes))
        print(lines or f"nothing of a score of {args.score_thr} or more", flush=True)
    except BrokenPipeError:  # its reader has left, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's last flush
        return 141  # as of SIGPIPE
    return 0


if __name__ == "__main__":
    sys.exit(main())
