"""Measure models in float32 and in half precision: scores on the config's test set, and milliseconds per image.

    python benchmarks/benchmark_precision.py CONFIG CHECKPOINT [CHECKPOINT ...] [--dtypes float32 bfloat16]

Several checkpoints are models of one config, trained with several seeds. The table reports the mean of their scores and
the largest loss of one of them to the first type, and the median time of the first 20 images, in turn in each type.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from mmengine.logging import MMLogger
from mmengine.runner import Runner

from xcit_mm.models.precision import DTYPES
from xcit_mm.prediction import Predictor
from xcit_mm.utils.configs import read_config

IMAGES = 20  # that are timed
Scores = dict[str, float]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("checkpoints", nargs="+", metavar="checkpoint")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32", "bfloat16"])
    return parser.parse_args()


def evaluate(predictor: Predictor, samples: list[dict[str, Any]], evaluator: Any) -> Scores:
    """Return the scores of all samples."""
    for sample in samples:
        evaluator.process(predictor.predict_preprocessed([sample]), sample)
    return {name: float(score) for name, score in evaluator.evaluate(len(samples)).items()}


def measure(
    runner: Runner, config: str, checkpoint: str, dtypes: list[str]
) -> tuple[dict[str, Scores], dict[str, float]]:
    """Return the scores and the median milliseconds of an image in each type."""
    predictors = {dtype: Predictor(config, checkpoint, dtype=dtype) for dtype in dtypes}
    data = runner.build_dataloader(runner.cfg.test_dataloader).dataset
    samples = [data[index] for index in range(len(data))]
    scores = {}
    for dtype, predictor in predictors.items():
        evaluator = runner.build_evaluator(runner.cfg.test_evaluator)
        evaluator.dataset_meta = data.metainfo
        scores[dtype] = evaluate(predictor, samples, evaluator)
    times: dict[str, list[float]] = {dtype: [] for dtype in dtypes}
    for sample in samples[:IMAGES]:
        for dtype, predictor in predictors.items():
            start = time.perf_counter()
            predictor.predict_preprocessed([sample])
            times[dtype].append(1e3 * (time.perf_counter() - start))
    return scores, {dtype: statistics.median(values) for dtype, values in times.items()}


def main() -> None:
    args = parse_args()
    MMLogger.get_instance("mmengine", log_level="WARNING")
    cfg = read_config(args.config, [])
    with tempfile.TemporaryDirectory() as cfg.work_dir:
        runner = Runner.from_cfg(cfg)
        results = [measure(runner, args.config, checkpoint, args.dtypes) for checkpoint in args.checkpoints]
    names = [name for name in results[0][0][args.dtypes[0]] if name.split("/")[-1] in ("mIoU", "bbox_mAP", "segm_mAP")]
    print(f"\n{Path(args.config).stem}, {len(results)} models, {torch.get_num_threads()} threads")
    print(f"| type | {' | '.join(f'{name}: mean | largest loss' for name in names)} | ms per image |")
    print("|---" * (2 + 2 * len(names)) + "|")
    for dtype in args.dtypes:
        cells = []
        for name in names:
            scores = [scores[dtype][name] for scores, _ in results]
            losses = [exact[args.dtypes[0]][name] - score for (exact, _), score in zip(results, scores, strict=True)]
            cells.append(f"{statistics.mean(scores):.4g} | {max(losses):.3f}")
        print(f"| {dtype} | {' | '.join(cells)} | {statistics.median(times[dtype] for _, times in results):.0f} |")


if __name__ == "__main__":
    main()
