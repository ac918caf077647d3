"""Train a config with several seeds, test each model with one or more sets of options, and report mean and range.

    python benchmarks/seeds.py CONFIG --work-dir DIR [--seeds 0 1 2] [--cfg-options KEY=VALUE ...]
        [--test NAME KEY=VALUE ...] ...

Each --test has a name for the table and config options. The default is the config unchanged. DIR receives a folder per
seed and scores.csv with all scores. Repeated, the command completes DIR. Seeds and tests may be added, but the config
and its options must stay the same.
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

TOOLS = Path(__file__).resolve().parents[1] / "tools"
# Scores between 0 and 1 are reported in per cent, like mmseg's.
METRICS = {"coco/bbox_mAP": "box AP", "coco/segm_mAP": "mask AP", "mIoU": "mIoU", "aAcc": "pixel accuracy"}
EVALUATORS = ("CocoMetric", "IoUMetric")  # which compute the metrics
SCORES = "*/2*.json"  # in the folder of a test: mmengine names both by the time
Tests = dict[str, list[str]]
"""Config options by the name of the test."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--work-dir", type=Path, required=True, help="folder of the runs and scores.csv")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cfg-options", nargs="+", default=[], metavar="KEY=VALUE", help="for training and testing")
    parser.add_argument(
        "--test",
        nargs="+",
        action="append",
        metavar=("NAME", "KEY=VALUE"),
        help="a row of the table and its config options",
    )
    return parser.parse_args()


def run(tool: str, *arguments: object, options: list[str]) -> None:
    """Run tools/TOOL.py with config options; its output is shown."""
    given = ["--cfg-options", *options] if options else []
    subprocess.run([sys.executable, str(TOOLS / f"{tool}.py"), *map(str, arguments), *given], check=True)


def parse_tests(given: list[list[str]] | None) -> Tests:
    """Return the config options of each test.

    Raises:
        ValueError: If a name is given twice or cannot name a folder, or an option is not KEY=VALUE.
    """
    tests: Tests = {}
    for name, *options in given or [["as configured"]]:
        if name in tests:
            raise ValueError(f"--test {name!r} is given twice: choose another name")
        if "/" in name:
            raise ValueError(f"--test {name!r} also names a folder: choose a name without /")
        for option in options:
            if "=" not in option:
                raise ValueError(f"--test {name!r} {option}: options are KEY=VALUE, quote a name of several words")
        tests[name] = options
    return tests


def check_config(cfg: Config, config: Path) -> None:
    """Raise ValueError if no evaluator of a config computes one of the `METRICS`."""
    types = [type_name(evaluator) for evaluator in evaluators(cfg, "test")]
    if not set(types) & set(EVALUATORS):
        found = ", ".join(types) or "no evaluator"
        raise ValueError(f"{config} is tested by {found}: must be {' or '.join(EVALUATORS)}")


def write_settings(cfg: Config, tests: Tests, work_dir: Path) -> None:
    """Write the config and the tests' options to DIR/settings.json.

    Raises:
        ValueError: If DIR holds runs of other settings, or runs without this file.
    """
    path, text = work_dir / "settings.json", cfg.pretty_text
    before = json.loads(path.read_text()) if path.exists() else dict(config=None, tests={})
    if before["config"] != text and any(work_dir.glob("seed*")):
        raise ValueError(f"{work_dir} holds runs of another config or other --cfg-options: give another --work-dir")
    for name, options in tests.items():
        earlier = before["tests"].get(name, options)
        if earlier != options and any(work_dir.glob(f"seed*/test-{name}/{SCORES}")):
            shown = " ".join(earlier) or "no options"
            raise ValueError(f"{work_dir} holds scores of --test {name!r} with {shown}: choose another name")
    work_dir.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as partial:
        partial.write_text(json.dumps(dict(config=text, tests=before["tests"] | tests), indent=1))


def train(config: Path, folder: Path, options: list[str]) -> Path:
    """Train in `folder`, or resume if training is not completed, and return the last checkpoint."""
    done = folder / "trained"
    if not done.exists():
        run("train", config, "--work-dir", folder, "--resume", options=options)
        done.write_text((folder / "last_checkpoint").read_text())
    return Path(done.read_text())


def test(config: Path, checkpoint: Path, folder: Path, options: list[str]) -> dict[str, float]:
    """Test in `folder`, if not completed, and return the scores by the names of `METRICS`.

    Raises:
        ValueError: If the test computes none of the metrics.
    """
    if not list(folder.glob(SCORES)):
        run("test", config, checkpoint, "--work-dir", folder, options=options)
    found = json.loads(max(folder.glob(SCORES)).read_text())
    scores = {
        name: found[key] * (100 if key.startswith("coco/") else 1) for key, name in METRICS.items() if key in found
    }
    if not scores:
        raise ValueError(f"{folder} has the scores {', '.join(found)}, but none of {', '.join(METRICS)}")
    return scores


def run_all(args: argparse.Namespace) -> None:
    """Complete training and tests, write scores.csv and print mean and range of each score.

    Raises:
        ValueError, OSError: If the settings are invalid, before any training.
        subprocess.CalledProcessError: If training or testing fails; its own output states the reason.
    """
    tests = parse_tests(args.test)
    given = ["--cfg-options", *args.cfg_options] if args.cfg_options else []
    cfg = read_config(str(args.config), given)
    check_config(cfg, args.config)
    write_settings(cfg, tests, args.work_dir)
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    rows = []
    for seed in args.seeds:
        folder = args.work_dir / f"seed{seed}"
        options = [*args.cfg_options, f"randomness.seed={seed}"]
        checkpoint = train(args.config, folder, options)
        for name, more in tests.items():
            for metric, score in test(args.config, checkpoint, folder / f"test-{name}", options + more).items():
                scores[name, metric].append(score)
                rows.append([args.config.stem, seed, name, metric, f"{score:.2f}"])
    with (args.work_dir / "scores.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["config", "seed", "test", "metric", "score"], *rows])
    for (name, metric), values in scores.items():
        mean = sum(values) / len(values)
        print(f"{name}: {metric} {mean:.1f} ({min(values):.1f} to {max(values):.1f}, {len(values)} seeds)")


def main() -> int:
    args = parse_args()
    return cli_main(lambda: run_all(args), "run the same command to continue", ValueError, OSError)


if __name__ == "__main__":
    sys.exit(main())
