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
MAX_UNMATCHED = 0.02  # of the detections, since rounding decides among near ties
MAX_OTHER_PIXELS = 1e-3  # of the masks, since rounding decides at the threshold

Arrays = dict[str, np.ndarray]


def compare(path: Path, model: Any, outputs: list[str], channels: int) -> list[str]:
    """Compare a file with the predictions of its model on noise: a detector with mmdet's `predict`,
    a segmentor with mmseg's logits of whole images, a backbone with its maps.

    Objects of any score are compared, since noise has few above the threshold of a config: that of
    the model becomes 0.

    Args:
        model: The model of mmdet or mmseg, or a backbone, as the checkpoint filled it.
        outputs: Names of the file's outputs.
        channels: Channels of its input.

    Returns:
        For each output a line with its deviation.

    Raises:
        RuntimeError: If a value deviates by more than 3e-4 of the largest, more than 2 % of the
            detections have no match of the same class, at the same position, with the same score,
            or more than 0.1 % of the pixels of the masks differ.
    """
    from onnxruntime import InferenceSession, OrtValue, SessionOptions

    options = SessionOptions()
    if "boxes" in outputs:
        head = model.roi_head if hasattr(model, "roi_head") else model.bbox_head
        head.test_cfg.score_thr = 0.0
        threshold = OrtValue.ortvalue_from_numpy(np.zeros((1, 1), np.float32))
        options.add_initializer("score_thr", threshold)
    session = InferenceSession(path, options)
    deviations = dict.fromkeys(outputs, 0.0)
    generator = torch.Generator().manual_seed(0)
    for batch, height, width in SHAPES:
        coarse = torch.randn(batch, channels, height // 16, width // 16, generator=generator)
        image = F.interpolate(coarse, (height, width), mode="bilinear")
        arrays = session.run(None, {"image": image.numpy()})
        actual = dict(zip(outputs, arrays, strict=True))
        if "boxes" in outputs:
            expected = _detect(model, image)
            actual, expected = _match_detections(actual, expected)
            if "masks" in outputs:
                _compare_masks(actual.pop("masks"), expected.pop("masks"), actual["boxes"], head)
        elif "logits" in outputs:
            expected = {"logits": model.encode_decode(image, [dict(img_shape=(height, width))])}
        else:
            expected = dict(zip(outputs, model(image), strict=True))
        for name, target in expected.items():
            target = np.asarray(target)
            deviation = float(
                np.abs(actual[name] - target).max() / max(np.abs(target).max(), 1e-12)
            )
            if not deviation <= TOLERANCE:  # or not a number
                raise RuntimeError(f"{name} of the file deviates by {deviation:.1e} from torch")
            deviations[name] = max(deviations[name], deviation)
    return [
        f"{name}: within {deviation:.1e} of torch, in units of its largest"
        for name, deviation in deviations.items()
    ]


def _detect(model: Any, image: Tensor) -> Arrays:
    """Return what mmdet's detector predicts in normalised images (B, C, H, W): boxes, scores,
    labels, images and masks (n, H, W) of all objects.
    """
    from mmdet.structures import DetDataSample

    height, width = image.shape[2:]
    divisor = model.data_preprocessor.pad_size_divisor
    padding = (0, -width % divisor, 0, -height % divisor)
    padded = F.pad(image, padding, value=float(model.data_preprocessor.pad_value))
    meta = dict(
        img_shape=(height, width),
        ori_shape=(height, width),
        batch_input_shape=tuple(padded.shape[2:]),
        scale_factor=(1.0, 1.0),
    )
    samples = [DetDataSample(metainfo=meta) for _ in image]
    objects = [sample.pred_instances for sample in model.predict(padded, samples, rescale=False)]
    columns = dict(boxes="bboxes", scores="scores", labels="labels")
    if model.with_mask:
        columns["masks"] = "masks"
    detected = {
        name: np.concatenate([instances[column].numpy() for instances in objects])
        for name, column in columns.items()
    }
    detected["images"] = np.repeat(np.arange(len(image)), [len(each) for each in objects])
    return detected


def _match_detections(actual: Arrays, expected: Arrays) -> tuple[Arrays, Arrays]:
    """Return the detections that file and mmdet have in common, in one order."""
    columns = ("boxes", "scores", "labels", "images")
    if not len(actual["boxes"]) or not len(expected["boxes"]):
        raise RuntimeError("the model detects nothing in noise, at any score")
    # Another label or image is always too far.
    units = np.array([*[np.abs(expected["boxes"]).max()] * 4, expected["scores"].max(), 1, 1])
    rows = np.column_stack([actual[name] for name in columns]) / units
    targets = np.column_stack([expected[name] for name in columns]) / units
    distance = np.abs(rows[:, None] - targets).max(axis=2)
    is_matched = distance.min(axis=1) <= TOLERANCE
    is_missed = distance.min(axis=0) > TOLERANCE
    unmatched = int((~is_matched).sum() + is_missed.sum())
    total = sum(distance.shape)
    if unmatched > MAX_UNMATCHED * total:
        raise RuntimeError(f"{unmatched} of {total} detections of file and mmdet have no match")
    nearest = distance.argmin(axis=1)[is_matched]
    return (
        {name: array[is_matched] for name, array in actual.items()},
        {name: array[nearest] for name, array in expected.items()},
    )


def _compare_masks(actual: np.ndarray, expected: np.ndarray, boxes: np.ndarray, head: Any) -> None:
    """Compare probabilities (n, 28, 28) of a file, pasted as `run.py` does, with mmdet's masks
    (n, H, W).
    """
    threshold = head.test_cfg.mask_thr_binary
    other = 0
    for cells, box, mask in zip(actual, boxes, expected, strict=True):
        other += int((paste_mask(cells, box, mask.shape, threshold) != mask).sum())
    if other > MAX_OTHER_PIXELS * max(int((expected != 0).sum()), 1):
        raise RuntimeError(f"{other} pixels of the masks of file and mmdet differ")
