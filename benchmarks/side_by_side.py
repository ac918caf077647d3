"""Train XCiT and a plain vision transformer from scratch by one recipe.

    python benchmarks/side_by_side.py [--data CamVid]

Trains the demo's recipes on CamVid and nuts (data/camvid and data/nuts, by tools/get_data.py) with
two backbones of about the same parameters, with three seeds, then times some iterations of each,
and writes scores, seconds and memory into docs/benchmark.md. Needs timm. Repeated, the command
completes the trainings in work_dirs/side_by_side and times anew, so trainings may run beside other
work.
"""

import argparse
import datetime
import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from benchmark import machine
from mmengine.registry import MODELS
from seeds import BOX_AP, MASK_AP, MIOU, Metric, read_peak, run, test, train

from xcit_mm.utils.atomic import atomic_write
from xcit_mm.utils.cli import cli_main
from xcit_mm.utils.configs import read_config

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "configs" / "demo"
CONFIGS = ROOT / "benchmarks" / "side_by_side"
PAGE = ROOT / "docs" / "benchmark.md"
OUT = ROOT / "work_dirs" / "side_by_side"
SEEDS = (0, 1, 2)
TIMED = 40  # iterations
MARKS = ("<!-- python benchmarks/side_by_side.py -->\n", "<!-- end of side by side -->\n")


class Trained(NamedTuple):
    """A backbone on a data set."""

    data: str
    backbone: str
    config: Path
    metrics: tuple[Metric, ...]


DATA = {
    "CamVid": (DEMO / "fpn_xcit-n12-p16_camvid.py", CONFIGS / "camvid_vit.py", (MIOU,)),
    "nuts": (DEMO / "mask-rcnn_xcit-n12-p16_nuts.py", CONFIGS / "nuts_vit.py", (BOX_AP, MASK_AP)),
}
RUNS = []
for data, (xcit, vit, metrics) in DATA.items():
    RUNS.append(Trained(data, "XCiT-N12/16", xcit, metrics))
    RUNS.append(Trained(data, "ViT-Ti/16, five blocks", vit, metrics))


def count_parameters(config: Path) -> float:
    """Return the parameters of a config's backbone, pyramid included, in millions."""
    backbone = MODELS.build(read_config(config).model.backbone)
    return sum(parameter.numel() for parameter in backbone.parameters()) / 1e6


def time_iteration(config: Path) -> float:
    """Train some iterations, and return the median seconds of an iteration by their log."""
    folder = OUT / config.stem / "timed"
    shutil.rmtree(folder, ignore_errors=True)
    run("train", config, "--work-dir", folder, "--cfg-options", f"train_cfg.max_iters={TIMED}")
    seconds = []
    for log in folder.glob("2*/vis_data/scalars.json"):
        for line in log.read_text().splitlines():
            logged = json.loads(line)
            if "loss" in logged:
                seconds.append(logged["time"])
    return median(seconds)


def score_and_peak(trained: Trained) -> tuple[str, str]:
    """Train and test with all seeds, and return the cells of the scores and of the memory."""
    scores: dict[str, list[float]] = {metric.name: [] for metric in trained.metrics}
    peaks = []
    for seed in SEEDS:
        folder = OUT / trained.config.stem / f"seed{seed}"
        options = [f"randomness.seed={seed}"]
        checkpoint = train(trained.config, folder, options)
        tested = test(trained.config, checkpoint, folder / "test", options)
        for name, values in scores.items():
            values.append(tested[name])
        peaks.append(read_peak(folder))
    described = [
        f"{name} {mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"
        for name, values in scores.items()
    ]
    return ", ".join(described), f"{mean(peaks):.2f}"


def run_all(data_sets: list[str]) -> None:
    """Train all models on data sets, and write the table into the page, between its marks."""
    os.chdir(ROOT)
    measured = {trained: score_and_peak(trained) for trained in RUNS if trained.data in data_sets}
    rows = [
        f"Seeds {', '.join(map(str, SEEDS))}; {datetime.date.today()}, {machine('cpu')}.",
        "",
        "| data | backbone | parameters, M | mean score (lowest to highest) | s per iteration "
        "| peak memory, GiB |",
        "|---|---|---|---|---|---|",
    ]
    for trained, (scores, peak) in measured.items():
        parameters = f"{count_parameters(trained.config):.1f}"
        seconds = f"{time_iteration(trained.config):.2f}"
        cells = (trained.data, trained.backbone, parameters, scores, seconds, peak)
        rows.append(f"| {' | '.join(cells)} |")
    start, end = MARKS
    before, _, rest = PAGE.read_text().partition(start)
    _, _, after = rest.partition(end)
    with atomic_write(PAGE) as file:
        file.write((before + start + "\n".join(rows) + "\n" + end + after).encode())
    print("\n".join(rows))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", choices=[*DATA], default=[*DATA])
    data_sets = parser.parse_args().data
    measure = partial(run_all, data_sets)
    return cli_main(measure, "run the same command to continue")


if __name__ == "__main__":
    sys.exit(main())
