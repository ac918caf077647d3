"""Comparison of an exported file with what mmdet or mmseg predict."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.structures import InstanceData
from onnxruntime import InferenceSession, OrtValue, SessionOptions
from torch import Tensor

from .detectors import test_cfg_of
from .run import paste_mask

SHAPES = ((1, 203, 330), (3, 256, 128))  # batch, height, width: other sizes than the traced one
TOLERANCE = 3e-4  # largest deviation of a value, in units of the output's largest value
MAX_UNMATCHED = 0.02  # share of the objects, since rounding decides among near ties
MAX_OTHER_PIXELS = 1e-3  # share of the masks' pixels, since rounding decides at the threshold

Arrays = dict[str, np.ndarray]


def compare(path: Path, model: Any) -> float:
    """Compare a file with its model by `largest_deviation`."""
    options = SessionOptions()
    if _is_detector(model):  # objects of any score are compared
        threshold = OrtValue.ortvalue_from_numpy(np.zeros((1, 1), np.float32))
        options.add_initializer("score_thr", threshold)
    session = InferenceSession(path, options)
    names = [output.name for output in session.get_outputs()]

    def run(image: Tensor) -> Arrays:
        return dict(zip(names, session.run(None, {"image": image.numpy()}), strict=True))

    return largest_deviation(run, model, session.get_inputs()[0].shape[1])


def largest_deviation(run: Callable[[Tensor], Arrays], model: Any, channels: int) -> float:
    """Compare what a function returns for noise with what mmdet or mmseg predict.

    A detector's objects are compared whatever their score is, a segmentor's logits with those for
    whole images.

    Args:
        run: Function that returns a file's outputs, by name, for normalised images (B, C, H, W).
        model: The model of mmdet or mmseg.
        channels: Number of channels of the images.

    Returns:
        The largest deviation, in units of an output's largest value.

    Raises:
        RuntimeError: If the outputs deviate by more than the constants above allow.
    """
    generator = torch.Generator().manual_seed(0)
    deviations = []
    for batch, height, width in SHAPES:
        coarse = torch.randn(batch, channels, height // 16, width // 16, generator=generator)
        image = F.interpolate(coarse, (height, width), mode="bilinear")
        actual = run(image)
        if _is_detector(model):
            with _any_score(test_cfg_of(model)):
                expected = _detect(model, image)
            deviations.append(_compare_objects(actual, expected, model))
        else:
            logits = model.encode_decode(image, [_meta(image)]).numpy()
            deviations.append(np.abs(actual["logits"] - logits).max() / np.abs(logits).max())
    largest = float(np.max(deviations))
    if not largest <= TOLERANCE:  # or not a number
        raise RuntimeError(f"the file deviates by {largest:.1e} from torch")
    return largest


def _is_detector(model: Any) -> bool:
    return not hasattr(model, "encode_decode")


@contextmanager
def _any_score(test_cfg: Any) -> Iterator[None]:
    """Let a detector with these options predict objects of any score in the block."""
    former = test_cfg.get("score_thr", 0.0)
    test_cfg.score_thr = 0.0
    try:
        yield
    finally:
        test_cfg.score_thr = former


def _meta(image: Tensor) -> dict[str, Any]:
    """Return the metadata that mmdet and mmseg expect for images that were not resized."""
    size = tuple(image.shape[2:])
    return dict(img_shape=size, ori_shape=size, scale_factor=(1.0, 1.0))


def _detect(model: Any, image: Tensor) -> Arrays:
    """Return mmdet's objects in normalised images, with masks (n, H, W)."""
    from mmdet.structures import DetDataSample

    height, width = image.shape[2:]
    divisor = model.data_preprocessor.pad_size_divisor
    padding = (0, -width % divisor, 0, -height % divisor)
    padded = F.pad(image, padding, value=float(model.data_preprocessor.pad_value))
    meta = dict(_meta(image), batch_input_shape=tuple(padded.shape[2:]))
    samples = [DetDataSample(metainfo=meta) for _ in image]
    samples = model.predict(padded, samples, rescale=False)
    for number, sample in enumerate(samples):
        sample.pred_instances.images = torch.full_like(sample.pred_instances.labels, number)
    objects = InstanceData.cat([sample.pred_instances for sample in samples]).numpy()
    return dict(objects.items(), boxes=objects.bboxes)


def _compare_objects(actual: Arrays, expected: Arrays, model: Any) -> float:
    """Return the largest deviation of an object of the file from the same object of mmdet."""
    # Another label or image is always too far.
    units = np.array([*[np.abs(expected["boxes"]).max()] * 4, expected["scores"].max(), 1, 1])
    columns = ("boxes", "scores", "labels", "images")
    rows = np.column_stack([actual[name] for name in columns]) / units
    targets = np.column_stack([expected[name] for name in columns]) / units
    distance = np.abs(rows[:, None] - targets).max(axis=2)
    nearest = distance.min(axis=1)
    is_matched = nearest <= TOLERANCE
    unmatched = np.sum(~is_matched) + np.sum(distance.min(axis=0) > TOLERANCE)
    if unmatched > MAX_UNMATCHED * sum(distance.shape):
        raise RuntimeError(
            f"{unmatched} objects of the file or of mmdet have no match in the other"
        )
    if "masks" in expected:
        threshold = test_cfg_of(model).mask_thr_binary
        other = 0
        for number in np.flatnonzero(is_matched):
            mask = expected["masks"][distance[number].argmin()]
            cells = actual["masks"][number]
            pasted = paste_mask(cells, actual["boxes"][number], mask.shape, threshold)
            other += int((pasted != mask).sum())
        if other > MAX_OTHER_PIXELS * expected["masks"].sum():
            raise RuntimeError(f"{other} pixels differ between the masks of the file and of mmdet")
    return float(nearest[is_matched].max())
