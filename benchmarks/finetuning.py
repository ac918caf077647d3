"""Measure what a fine-tuning gains by options of the config that `train --from` writes.

    python benchmarks/finetuning.py

Trains the small models of `make demo` on nuts and CamVid (data/nuts and data/camvid, by
tools/get_data.py), with and without each option, with three seeds, and writes a table into
docs/benchmark.md. Repeated, the command completes work_dirs/finetuning.
"""

import argparse
import datetime
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import cv2
import numpy as np
from benchmark import machine
from seeds import MASK_AP, MIOU, Metric, train

from xcit_mm.utils.atomic import atomic_folder, atomic_write
from xcit_mm.utils.cli import cli_main

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "benchmarks" / "finetuning"
PAGE = ROOT / "docs" / "benchmark.md"
NUTS = ROOT / "data" / "nuts"
OUT = ROOT / "work_dirs" / "finetuning"
STARTS = {  # folder of a model that is fine-tuned: its config in configs/demo
    "shapes-objects": "mask-rcnn_xcit-n12-p16_shapes-quick.py",
    "shapes-maps": "fpn_xcit-n12-p16_shapes-quick.py",
}
SEEDS = (0, 1, 2)
FIG = 2  # id of the category of which few images are kept
KEPT_FIGS = 3  # images
PATIENCE = 3  # validations without a better score, after which a training stops early
MARKS = ("<!-- python benchmarks/finetuning.py -->\n", "<!-- end -->\n")


FIG_AP = Metric("mask AP of figs", "coco/fig_precision", 100)


class Comparison(NamedTuple):
    """Two configs, of which the second has an option more."""

    option: str
    without: str
    config: str
    metric: Metric


COMPARISONS = (
    Comparison("averaged weights (EMA)", "nuts", "nuts_ema", MASK_AP),
    Comparison("averaged weights (EMA)", "camvid", "camvid_ema", MIOU),
    Comparison("random resizing", "nuts", "nuts_resize", MASK_AP),
    Comparison("random resizing", "camvid", "camvid_resize", MIOU),
    Comparison("balanced sampling", "rare", "rare_balanced", MASK_AP),
    Comparison("balanced sampling", "rare", "rare_balanced", FIG_AP),
)
DATA = {"nuts": "nuts", "camvid": "CamVid", "rare": "nuts, few figs"}


def write_rare_figs(folder: Path) -> None:
    """Write the quarters of the training photos of nuts, but few of those with figs."""
    coco = json.loads((NUTS / "annotations" / "instances_train2017.json").read_text())
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    with_figs = 0
    with atomic_folder(folder) as unfinished:
        (unfinished / "images").mkdir(parents=True)
        for quarter, objects in cut_quarters(coco):
            if any(item["category_id"] == FIG for item in objects):
                with_figs += 1
                if with_figs > KEPT_FIGS:
                    continue
            number = len(images)
            name = f"{number:03}.png"
            cv2.imwrite(str(unfinished / "images" / name), quarter)
            height, width = quarter.shape[:2]
            images.append(dict(id=number, file_name=name, width=width, height=height))
            for item in objects:
                annotations.append(item | dict(image_id=number, id=len(annotations) + 1))
        cropped = dict(images=images, annotations=annotations, categories=coco["categories"])
        (unfinished / "annotations.json").write_text(json.dumps(cropped))


def cut_quarters(coco: dict[str, Any]) -> Iterator[tuple[np.ndarray, list[dict[str, Any]]]]:
    """Yield the quarters of the photos of a COCO json that have objects, and these objects."""
    for image in coco["images"]:
        photo = cv2.imread(str(NUTS / "train2017" / image["file_name"]))
        width = image["width"] // 2
        height = image["height"] // 2
        annotations = [a for a in coco["annotations"] if a["image_id"] == image["id"]]
        for left, top in itertools.product((0, width), (0, height)):
            objects = crop_objects(annotations, (left, top), (width, height))
            if objects:
                yield photo[top : top + height, left : left + width], objects


