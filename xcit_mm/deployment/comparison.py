"""Comparison of a file's outputs with those of torch or of another file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.structures import InstanceData
from torch import Tensor

from .images import SYNTHETIC_SIZES, preprocess_synthetic, synthetic_image, to_model_input
from .runtime import Detections, Segmentation
from .runtime.results import OUTPUTS, detections_in_image

# Deviation of a map in units of its mean magnitude, of a box in the image's longer side, of a score in the highest.
TOLERANCE = 1e-3
MAX_DIFFERENT_PIXELS = 0.02  # of the pixels of a segmentation map, or of all masks
MAX_UNMATCHED = 0.02  # of the detections
MIN_SCORE = 0.3  # of detections that count for the drift
IOU_THRESHOLD = 0.5  # of a match for the drift
MAP_SIZES = ((1, 203, 330), (2, 256, 128))  # batch, height, width
# Options of a detector for each size of synthetic images, besides the config's, and number of images. With a threshold
# of 0 there are as many detections as allowed, with 1 there is none.
DETECTOR_OPTIONS: tuple[tuple[dict[str, Any], int], ...] = (
    (dict(score_thr=0.0), 1),
    (dict(score_thr=0.0, iou_threshold=0.3, max_per_img=20), 2),
    ({}, 1),
    (dict(score_thr=1.0), 1),
)


def match(distance: np.ndarray) -> list[tuple[int, int]]:
    """Pair rows with columns of a matrix (n, m), the smallest distance first. An infinite distance is never a pair."""
    distance = distance.copy()
    pairs = []
    while distance.size and distance.min() < np.inf:
        i, j = map(int, np.unravel_index(distance.argmin(), distance.shape))
        distance[i], distance[:, j] = np.inf, np.inf
        pairs.append((i, j))
    return pairs


@dataclass
class DetectionComparison:
    """Differences between detections that should be equal up to rounding."""

    boxes: float = 0.0  # largest difference of a coordinate, in the image's longer side
    scores: float = 0.0  # largest difference of a score, in the image's highest score
    detections: int = 0  # of both sides
    unmatched: int = 0
    pixels: int = 0  # in the union of matching masks
    different_pixels: int = 0  # in one of two matching masks alone

    def add(self, found: Detections, expected: Detections, size: tuple[int, int], cut: float) -> None:
        """Compare the detections of one image.

        A match has the same class, and box and score within the tolerance. Scores exceed `cut`. A detection without a
        match does not count if its score is within the tolerance of `cut`, since rounding decides whether it is above.
        """
        top = max(found.scores.max(initial=0), expected.scores.max(initial=0))
        boxes = np.abs(found.boxes[:, None] - expected.boxes).max(axis=2) / max(size)
        scores = np.abs(found.scores[:, None] - expected.scores) / max(top, 1e-12)
        fits = (boxes <= TOLERANCE) & (scores <= TOLERANCE) & (found.labels[:, None] == expected.labels)
        pairs = match(np.where(fits, boxes + scores, np.inf))
        for i, j in pairs:
            self.boxes, self.scores = max(self.boxes, float(boxes[i, j])), max(self.scores, float(scores[i, j]))
            if found.masks is not None and expected.masks is not None:
                self.pixels += int((found.masks[i] | expected.masks[j]).sum())
                self.different_pixels += int((found.masks[i] ^ expected.masks[j]).sum())
        for side, values in enumerate((found.scores, expected.scores)):
            alone = np.delete(values, [pair[side] for pair in pairs])
            unmatched = int((np.abs(alone - cut) > TOLERANCE * top).sum())
            self.unmatched += unmatched
            self.detections += len(pairs) + unmatched

    def lines(self) -> dict[str, str]:
        """Summarize each output for a report.

        Raises:
            RuntimeError: If too much differs. NMS and top-k may decide differently among near ties.
        """
        if not self.detections:
            raise RuntimeError("torch detects nothing in synthetic images, at any score")
        matched = self.detections - self.unmatched
        if self.unmatched > MAX_UNMATCHED * self.detections:
            raise RuntimeError(
                f"{self.unmatched} of {self.detections} detections of the exported model and torch have no match in "
                "the other result"
            )
        if self.different_pixels > MAX_DIFFERENT_PIXELS * self.pixels:
            share = self.different_pixels / self.pixels
            raise RuntimeError(f"masks of the exported model differ from torch's in {share:.1%} of pixels")
        lines = dict(
            boxes=f"within {self.boxes:.1e} of torch, in units of the image's longer side",
            scores=f"within {self.scores:.1e} of torch, in units of the highest",
            labels=f"{matched} of {self.detections} detections match the other result",
        )
        if self.pixels:
            lines["masks"] = f"{self.different_pixels} of {self.pixels} pixels differ from torch's"
        return lines


@dataclass
class Drift:
    """Differences between predictions that only resemble each other, such as those in float32 and in float16.

    Attributes:
        compared: Number of pixels, or of detections with a score from 0.3 on both sides.
        different: Number of pixels of another class, or of detections without a match. A match has the same class and
            overlaps by half (IoU).
        shift: Largest distance of a side of a box from its match's, in pixels; None for a segmentor.
    """

    compared: int = 0
    different: int = 0
    shift: float | None = None

    def add(self, found: Detections | Segmentation, expected: Detections | Segmentation) -> None:
        """Compare two predictions of one image."""
        if isinstance(found, Segmentation) or isinstance(expected, Segmentation):
            self.compared += found.labels.size
            self.different += int((found.labels != expected.labels).sum())
            return
        from mmdet.structures.bbox import bbox_overlaps

        overlaps = bbox_overlaps(torch.from_numpy(found.boxes), torch.from_numpy(expected.boxes)).numpy()
        fits = (overlaps >= IOU_THRESHOLD) & (found.labels[:, None] == expected.labels)
        pairs = match(np.where(fits, 1 - overlaps, np.inf))
        for side, scores in enumerate((found.scores, expected.scores)):
            confident = scores >= MIN_SCORE
            self.compared += int(confident.sum())
            self.different += int(np.delete(confident, [pair[side] for pair in pairs]).sum())
        shifts = [
            float(np.abs(found.boxes[i] - expected.boxes[j]).max()) for i, j in pairs if expected.scores[j] >= MIN_SCORE
        ]
        self.shift = max([self.shift or 0.0, *shifts])

    @property
    def share(self) -> float:
        """Share of the compared pixels or detections that differ."""
        return self.different / max(self.compared, 1)

    def exceeds(self, max_detections: float) -> bool:
        """Return whether the share is too large: for a segmentor above a fiftieth, for a detector the given share."""
        return self.share > (MAX_DIFFERENT_PIXELS if self.shift is None else max_detections)

    def line(self) -> str:
        """Summarize the differences for a report."""
        if self.shift is None:
            return f"{self.share:.2%} of the pixels change class"
        return f"{self.different} of {self.compared} detections have no match, boxes move by {self.shift:.2f} px"


def to_instances(model: Any, outputs: list[Tensor], meta: dict[str, Any]) -> InstanceData:
    """Convert a detector file's outputs to mmdet's detections, as the runtime does.

    Boxes and masks (n, H, W) are in pixels of the original image, of `ori_shape` and `scale_factor` in `meta`.
    """
    arrays = dict(zip(OUTPUTS, (output.numpy() for output in outputs), strict=False))
    threshold = model.roi_head.test_cfg.get("mask_thr_binary") if model.with_mask else None
    found = detections_in_image(arrays, meta["ori_shape"][:2], meta["scale_factor"], threshold)
    names = ("bboxes", "scores", "labels", "masks")
    return InstanceData(**{name: torch.from_numpy(x) for name, x in zip(names, found, strict=True) if x is not None})


def compare_files(model: Any, images: list[Tensor], found: Callable, expected: Callable) -> Drift:
    """Compare two files of one model on images (1, C, H, W).

    Raises:
        RuntimeError: If a value of the first is not finite.
    """
    drift = Drift()
    for image in images:
        outputs = found(image)
        if not all(bool(output.isfinite().all()) for output in outputs):
            raise RuntimeError("the file returns values that are not finite: leave --fp16 and --int8 out")
        drift.add(_to_prediction(model, outputs), _to_prediction(model, expected(image)))
    return drift


def _to_prediction(model: Any, outputs: list[Tensor]) -> Detections | Segmentation:
    if len(outputs) > 1:
        boxes, scores, classes = (output.numpy() for output in outputs[:3])
        return Detections(boxes, scores, classes, None)
    (logits,) = outputs
    labels = logits.argmax(1) if logits.shape[1] > 1 else logits.sigmoid() > model.decode_head.threshold
    return Segmentation(labels[0].numpy())


def to_detections(instances: InstanceData) -> Detections:
    """Convert mmdet's detections to the runtime's."""
    values = instances.numpy()
    return Detections(values.bboxes, values.scores, values.labels, values.get("masks"))


def infer_segmentor(cfg: Config, model: Any, run: Callable, data: dict[str, Any]) -> Tensor:
    """Return the logits (B, classes, H, W) of mmseg's own inference on a preprocessed batch, computed by a file."""

    def encode_decode(image: Tensor, metas: list[dict]) -> Tensor:
        (logits,) = _as_sequence(run(to_model_input(data | dict(inputs=image), cfg)))
        return F.pad(logits, (0, image.shape[3] - logits.shape[3], 0, image.shape[2] - logits.shape[2]))

    with patch.object(model, "encode_decode", encode_decode):
        return model.inference(data["inputs"], [sample.metainfo for sample in data["data_samples"]])


