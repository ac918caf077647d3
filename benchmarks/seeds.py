"""Train and test a config with several seeds, and report the scores and the memory of training.

    python benchmarks/seeds.py CONFIG --work-dir DIR [--seeds 0 1 2] [--cfg-options KEY=VALUE ...]

DIR receives a folder per seed and scores.csv. Repeated, the command completes DIR. Seeds may be
added, but the config and its options must stay the same.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from csv_rows import ORIGIN, origin

from xcit_mm.utils.cli import cli_main
from xcit_mm.utils.configs import read_config

TOOLS = Path(__file__).resolve().parents[1] / "tools"


class Metric(NamedTuple):
    """A score by its key in mmengine's logs."""

    name: str
    key: str
    factor: float  # to per cent


METRICS = (
    Metric("box AP", "coco/bbox_mAP", 100),
    Metric("mask AP", "coco/segm_mAP", 100),
    Metric("mIoU", "mIoU", 1),
    Metric("pixel accuracy", "aAcc", 1),
)
SCORES = "*/2*.json"  # in the folder of a test: mmengine names both by the time


def run(tool: str, *arguments: object) -> float:
    """Run tools/TOOL.py; its output is shown. Return its peak memory in GiB."""
    command = [sys.executable, str(TOOLS / f"{tool}.py"), *map(str, arguments)]
    _, status, usage = os.wait4(subprocess.Popen(command).pid, 0)
    if status:
        raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), command)
    return usage.ru_maxrss / 2**20  # Linux counts KiB


def check_settings(config: str, work_dir: Path) -> None:
    """Write the config to DIR/config.py, or raise ValueError if DIR holds runs of another."""
    path = work_dir / "config.py"
    if path.exists() and path.read_text() != config:
        holds = f"{work_dir} holds runs of another config or other --cfg-options"
        raise ValueError(f"{holds}: give another --work-dir")
    work_dir.mkdir(parents=True, exist_ok=True)
    path.write_text(config)


def train(config: Path, folder: Path, options: list[str]) -> Path:
    """Train in `folder`, or resume if training is not completed, and return the last checkpoint."""
    done = folder / "trained"
    if not done.exists():
        peak = run("train", config, "--work-dir", folder, "--resume", "--cfg-options", *options)
        (folder / "peak").write_text(str(peak))
        done.write_text((folder / "last_checkpoint").read_text())
    return Path(done.read_text())


def test(config: Path, checkpoint: Path, folder: Path, options: list[str]) -> dict[str, float]:
    """Test in `folder`, if not completed, and return the scores by the names of `METRICS`.

    Raises:
        ValueError: If the test computes none of the metrics.
    """
    if not list(folder.glob(SCORES)):
        run("test", config, checkpoint, "--work-dir", folder, "--cfg-options", *options)
    tested = json.loads(max(folder.glob(SCORES)).read_text())
    scores = {
        metric.name: tested[metric.key] * metric.factor
        for metric in METRICS
        if metric.key in tested
    }
    if not scores:
        known = ", ".join(metric.key for metric in METRICS)
        raise ValueError(f"{folder} has the scores {', '.join(tested)}, but none of {known}")
    return scores


def run_all(args: argparse.Namespace) -> None:
    """Complete training and tests, write scores.csv, print mean and range of scores, and memory."""
    note = f"# --cfg-options {' '.join(args.cfg_options)}\n"
    check_settings(f"{read_config(args.config).pretty_text}\n{note}", args.work_dir)
    scores = defaultdict(list)
    peaks = []
    rows = [["config", "seed", "metric", "score", *ORIGIN]]
    for seed in args.seeds:
        folder = args.work_dir / f"seed{seed}"
        options = [*args.cfg_options, f"randomness.seed={seed}"]
        checkpoint = train(args.config, folder, options)
        for metric, score in test(args.config, checkpoint, folder / "test", options).items():
            scores[metric].append(score)
            row = [args.config.stem, str(seed), metric, f"{score:.2f}"]
            rows.append([*row, *origin().values()])
        peaks.append(float((folder / "peak").read_text()))
    with (args.work_dir / "scores.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    for metric, by_seed in scores.items():
        mean = sum(by_seed) / len(by_seed)
        lowest, highest = min(by_seed), max(by_seed)
        print(f"{metric} {mean:.1f} ({lowest:.1f} to {highest:.1f}, {len(by_seed)} seeds)")
    # Without the processes that load images.
    print(f"peak memory {max(peaks):.2f} GiB")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path)
    parser.add_argument(
        "--work-dir", type=Path, required=True, help="folder of the runs and scores.csv"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--cfg-options", nargs="+", default=[], metavar="KEY=VALUE", help="for training and testing"
    )
    args = parser.parse_args()
    return cli_main(lambda: run_all(args), "run the same command to continue")


if __name__ == "__main__":
    sys.exit(main())
