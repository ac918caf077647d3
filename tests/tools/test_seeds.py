"""benchmarks/seeds.py reports the scores of the runs it was asked for. Training and testing are replaced."""

import csv
import json
import subprocess
from pathlib import Path

import pytest
import seeds
from paths import CONFIGS

CONFIG = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes.py"


class Library:
    """What tools/train.py and tools/test.py leave in their work folders, and the options that they were given."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, list[str]]] = []
        self.scores = dict(mIoU=50.0, aAcc=90.0, time=0.1)
        self.error: BaseException | None = None

    def run(self, tool: str, *arguments: object, options: list[str]) -> None:
        if self.error:
            raise self.error
        self.ran.append((tool, options))
        folder = Path(arguments[arguments.index("--work-dir") + 1])
        (folder / "20260101_000000").mkdir(parents=True)
        if tool == "train":
            (folder / "last_checkpoint").write_text(str(folder / "iter_300.pth"))
        else:
            (folder / "20260101_000000" / "20260101_000000.json").write_text(json.dumps(self.scores))


@pytest.fixture
def library(monkeypatch) -> Library:
    library = Library()
    monkeypatch.setattr(seeds, "run", library.run)
    return library


@pytest.fixture
def work_dir(tmp_path, library, call) -> Path:
    """A folder in which a seed is done."""
    assert call("seeds", CONFIG, "--work-dir", tmp_path / "runs", "--seeds", 0)[0] == 0
    library.ran.clear()
    return tmp_path / "runs"


def test_seeds_and_ways_of_testing_are_added_to_what_is_done(library, work_dir, call):
    ways = ("--test", "as configured", "--test", "a b", "x=1", "--test", "a-b", "x=2", "--test", "trained")
    assert call("seeds", CONFIG, "--work-dir", work_dir, "--seeds", 0, 1, *ways)[0] == 0
    assert library.ran == [
        ("test", ["randomness.seed=0", "x=1"]),
        ("test", ["randomness.seed=0", "x=2"]),
        ("test", ["randomness.seed=0"]),
        ("train", ["randomness.seed=1"]),
        ("test", ["randomness.seed=1"]),
        ("test", ["randomness.seed=1", "x=1"]),
        ("test", ["randomness.seed=1", "x=2"]),
        ("test", ["randomness.seed=1"]),
    ]
    rows = list(csv.DictReader((work_dir / "scores.csv").open()))
    assert len(rows) == 2 * 4 * 2
    assert [row["test"] for row in rows[:8:2]] == ["as configured", "a b", "a-b", "trained"]
    assert rows[0] == dict(config=CONFIG.stem, seed="0", test="as configured", metric="mIoU", score="50.00")


@pytest.mark.parametrize(
    "config, more, line",
    [
        (CONFIG, ["--cfg-options", "train_cfg.max_iters=9"], "runs of another config or with other --cfg-options"),
        (CONFIG.with_name("fpn_xcit-n12-p16_camvid.py"), [], "runs of another config or with other --cfg-options"),
        (CONFIG, ["--test", "as configured", "x=1"], "scores of --test 'as configured' with no options"),
    ],
    ids=["options", "config", "test"],
)
def test_old_scores_are_not_told_for_what_is_asked_now(config, more, line, library, work_dir, refusal):
    assert line in refusal("seeds", config, "--work-dir", work_dir, "--seeds", 0, *more)
    assert library.ran == []


def test_a_folder_that_does_not_tell_its_config_is_refused(library, work_dir, refusal):
    (work_dir / "asked.json").unlink()
    assert "runs of another config" in refusal("seeds", CONFIG, "--work-dir", work_dir)


def test_what_has_failed_may_be_asked_for_otherwise(library, tmp_path, call):
    library.error = subprocess.CalledProcessError(1, "train.py")
    assert call("seeds", CONFIG, "--work-dir", tmp_path / "runs", "--cfg-options", "x=1")[0] == 1
    library.error = None
    assert call("seeds", CONFIG, "--work-dir", tmp_path / "runs", "--seeds", 0)[0] == 0


@pytest.mark.parametrize(
    "ways, line",
    [
        (["--test", "a", "x=1", "--test", "a", "x=2"], "--test 'a' is given twice"),
        (["--test", "../a"], "--test '../a': the name is a folder's too, take no / in it"),
        (["--test", "batch", "1"], "--test 'batch' 1: options are KEY=VALUE"),
    ],
)
def test_names_that_cannot_be_are_refused(ways, line, library, tmp_path, refusal):
    assert line in refusal("seeds", CONFIG, "--work-dir", tmp_path / "runs", *ways)
    assert library.ran == [] and not (tmp_path / "runs").exists()


def test_a_config_without_a_known_score_is_refused_before_it_trains(library, tmp_path, refusal):
    config = tmp_path / "own.py"
    config.write_text(f'_base_ = "{CONFIG}"\ntest_evaluator = dict(_delete_=True, type="CityscapesMetric")\n')
    line = refusal("seeds", config, "--work-dir", tmp_path / "runs")
    assert line == f"ValueError: {config} is tested by CityscapesMetric: must be CocoMetric or IoUMetric"
    assert library.ran == []


def test_scores_of_other_names_are_told(library, tmp_path, refusal):
    library.scores = dict(mDice=50.0)
    line = refusal("seeds", CONFIG, "--work-dir", tmp_path / "runs")
    assert line.endswith("has mDice, and none of coco/bbox_mAP, coco/segm_mAP, mIoU, aAcc")


@pytest.mark.parametrize(
    "tool, error, code",
    [
        ("seeds", subprocess.CalledProcessError(3, "train.py"), 3),
        ("seeds", KeyboardInterrupt(), 130),
        ("demo", subprocess.CalledProcessError(3, "train.py"), 3),
        ("demo", KeyboardInterrupt(), 130),
    ],
)
def test_a_failed_tool_and_ctrl_c_add_no_traceback(tool, error, code, call, library, tmp_path, monkeypatch):
    library.error = error

    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr("demo.write_dataset", fail)
    monkeypatch.setattr("demo.ROOT", tmp_path)
    arguments = (CONFIG, "--work-dir", tmp_path / "runs") if tool == "seeds" else ()
    assert call(tool, *arguments)[0] == code


def test_a_killed_tool_is_named(library, tmp_path, refusal):
    library.error = subprocess.CalledProcessError(-9, "train.py")
    assert refusal("seeds", CONFIG, "--work-dir", tmp_path / "runs") == (
        "Command 'train.py' died with <Signals.SIGKILL: 9>."
    )
