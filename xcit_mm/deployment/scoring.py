"""Scores of a model and of its files on the test set of a config."""

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.structures import InstanceData
from onnxruntime import InferenceSession
from torch import Tensor, nn

from ..utils.configs import data_sets
from .run import to_objects


def evaluate_file(cfg: Config, model: Any, path: Path, count: int) -> list[str]:
    """Return a line for each metric with the scores of a model and of its ONNX file, on the first
    `count` images of each test set.
    """
    of_torch = _score(cfg, model, count)
    of_file = _score(cfg, _copy_with_onnx(model, path), count)
    return [
        f"{name}: torch {score:.4f}, file {of_file[name]:.4f}" for name, score in of_torch.items()
    ]


def _score(cfg: Config, model: nn.Module, count: int) -> dict[str, float]:
    """Return the metrics of mmengine's test on the first `count` images of each set."""
    cfg = copy.deepcopy(cfg)
    for dataset in data_sets(cfg, "test"):
        dataset["indices"] = count
    keys = ("test_dataloader", "test_evaluator", "test_cfg", "default_scope")
    options = {key: cfg[key] for key in keys}
    with TemporaryDirectory() as folder:
        runner = Runner(model, folder, **options, experiment_name=Path(folder).name)
        tested = runner.test_loop.dataloader.dataset
        for metric in runner.test_loop.evaluator.metrics:
            # CocoMetric would count the objects of all other images as missed.
            if hasattr(metric, "img_ids"):
                metric.img_ids = [
                    tested.get_data_info(index)["img_id"] for index in range(len(tested))
                ]
        return {name: float(score) for name, score in runner.test().items()}


def _copy_with_onnx(model: Any, path: Path) -> Any:
    """Return a copy of a model whose network is an ONNX file. Inputs and results stay the same."""
    session = InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    copied = copy.copy(model)

    def run(images: Tensor) -> dict[str, np.ndarray]:
        arrays = session.run(names, {"image": images.cpu().contiguous().numpy()})
        return dict(zip(names, arrays, strict=True))

    def encode_decode(images: Tensor, metas: list[dict]) -> Tensor:  # of mmseg's segmentors
        return torch.from_numpy(run(images)["logits"]).to(images.device)

    def predict(images: Tensor, samples: list[Any]) -> list[Any]:  # of mmdet's detectors
        threshold = model.roi_head.test_cfg.mask_thr_binary if model.with_mask else None
        for image, sample in zip(images, samples, strict=True):
            height, width = sample.img_shape[:2]  # without padding: the model in the file pads
            outputs = run(image[None, :, :height, :width])
            scale = sample.get("scale_factor", (1.0, 1.0))
            objects = to_objects(outputs, sample.ori_shape[:2], scale, threshold)
            tensors = {name: torch.from_numpy(array) for name, array in objects.items()}
            sample.pred_instances = InstanceData(bboxes=tensors.pop("boxes"), **tensors)
        return samples

    if hasattr(model, "decode_head"):
        copied.encode_decode = encode_decode
    else:
        copied.predict = predict
    return copied