def compare_maps(
    cfg: Config, model: Any, names: list[str], run: Callable, channels: int, fixed: Any = None
) -> dict[str, str]:
    """Compare an exported backbone or segmentor with torch on synthetic images of other sizes than the traced one.

    A `fixed` size, height and width, is that of the file. The images of a segmentor are preprocessed and predicted by
    mmseg's own code. Returns a summary of each output.

    Raises:
        RuntimeError: If an output deviates.
    """
    generator, deviations = torch.Generator().manual_seed(0), dict.fromkeys(names, 0.0)
    for batch, height, width in [(1, *fixed)] if fixed else MAP_SIZES:
        image = torch.cat([synthetic_image(channels, height, width, generator) for _ in range(batch)])
        if hasattr(model, "encode_decode"):
            data = preprocess_synthetic(cfg, model, image)
            metas = [sample.metainfo for sample in data["data_samples"]]
            outputs = infer_segmentor(cfg, model, run, data), model.inference(data["inputs"], metas)
            pairs = [tuple(logits[..., :height, :width] for logits in outputs)]
        else:
            pairs = list(zip(_as_sequence(run(image)), model(image), strict=True))
        for name, (found, expected) in zip(names, pairs, strict=True):
            if found.shape != expected.shape:
                raise RuntimeError(f"{name} of the exported model is {tuple(found.shape)}, not {tuple(expected.shape)}")
            deviation = ((found - expected).abs().max() / expected.abs().mean()).item()
            if not deviation <= TOLERANCE:  # or not a number
                raise RuntimeError(f"{name} of the exported model deviates by {deviation:.1e} from torch")
            deviations[name] = max(deviations[name], deviation)
    return {name: f"within {value:.1e} of torch, in units of its mean magnitude" for name, value in deviations.items()}


