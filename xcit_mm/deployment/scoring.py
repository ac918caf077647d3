"""Scores of a model and of its files on the test set of a config."""

import copy
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from mmengine.runner import Runner
from mmengine.structures import InstanceData
from onnxruntime import InferenceSession
from torch import Tensor, nn

from ..utils.configs import data_sets
from .run import to_objects


def evaluate_files(
    cfg: Config, model: Any, files: Mapping[str, Path], count: int | None
) -> list[str]:
    """Return a line for each metric with the scores of a model and of its ONNX files, on the first
    `count` images of each test set, or on all.

    Args:
        files: The paths of the files, by the names that the lines give them.
    """
    scores = {"torch": _score(cfg, model, count)}
    for name, path in files.items():
        scores[name] = _score(cfg, _file_model(cfg, model, path), count)
    lines = []
    for metric in scores["torch"]:
        columns = [f"{name} {metrics[metric]:.4f}" for name, metrics in scores.items()]
        lines.append(f"{metric}: {', '.join(columns)}")
    return lines


def _score(cfg: Config, model: nn.Module, count: int | None) -> dict[str, float]:
    """Return the metrics of mmengine's test on the first `count` images of each test set."""
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


def _file_model(cfg: Config, model: Any, path: Path) -> nn.Module:
    """Return a model that predicts by a file as a model of torch does."""
    if cfg.default_scope == "mmdet":
        return FileDetector(model, path)
    segmentor = dict(
        type="EncoderDecoder",
        data_preprocessor=model.data_preprocessor,
        backbone=dict(type=nn.Identity),
        decode_head=dict(type=FileHead, model=model, path=path),
        test_cfg=model.test_cfg,
    )
    return MODELS.build(segmentor)


def _run(session: Any, images: Tensor) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    arrays = session.run(names, {"image": images.cpu().contiguous().numpy()})
    return dict(zip(names, arrays, strict=True))


class FileHead(nn.Module):
    """Decode head of mmseg's EncoderDecoder that takes images to the logits of a file."""

    def __init__(self, model: Any, path: Path) -> None:
        super().__init__()
        self.session = InferenceSession(path)
        self.align_corners = model.align_corners
        self.num_classes = model.num_classes
        self.out_channels = model.out_channels
        self.threshold = getattr(model.decode_head, "threshold", None)

    def predict(self, images: Tensor, metas: list[dict], test_cfg: dict) -> Tensor:
        """Return logits (B, classes, H, W) of images, the output of a backbone `nn.Identity`."""
        return torch.from_numpy(_run(self.session, images)["logits"]).to(images.device)


class FileDetector(BaseModel):
    """A detector of mmdet that predicts by a file."""

    def __init__(self, model: Any, path: Path) -> None:
        super().__init__(model.data_preprocessor)
        self.session = InferenceSession(path)
        self.threshold = model.roi_head.test_cfg.mask_thr_binary if model.with_mask else None

    def forward(self, inputs: Tensor, data_samples: list[Any], mode: str) -> list[Any]:
        """Give each sample the objects of its image, in the image's own pixels."""
        for image, sample in zip(inputs, data_samples, strict=True):
            height, width = sample.img_shape[:2]  # the file pads it
            outputs = _run(self.session, image[None, :, :height, :width])
            scale = sample.get("scale_factor", (1.0, 1.0))
            objects = to_objects(outputs, sample.ori_shape[:2], scale, self.threshold)
            tensors = {name: torch.from_numpy(array) for name, array in objects.items()}
            sample.pred_instances = InstanceData(bboxes=tensors.pop("boxes"), **tensors)
        return data_samples
