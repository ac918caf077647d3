"""Comparison of a file with the module that it was traced from, and its scores on the config's test
set.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.structures import InstanceData
from torch import Tensor, nn

from ..utils.configs import data_sets

SHAPES = ((1, 203, 330), (3, 256, 128))  # batch, height, width: other sizes than the traced one
TOLERANCE = 3e-4  # of a value, in units of the output's largest
MAX_UNMATCHED = 0.02  # of the detections, since rounding decides among near ties


def compare(path: Path, module: Any, channels: int) -> list[str]:
    """Compare a file with the module that it was traced from, on noise.

    Returns:
        For each output a line with its deviation.

    Raises:
        RuntimeError: If a value deviates by more than 3e-4 of the largest, or more than 2 % of the
            detections have no match of the same class, at the same place, with the same score.
    """
    from onnxruntime import InferenceSession

    session, deviations = InferenceSession(path), dict.fromkeys(module.outputs, 0.0)
    generator = torch.Generator().manual_seed(0)
    for batch, height, width in SHAPES:
        coarse = torch.randn(batch, channels, height // 16, width // 16, generator=generator)
        image = F.interpolate(coarse, (height, width), mode="bilinear")
        outputs = module(image)
        expected = [
            output.numpy() for output in ([outputs] if isinstance(outputs, Tensor) else outputs)
        ]
        found = session.run(None, {"image": image.numpy()})
        if "boxes" in deviations:
            found, expected = _matches(found, expected)
        for name, values, target in zip(deviations, found, expected, strict=True):
            deviation = float(np.abs(values - target).max() / max(np.abs(target).max(), 1e-12))
            if not deviation <= TOLERANCE:  # or not a number
                raise RuntimeError(f"{name} of the file deviates by {deviation:.1e} from torch")
            deviations[name] = max(deviations[name], deviation)
    return [
        f"{name}: within {value:.1e} of torch, in units of its largest"
        for name, value in deviations.items()
    ]


def _matches(
    found: list[np.ndarray], expected: list[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the outputs of those detections that both sides have, in the same order."""
    if not len(found[0]) or not len(expected[0]):
        raise RuntimeError("the model detects nothing in noise, at any score")
    # Boxes, scores, labels and images. Another label or image is always too far.
    units = np.array([*[np.abs(expected[0]).max()] * 4, expected[1].max(), 1, 1])
    rows, targets = (np.column_stack(side[:4]) / units for side in (found, expected))
    distance = np.abs(rows[:, None] - targets).max(axis=2)
    matched = distance.min(axis=1) <= TOLERANCE
    unmatched = int((~matched).sum() + (distance.min(axis=0) > TOLERANCE).sum())
    if unmatched > MAX_UNMATCHED * sum(distance.shape):
        raise RuntimeError(
            f"{unmatched} of {sum(distance.shape)} detections of file and torch have no match"
        )
    return [values[matched] for values in found], [
        values[distance.argmin(1)[matched]] for values in expected
    ]


def evaluate_files(
    cfg: Config, model: Any, files: Mapping[str, Path], count: int | None
) -> list[str]:
    """Score a model and its files, by name, on the first images of the test set. Return a line for
    each metric.
    """
    scores = {"torch": _score(cfg, model, count)}
    scores |= {name: _score(cfg, _in_session(model, path), count) for name, path in files.items()}
    texts = {
        metric: [f"{name} {found[metric]:.4f}" for name, found in scores.items()]
        for metric in scores["torch"]
    }
    return [f"{metric}: {', '.join(text)}" for metric, text in texts.items()]


def _score(cfg: Config, model: nn.Module, count: int | None) -> dict[str, float]:
    """Return the metrics of mmengine's test of a model on the first `count` images of each test
    set, or on all.
    """
    cfg = copy.deepcopy(cfg)
    for dataset in data_sets(cfg, "test"):
        dataset["indices"] = count
    parts = {
        name: cfg[name]
        for name in ("test_dataloader", "test_evaluator", "test_cfg", "default_scope")
    }
    with TemporaryDirectory() as folder:
        runner = Runner(model, folder, **parts, experiment_name=Path(folder).name)
        tested = runner.test_loop.dataloader.dataset
        for metric in runner.test_loop.evaluator.metrics:
            if hasattr(metric, "img_ids"):  # CocoMetric would count all other images as missed
                metric.img_ids = [
                    tested.get_data_info(number)["img_id"] for number in range(len(tested))
                ]
        return {name: float(value) for name, value in runner.test().items()}


def _in_session(model: Any, path: Path) -> Any:
    """Return a copy of a model that predicts by a file."""
    from onnxruntime import InferenceSession

    from .run import to_objects

    session, model = InferenceSession(path), copy.copy(model)
    names = [output.name for output in session.get_outputs()]

    def run(images: Tensor) -> dict[str, np.ndarray]:
        return dict(
            zip(names, session.run(None, {"image": images.cpu().contiguous().numpy()}), strict=True)
        )

    def predict(images: Tensor, samples: list[Any], rescale: bool = True) -> list[Any]:
        threshold = model.roi_head.test_cfg.get("mask_thr_binary") if model.with_mask else None
        for image, sample in zip(images, samples, strict=True):
            height, width = sample.img_shape[:2]  # the file pads it
            scale = sample.get("scale_factor", (1.0, 1.0))
            found = to_objects(
                run(image[None, :, :height, :width]), sample.ori_shape[:2], scale, threshold
            )
            found["bboxes"] = found.pop("boxes")
            sample.pred_instances = InstanceData(
                **{key: torch.from_numpy(value) for key, value in found.items()}
            )
        return samples

    if hasattr(model, "encode_decode"):
        model.encode_decode = lambda images, metas: torch.from_numpy(run(images)["logits"]).to(
            images.device
        )
    else:
        model.predict = predict
    return model
