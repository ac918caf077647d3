"""Comparison of a file with the module that it was traced from."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

SHAPES = ((1, 203, 330), (3, 256, 128))  # batch, height, width: other sizes than the traced one
TOLERANCE = 3e-4  # of a value, in units of the output's largest
MAX_UNMATCHED = 0.02  # of the detections, since rounding decides among near ties


def compare(path: Path, module: Any, channels: int) -> list[str]:
    """Compare a file with the module that it was traced from, on noise.

    Objects of any score are compared, since noise has few above the threshold of a config: that of
    the module becomes 0.

    Returns:
        For each output a line with its deviation.

    Raises:
        RuntimeError: If a value deviates by more than 3e-4 of the largest, or more than 2 % of the
            detections have no match of the same class, at the same position, with the same score.
    """
    from onnxruntime import InferenceSession, OrtValue, SessionOptions

    options = SessionOptions()
    if "boxes" in module.outputs:
        module.score_thr.zero_()
        threshold = OrtValue.ortvalue_from_numpy(module.score_thr.numpy())
        options.add_initializer("score_thr", threshold)
    session = InferenceSession(path, options)
    deviations = dict.fromkeys(module.outputs, 0.0)
    generator = torch.Generator().manual_seed(0)
    for batch, height, width in SHAPES:
        coarse = torch.randn(batch, channels, height // 16, width // 16, generator=generator)
        image = F.interpolate(coarse, (height, width), mode="bilinear")
        outputs = module(image)
        tensors = [outputs] if isinstance(outputs, Tensor) else outputs
        expected = [tensor.numpy() for tensor in tensors]
        actual = session.run(None, {"image": image.numpy()})
        if "boxes" in deviations:
            actual, expected = _match_detections(actual, expected)
        for name, output, target in zip(deviations, actual, expected, strict=True):
            deviation = float(np.abs(output - target).max() / max(np.abs(target).max(), 1e-12))
            if not deviation <= TOLERANCE:  # or not a number
                raise RuntimeError(f"{name} of the file deviates by {deviation:.1e} from torch")
            deviations[name] = max(deviations[name], deviation)
    return [
        f"{name}: within {deviation:.1e} of torch, in units of its largest"
        for name, deviation in deviations.items()
    ]


def _match_detections(
    actual: list[np.ndarray], expected: list[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the outputs of the detections that file and module have in common, in one order."""
    if not len(actual[0]) or not len(expected[0]):
        raise RuntimeError("the model detects nothing in noise, at any score")
    # Boxes, scores, labels and images. Another label or image is always too far.
    units = np.array([*[np.abs(expected[0]).max()] * 4, expected[1].max(), 1, 1])
    rows = np.column_stack(actual[:4]) / units
    targets = np.column_stack(expected[:4]) / units
    distance = np.abs(rows[:, None] - targets).max(axis=2)
    is_matched = distance.min(axis=1) <= TOLERANCE
    is_missed = distance.min(axis=0) > TOLERANCE
    unmatched = int((~is_matched).sum() + is_missed.sum())
    total = sum(distance.shape)
    if unmatched > MAX_UNMATCHED * total:
        raise RuntimeError(f"{unmatched} of {total} detections of file and torch have no match")
    nearest = distance.argmin(axis=1)[is_matched]
    return [output[is_matched] for output in actual], [output[nearest] for output in expected]
