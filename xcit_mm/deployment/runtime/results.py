"""Results of a model for one image, and their form in JSON and in text."""

from typing import Any, NamedTuple

import numpy as np

from .images import paste_masks

OUTPUTS = ("boxes", "scores", "labels", "images", "masks")
"""Outputs of a detector's file."""
OPTIONS: dict[str, Any] = dict(score_thr=np.float32, iou_threshold=np.float32, max_per_img=np.int64)
"""Optional inputs of a detector's file, with their types."""


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


def option_inputs(options: dict[str, float]) -> dict[str, np.ndarray]:
    """Return options of a detector's file as its optional inputs, (1,)."""
    return {name: np.array([value], OPTIONS[name]) for name, value in options.items()}


def detections_in_image(
    outputs: dict[str, np.ndarray], size: tuple[int, int], scale: tuple[float, float], mask_threshold: Any
) -> Detections:
    """Convert `OUTPUTS` for an image whose width and height were multiplied by `scale` to detections in its pixels."""
    boxes, masks = outputs["boxes"] / np.array([*scale, *scale], np.float32), None
    if "masks" in outputs:
        masks = paste_masks(outputs["masks"], boxes, *size, mask_threshold)
    # After the masks, which fill whole boxes. Rounding may place a side of a box beyond the image.
    boxes = boxes.clip(0, [size[1], size[0]] * 2).astype(np.float32)
    return Detections(boxes, outputs["scores"], outputs["labels"], masks)


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


def summarize(results: Detections | Segmentation, classes: list[str]) -> list[str]:
    """Return a line of text for each detection or class of a map."""
    if isinstance(results, Segmentation):
        shares = np.bincount(results.labels.ravel(), minlength=len(classes)) / results.labels.size
        return [f"{classes[label]:20} {shares[label]:7.2%}" for label in np.argsort(-shares) if shares[label]]
    return [
        f"{classes[label]:20} {score:.3f} " + " ".join(f"{side:7.1f}" for side in box)
        for label, score, box in zip(results.labels, results.scores, results.boxes, strict=True)
    ]
