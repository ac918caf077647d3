"""Train a config with several seeds, test each model in one or more ways, and report the mean and range of the scores.

    python benchmarks/seeds.py CONFIG --work-dir DIR [--seeds 0 1 2] [--cfg-options KEY=VALUE ...]
        [--test NAME KEY=VALUE ...] ...

Each --test is a way of testing, by a name for the table and options that change the config; default: as the config
tests. DIR gets a folder a seed and scores.csv with all of them. Started again, it does what is not yet done; seeds and
ways of testing may be added, another config or other options are refused.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from mmengine.config import Config

from xcit_mm.utils.atomic import atomic_path
from xcit_mm.utils.cli import cli_main
from xcit_mm.utils.configs import evaluators, read_config, type_name

TOOLS = Path(__file__).resolve().parent
# Scores between 0 and 1 are told in per cent, as the others are.
METRICS = {"coco/bbox_mAP": "box AP", "coco/segm_mAP": "mask AP", "mIoU": "mIoU", "aAcc": "pixel accuracy"}
EVALUATORS = ("CocoMetric", "IoUMetric")  # which give them
SCORES = "*/2*.json"  # in the folder of a test: mmengine names both by the time
Ways = dict[str, list[str]]


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


def ways_of_testing(given: list[list[str]] | None) -> Ways:
    """Options of the config by the names of the ways.

    Raises:
        ValueError: If a name is given twice or cannot name a folder, or an option is none.
    """
    ways: Ways = {}
    for name, *options in given or [["as configured"]]:
        if name in ways:
            raise ValueError(f"--test {name!r} is given twice: give each way a name of its own")
        if "/" in name:
            raise ValueError(f"--test {name!r}: the name is a folder's too, take no / in it")
        for option in options:
            if "=" not in option:
                raise ValueError(
                    f"--test {name!r} {option}: options are KEY=VALUE, and a name of several words is quoted"
                )
        ways[name] = options
    return ways


def check_config(cfg: Config, config: Path) -> None:
    """Raise ValueError if a config tests by nothing that gives one of the `METRICS`."""
    types = [type_name(one) for one in evaluators(cfg, "test")]
    if not set(types) & set(EVALUATORS):
        found = ", ".join(types) or "nothing"
        raise ValueError(f"{config} is tested by {found}: must be {' or '.join(EVALUATORS)}")


def record(cfg: Config, ways: Ways, work_dir: Path) -> None:
    """Keep in DIR/asked.json by what config, and by which options of a test, that is made which DIR holds.

    Raises:
        ValueError: If it holds what was made otherwise, or without this file, so that nobody knows.
    """
    kept, text = work_dir / "asked.json", cfg.pretty_text
    before = json.loads(kept.read_text()) if kept.exists() else dict(config=None, tests={})
    if before["config"] != text and any(work_dir.glob("seed*")):
        raise ValueError(
            f"{work_dir} holds runs of another config or with other --cfg-options: give another --work-dir"
        )
    for name, options in ways.items():
        was = before["tests"].get(name, options)
        if was != options and any(
            path for seed in work_dir.glob("seed*") for path in (seed / f"test-{name}").glob(SCORES)
        ):
            told = " ".join(was) or "no options"
            raise ValueError(f"{work_dir} holds scores of --test {name!r} with {told}: give the test another name")
    work_dir.mkdir(parents=True, exist_ok=True)
    with atomic_path(kept) as partial:
        partial.write_text(json.dumps(dict(config=text, tests=before["tests"] | ways), indent=1))


def train(config: Path, folder: Path, options: list[str]) -> Path:
    """The last checkpoint of a run, which is done, or gone on with, if it is not there."""
    done = folder / "trained"
    if not done.exists():
        run("train", config, "--work-dir", folder, "--resume", options=options)
        done.write_text((folder / "last_checkpoint").read_text())
    return Path(done.read_text())


def test(config: Path, checkpoint: Path, folder: Path, options: list[str]) -> dict[str, float]:
    """Scores by the names of `METRICS`.

    Raises:
        ValueError: If there is none of them.
    """
    if not list(folder.glob(SCORES)):
        run("test", config, checkpoint, "--work-dir", folder, options=options)
    found = json.loads(max(folder.glob(SCORES)).read_text())
    scores = {
        name: found[key] * (100 if key.startswith("coco/") else 1) for key, name in METRICS.items() if key in found
    }
    if not scores:
        raise ValueError(f"{folder} has {', '.join(found)}, and none of {', '.join(METRICS)}")
    return scores


def run_all(args: argparse.Namespace) -> None:
    """Train and test what is not yet done, and report all.

    Raises:
        ValueError, OSError: Before anything is done if it cannot be.
        subprocess.CalledProcessError: If training or testing fails, which says why.
    """
    ways = ways_of_testing(args.test)
    given = ["--cfg-options", *args.cfg_options] if args.cfg_options else []
    cfg = read_config(str(args.config), given)
    check_config(cfg, args.config)
    record(cfg, ways, args.work_dir)
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    rows = []
    for seed in args.seeds:
        folder = args.work_dir / f"seed{seed}"
        options = [*args.cfg_options, f"randomness.seed={seed}"]
        checkpoint = train(args.config, folder, options)
        for way, more in ways.items():
            for metric, score in test(args.config, checkpoint, folder / f"test-{way}", options + more).items():
                scores[way, metric].append(score)
                rows.append([args.config.stem, seed, way, metric, f"{score:.2f}"])
    with (args.work_dir / "scores.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["config", "seed", "test", "metric", "score"], *rows])
    for (way, metric), values in scores.items():
        mean = sum(values) / len(values)
        print(f"{way}: {metric} {mean:.1f} ({min(values):.1f} to {max(values):.1f}, {len(values)} seeds)")


def main() -> int:
    args = parse_args()
    return cli_main(lambda: run_all(args), "start again to go on", ValueError, OSError)


if __name__ == "__main__":
    sys.exit(main())
