"""Scores of exported files on a config's test set, beside those of the model in torch."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.runner import Runner
from torch import Tensor

from ..checks.data import check_paths
from ..checks.findings import raise_first
from ..utils.configs import evaluators
from .agreement import to_instances

__all__ = ["check_evaluation", "evaluate_files", "file_input"]


def check_evaluation(cfg: Config, part: str, count: int | None) -> None:
    """Check that a file of this part can be evaluated on so many images of a config's test set; None: all.

    Raises:
        FileNotFoundError: If the data are not there.
        ValueError: If there is nothing to evaluate.
    """
    if part != "model":
        raise ValueError("a backbone has no score: leave --evaluate and --int8 out, or export the whole model")
    if count is not None and count < 1:
        raise ValueError(f"--evaluate {count}: at least one image")
    if not evaluators(cfg, "test"):
        raise ValueError("the config has no test_evaluator: give it one, or leave --evaluate and --int8 out")
    raise_first(check_paths(cfg, ["test"]), FileNotFoundError)


@torch.no_grad()
def evaluate_files(
    cfg: Config, model: Any, runs: Sequence[Callable], count: int | None
) -> tuple[int, dict[str, tuple[float, ...]]]:
    """Score the first images of a config's test set by its evaluator.

    Files see the images that the config's pipeline and preprocessor make, a detector's without the padding. A
    segmentor's file always takes the image whole, whatever its test_cfg's `mode`.

    Args:
        cfg: A config of mmdet or mmseg.
        model: Its model, in eval mode.
        runs: From an image (1, C, H, W) to a file's outputs, one for each file.
        count: How many images; None: all.

    Returns:
        How many images there were, and of each metric torch's score and then the files'.
    """
    alone = dict(batch_size=1, num_workers=0, persistent_workers=False, batch_sampler=None)
    in_order = dict(sampler=dict(type="DefaultSampler", shuffle=False))
    loader = Runner.build_dataloader(cfg.test_dataloader | alone | in_order)
    judges = [Evaluator(evaluators(cfg, "test")) for _ in range(1 + len(runs))]
    seen = []
    for batch in islice(loader, count):
        predictions = [model.test_step(batch), *([_predicted_by_file(cfg, model, run, batch)] for run in runs)]
        for evaluator, predicted in zip(judges, predictions, strict=True):
            evaluator.dataset_meta = loader.dataset.metainfo
            evaluator.process(predicted, batch)
        seen += [sample.metainfo.get("img_id") for sample in predictions[0]]
    for evaluator in judges:
        for metric in evaluator.metrics:
            if hasattr(metric, "img_ids"):  # CocoMetric would count all other images as missed
                metric.img_ids = seen
    scores = [evaluator.evaluate(len(seen)) for evaluator in judges]
    return len(seen), {name: tuple(float(one[name]) for one in scores) for name in scores[0]}


def file_input(data: dict, is_detector: bool) -> Tensor:
    """The image (1, C, h, w) of a preprocessed batch of one as a file takes it: a detector's file pads by itself."""
    image: Tensor = data["inputs"]
    if not is_detector:
        return image
    height, width = data["data_samples"][0].img_shape[:2]
    return image[..., :height, :width].contiguous()


def _predicted_by_file(cfg: Config, model: Any, run: Callable, batch: dict) -> Any:
    """The data sample of a batch of one image, with what the file predicts."""
    data = model.data_preprocessor(batch, False)
    (sample,) = data["data_samples"]
    outputs = run(file_input(data, cfg.default_scope == "mmdet"))
    if cfg.default_scope == "mmseg":
        return model.postprocess_result(outputs[0], [sample])[0]
    threshold = cfg.model.test_cfg.get("rcnn", {}).get("mask_thr_binary", 0.5)
    sample.pred_instances = to_instances(outputs, sample.metainfo, threshold)
    return sample
