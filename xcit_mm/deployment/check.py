"""Comparison of a file with what mmdet or mmseg predict."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .run import paste_mask

SHAPES = ((1, 203, 330), (3, 256, 128))  # batch, height, width: other sizes than the traced one
TOLERANCE = 3e-4  # of a value, in units of the output's largest
MAX_UNMATCHED = 0.02  # of the objects, since rounding decides among near ties
MAX_OTHER_PIXELS = 1e-3  # of the masks, since rounding decides at the threshold

Arrays = dict[str, np.ndarray]


def compare(path: Path, model: Any, outputs: list[str], channels: int) -> list[str]:
    """Compare a file with the predictions of its model on noise: a detector with mmdet's `predict`
    at any score, a segmentor with mmseg's logits of whole images, a backbone with its maps.

    Args:
        model: The model of mmdet or mmseg, whose threshold of scores becomes 0, or a backbone.
        outputs: Names of the file's outputs.
        channels: Channels of its input.

    Returns:
        Lines with deviations.

    Raises:
        RuntimeError: If the file deviates by more than the constants above allow.
    """
    from onnxruntime import InferenceSession, OrtValue, SessionOptions

    options = SessionOptions()
    if "boxes" in outputs:
        _test_cfg(model).score_thr = 0.0
        threshold = OrtValue.ortvalue_from_numpy(np.zeros((1, 1), np.float32))
        options.add_initializer("score_thr", threshold)
    session = InferenceSession(path, options)
    deviations: dict[str, float] = {}
    generator = torch.Generator().manual_seed(0)
    for batch, height, width in SHAPES:
        coarse = torch.randn(batch, channels, height // 16, width // 16, generator=generator)
        image = F.interpolate(coarse, (height, width), mode="bilinear")
        arrays = session.run(None, {"image": image.numpy()})
        actual = dict(zip(outputs, arrays, strict=True))
        expected = _predict(model, image, outputs)
        if "boxes" in outputs:
            found = dict(objects=_compare_objects(actual, expected, model))
        else:
            found = {
                name: float(np.abs(actual[name] - target).max() / np.abs(target).max())
                for name, target in expected.items()
            }
        for name, deviation in found.items():
            if not deviation <= TOLERANCE:  # or not a number
                raise RuntimeError(f"{name} of the file deviate by {deviation:.1e} from torch")
            deviations[name] = max(deviations.get(name, 0.0), deviation)
    return [
        f"{name}: within {deviation:.1e} of torch, in units of its largest"
        for name, deviation in deviations.items()
    ]


def _test_cfg(model: Any) -> Any:
    head = model.roi_head if hasattr(model, "roi_head") else model.bbox_head
    return head.test_cfg


def _predict(model: Any, image: Tensor, outputs: list[str]) -> Arrays:
    """Return the outputs of a model for normalised images (B, C, H, W), with masks (n, H, W)."""
    height, width = image.shape[2:]
    meta: dict[str, Any] = dict(
        img_shape=(height, width), ori_shape=(height, width), scale_factor=(1.0, 1.0)
    )
    if "logits" in outputs:
        return dict(logits=model.encode_decode(image, [meta]).numpy())
    if "boxes" not in outputs:
        return dict(zip(outputs, map(np.asarray, model(image)), strict=True))
    from mmdet.structures import DetDataSample

    divisor = model.data_preprocessor.pad_size_divisor
    padding = (0, -width % divisor, 0, -height % divisor)
    padded = F.pad(image, padding, value=float(model.data_preprocessor.pad_value))
    meta["batch_input_shape"] = padded.shape[2:]
    samples = [DetDataSample(metainfo=meta) for _ in image]
    detected: dict[str, list[np.ndarray]] = {name: [] for name in outputs}
    for number, sample in enumerate(model.predict(padded, samples, rescale=False)):
        instances = sample.pred_instances.numpy()
        detected["boxes"].append(instances.bboxes)
        detected["scores"].append(instances.scores)
        detected["labels"].append(instances.labels)
        detected["images"].append(np.full(len(instances), number))
        if "masks" in outputs:
            detected["masks"].append(instances.masks)
    return {name: np.concatenate(arrays) for name, arrays in detected.items()}


def _compare_objects(actual: Arrays, expected: Arrays, model: Any) -> float:
    """Return the largest deviation of an object of the file from the same object of mmdet."""
    if not len(actual["boxes"]) or not len(expected["boxes"]):
        raise RuntimeError("the model detects nothing in noise, at any score")
    # Another label or image is always too far.
    units = np.array([*[np.abs(expected["boxes"]).max()] * 4, expected["scores"].max(), 1, 1])
    columns = ("boxes", "scores", "labels", "images")
    rows = np.column_stack([actual[name] for name in columns]) / units
    targets = np.column_stack([expected[name] for name in columns]) / units
    distance = np.abs(rows[:, None] - targets).max(axis=2)
    nearest = distance.min(axis=1)
    matched = np.flatnonzero(nearest <= TOLERANCE)
    missed = np.flatnonzero(distance.min(axis=0) > TOLERANCE)
    unmatched = len(rows) - len(matched) + len(missed)
    if unmatched > MAX_UNMATCHED * sum(distance.shape):
        raise RuntimeError(f"{unmatched} objects of file and mmdet have no match")
    if "masks" in expected:
        threshold = _test_cfg(model).mask_thr_binary
        other = 0
        for number in matched:  # pasted as `run.py` does
            mask = expected["masks"][distance[number].argmin()]
            cells = actual["masks"][number]
            pasted = paste_mask(cells, actual["boxes"][number], mask.shape, threshold)
            other += int((pasted != mask).sum())
        if other > MAX_OTHER_PIXELS * max(int(expected["masks"].sum()), 1):
            raise RuntimeError(f"{other} pixels of the masks of file and mmdet differ")
    return float(nearest[matched].max())
