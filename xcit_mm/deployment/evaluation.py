"""Scores of exported files on a config's test set, beside those of the model in torch."""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.runner import Runner

from ..checks.data import check_paths
from ..checks.findings import raise_first
from ..utils.configs import evaluators
from .comparison import infer_segmentor, to_instances
from .images import to_model_input

MAIN_METRICS = ("mAP", "mIoU")
MAX_DIFFERENCE = 0.2  # points of AP or mIoU, beyond which a report warns
Scores = dict[str, dict[str, float]]
"""For each metric the score of each runtime, `torch` first."""


def check_evaluation(cfg: Config, part: str, count: int | None) -> None:
    """Check that a part can be evaluated on `count` images of a config's test set, or on all if it is None.

    Raises:
        FileNotFoundError: If the data are missing.
        ValueError: If the part has no score, or config and count specify no evaluation.
    """
    if part != "model":
        raise ValueError("a backbone has no score: leave --evaluate and --int8 out, or export the whole model")
    if count is not None and count < 1:
        raise ValueError(f"--evaluate {count}: at least one image")
    if not evaluators(cfg, "test"):
        raise ValueError("the config has no test_evaluator: give it one, or leave --evaluate and --int8 out")
    raise_first(check_paths(cfg, ["test"]), FileNotFoundError)


@torch.no_grad()
def evaluate_files(cfg: Config, model: Any, runs: Mapping[str, Callable], count: int | None) -> tuple[int, Scores]:
    """Score a model and its files on the first images of a config's test set, by the config's evaluator.

    `runs` has for each file a function from an image (1, C, H, W) to its outputs. Images are those that the config's
    pipeline and preprocessor make, without the padding if the file pads. Returns the number of evaluated images, and
    the scores.
    """
    one_by_one = dict(batch_size=1, num_workers=0, persistent_workers=False, batch_sampler=None)
    in_order = dict(sampler=dict(type="DefaultSampler", shuffle=False))
    loader = Runner.build_dataloader(cfg.test_dataloader | one_by_one | in_order)
    scorers = {name: Evaluator(evaluators(cfg, "test")) for name in ("torch", *runs)}
    seen = []
    for batch in islice(loader, count):
        for name, scorer in scorers.items():
            samples = [_predict(cfg, model, runs[name], batch)] if name in runs else model.test_step(batch)
            scorer.dataset_meta = loader.dataset.metainfo
            scorer.process(samples, batch)
        seen.append(samples[0].metainfo.get("img_id"))
    scores: Scores = {}
    for name, scorer in scorers.items():
        for metric in scorer.metrics:
            if hasattr(metric, "img_ids"):  # CocoMetric would count all other images as missed
                metric.img_ids = seen
        for metric_name, score in scorer.evaluate(len(seen)).items():
            scores.setdefault(metric_name, {})[name] = float(score)
    return len(seen), scores


def score_lines(scores: Scores, max_difference: float = MAX_DIFFERENCE) -> list[str]:
    """Summarize the scores of the last file, with its difference to torch in points of 100.

    A line warns if AP or mIoU differs by more than `max_difference` points.
    """
    lines = []
    for metric, values in scores.items():
        *references, (_, score) = values.items()
        line = f"{metric} {score:.4f} ({', '.join(f'{name}: {value:.4f}' for name, value in references)})"
        # mmdet's metrics, whose names have a prefix, are at most 1.
        points = (score - values["torch"]) * (100 if "/" in metric else 1)
        warns = round(abs(points), 6) > max_difference and metric.endswith(MAIN_METRICS)
        lines.append(f"{line}: {points:+.2f} points" + f", WARNING: more than {max_difference}" * warns)
    return lines


def _predict(cfg: Config, model: Any, run: Callable, batch: dict) -> Any:
    """Return the data sample of a batch of one image with the predictions of a file."""
    data = model.data_preprocessor(batch, False)
    (sample,) = data["data_samples"]
    if cfg.default_scope == "mmseg":
        return model.postprocess_result(infer_segmentor(cfg, model, run, data), [sample])[0]
    sample.pred_instances = to_instances(model, run(to_model_input(data, cfg)), sample.metainfo)
    return sample