def crop_objects(
    annotations: list[dict[str, Any]], corner: tuple[int, int], size: tuple[int, int]
) -> list[dict[str, Any]]:
    """Return the objects whose centre lies in a crop, with the part inside it."""
    objects = []
    for annotation in annotations:
        x, y, width, height = annotation["bbox"]
        centre = np.array([x + width / 2, y + height / 2]) - corner
        if not ((centre >= 0) & (centre < size)).all():
            continue
        polygons = [
            np.clip(np.reshape(polygon, (-1, 2)) - corner, 0, size)
            for polygon in annotation["segmentation"]
        ]
        points = np.concatenate(polygons)
        low = points.min(axis=0)
        extent = points.max(axis=0) - low
        objects.append(
            annotation
            | dict(
                segmentation=[polygon.ravel().tolist() for polygon in polygons],
                bbox=[*low.tolist(), *extent.tolist()],
                area=float(extent.prod()),
            )
        )
    return objects


def read_scores(folder: Path, metric: Metric) -> list[float]:
    """Return the scores of a training's validations, in per cent and in their order."""
    scores = {}
    for log in sorted(folder.glob("2*/vis_data/scalars.json")):
        for line in log.read_text().splitlines():
            logged = json.loads(line)
            if metric.key in logged:
                scores[logged["step"]] = logged[metric.key] * metric.factor
    return [scores[step] for step in sorted(scores)]


def stop_early(scores: list[float]) -> int:
    """Return the number of validations after which a training stops early."""
    best = 0
    for place, score in enumerate(scores):
        if score > scores[best]:
            best = place
        if place - best == PATIENCE:
            return place + 1
    return len(scores)


def read_curves(config: str, metric: Metric) -> list[list[float]]:
    """Return the scores of the validations of each seed's training."""
    return [read_scores(OUT / config / f"seed{seed}", metric) for seed in SEEDS]


def compare(comparison: Comparison) -> str:
    """Return the row of the table for an option."""
    option, without, config, metric = comparison
    old = [curve[-1] for curve in read_curves(without, metric)]
    new = [curve[-1] for curve in read_curves(config, metric)]
    return format_row(option, without, metric, old, new)


def compare_early_stopping(config: str, metric: Metric) -> str:
    """Return the row of the table for the best checkpoints with and without early stopping."""
    curves = read_curves(config, metric)
    lengths = [stop_early(curve) for curve in curves]
    shares = [100 * length // len(curve) for curve, length in zip(curves, lengths, strict=True)]
    option = f"early stopping, after {', '.join(map(str, shares))} %"
    best = [max(curve) for curve in curves]
    best_until_stop = [max(curve[:length]) for curve, length in zip(curves, lengths, strict=True)]
    return format_row(option, config, metric, best, best_until_stop)


def format_row(option: str, config: str, metric: Metric, old: list[float], new: list[float]) -> str:
    """Return a row: the means of the seeds without and with an option, and the gain by seed."""
    gains = ", ".join(f"{b - a:+.1f}" for a, b in zip(old, new, strict=True))
    scores = f"{mean(old):.1f} | {mean(new):.1f} | {gains}"
    return f"| {option} | {DATA[config]} | {metric.name} | {scores} |"


def write_table() -> None:
    """Write the table into the page, between its marks."""
    rows = [
        f"Seeds {', '.join(map(str, SEEDS))}; {datetime.date.today()}, {machine('cpu')}.",
        "",
        "| option | data | score | without | with | gain by seed |",
        "|---|---|---|---|---|---|",
        *map(compare, COMPARISONS),
        compare_early_stopping("nuts", MASK_AP),
        compare_early_stopping("camvid", MIOU),
    ]
    start, end = MARKS
    before, _, rest = PAGE.read_text().partition(start)
    _, _, after = rest.partition(end)
    page = before + start + "\n".join(rows) + "\n" + end + after
    with atomic_write(PAGE) as file:
        file.write(page.encode())
    print("\n".join(rows))


def run() -> None:
    """Train all models, and write the table."""
    os.chdir(ROOT)
    for name, config in STARTS.items():
        train(ROOT / "configs" / "demo" / config, OUT / name, ["randomness.seed=0"])
    if not (OUT / "quarters").exists():
        write_rare_figs(OUT / "quarters")
    configs = dict.fromkeys(config for row in COMPARISONS for config in (row.without, row.config))
    for seed in SEEDS:
        for config in configs:
            folder = OUT / config / f"seed{seed}"
            train(CONFIGS / f"{config}.py", folder, [f"randomness.seed={seed}"])
    write_table()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    return cli_main(run, "run the same command to continue", ValueError, OSError)


if __name__ == "__main__":
    sys.exit(main())