def _as_sequence(outputs: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    return (outputs,) if isinstance(outputs, Tensor) else outputs


def compare_detector(
    cfg: Config, model: Any, run: Callable, channels: int, fixed: tuple[int, int] | None = None
) -> DetectionComparison:
    """Compare an exported detector, a function of images and options, with mmdet's own preprocessing and `predict`.

    See `compare_maps`.
    """
    comparison, generator = DetectionComparison(), torch.Generator().manual_seed(0)
    test_cfg = model.roi_head.test_cfg if hasattr(model, "roi_head") else model.bbox_head.test_cfg
    cases = zip(SYNTHETIC_SIZES, DETECTOR_OPTIONS, strict=True)
    for size, (options, batch) in [(fixed, ({}, 1))] * 4 if fixed else cases:
        images = torch.cat([synthetic_image(channels, *size, generator) for _ in range(batch)])
        data = preprocess_synthetic(cfg, model, images)
        outputs = run(to_model_input(data, cfg), **options)
        changed = dict(score_thr=test_cfg.get("score_thr", 0)) | options
        iou_threshold = changed.pop("iou_threshold", test_cfg.nms.iou_threshold)
        with patch.dict(test_cfg.nms, iou_threshold=iou_threshold), patch.dict(test_cfg, changed), torch.no_grad():
            samples = model.predict(data["inputs"], data["data_samples"], rescale=False)
            max_num = test_cfg.max_per_img
        for number, sample in enumerate(samples):
            own = [output[(outputs[3] == number) & (outputs[2] >= 0)] for output in outputs]  # without padding
            found = to_detections(to_instances(model, own, sample.metainfo))
            expected = to_detections(sample.pred_instances)
            # With the maximum number, detections of lower scores have been cut off.
            cut = expected.scores.min() if len(expected.scores) == max_num else changed["score_thr"]
            comparison.add(found, expected, size, float(cut))
    return comparison
