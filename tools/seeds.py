"""Train a config with several seeds, test each model in one or more ways, and report the mean and range of the scores.

    python tools/seeds.py CONFIG --work-dir DIR [--seeds 0 1 2] [--cfg-options KEY=VALUE ...]
        [--test NAME KEY=VALUE ...] ...

Each --test is a way of testing, by a name for the table and options that change the config; default: as the config
tests. DIR gets a folder a seed and scores.csv with all of them. Started again, it does what is not yet done.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
# Scores between 0 and 1 are told in per cent, as the others are.
METRICS = {"coco/bbox_mAP": "box AP", "coco/segm_mAP": "mask AP", "mIoU": "mIoU", "aAcc": "pixel accuracy"}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cfg-options", nargs="+", default=[], metavar="KEY=VALUE", help="for training and testing")
    parser.add_argument("--test", nargs="+", action="append", metavar=("NAME", "KEY=VALUE"), help="a way of testing")
    return parser.parse_args()


def run(tool: str, *arguments: object, options: list[str]) -> None:
    """Run tools/TOOL.py with options of the config, its output shown as it comes."""
    given = ["--cfg-options", *options] if options else []
    subprocess.run([sys.executable, TOOLS / f"{tool}.py", *map(str, arguments), *given], check=True)


def train(config: Path, folder: Path, options: list[str]) -> Path:
    """The last checkpoint of a run, which is done, or gone on with, if it is not there."""
    done = folder / "trained"
    if not done.exists():
        run("train", config, "--work-dir", folder, "--resume", options=options)
        done.write_text((folder / "last_checkpoint").read_text())
    return Path(done.read_text())


def test(config: Path, checkpoint: Path, folder: Path, options: list[str]) -> dict[str, float]:
    """Scores by the names of `METRICS`."""
    if not list(folder.glob("*/2*.json")):
        run("test", config, checkpoint, "--work-dir", folder, options=options)
    found = json.loads(max(folder.glob("*/2*.json")).read_text())
    return {name: found[key] * (100 if key.startswith("coco/") else 1) for key, name in METRICS.items() if key in found}


def main() -> None:
    args = parse_args()
    ways = {name: options for name, *options in args.test or [["as configured"]]}
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    rows = []
    for seed in args.seeds:
        folder = args.work_dir / f"seed{seed}"
        options = [*args.cfg_options, f"randomness.seed={seed}"]
        checkpoint = train(args.config, folder, options)
        for way, more in ways.items():
            for metric, score in test(args.config, checkpoint, folder / way.replace(" ", "-"), options + more).items():
                scores[way, metric].append(score)
                rows.append([args.config.stem, seed, way, metric, f"{score:.2f}"])
    with (args.work_dir / "scores.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["config", "seed", "test", "metric", "score"], *rows])
    for (way, metric), values in scores.items():
        mean = sum(values) / len(values)
        print(f"{way}: {metric} {mean:.1f} ({min(values):.1f} to {max(values):.1f}, {len(values)} seeds)")


if __name__ == "__main__":
    main()
