"""benchmarks/seeds.py reports the scores of its own settings. The tools that train and test are replaced."""

import csv
import json
import subprocess
from pathlib import Path

import pytest
from paths import CONFIGS

CONFIG = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes.py"


class Tools:
    """Writes the results of tools/train.py and tools/test.py and records the options of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.scores = dict(mIoU=50.0, aAcc=90.0, time=0.1)
        self.error: BaseException | None = None

    def run(self, command: list[str], check: bool) -> None:
        if self.error:
            raise self.error
        script, arguments = Path(command[1]), command[2:]
        assert script.is_file() and check
        self.calls.append((script.stem, arguments[arguments.index("--cfg-options") + 1 :]))
        folder = Path(arguments[arguments.index("--work-dir") + 1])
        (folder / "20260101_000000").mkdir(parents=True)
        if script.stem == "train":
            (folder / "last_checkpoint").write_text(str(folder / "iter_300.pth"))
        else:
            (folder / "20260101_000000" / "20260101_000000.json").write_text(json.dumps(self.scores))


@pytest.fixture
def tools(monkeypatch) -> Tools:
    tools = Tools()
    monkeypatch.setattr("seeds.subprocess.run", tools.run)
    return tools


@pytest.fixture
def work_dir(tmp_path, tools, call) -> Path:
    """A folder with a completed seed."""
    assert call("seeds", CONFIG, "--work-dir", tmp_path / "runs", "--seeds", 0)[0] == 0
    tools.calls.clear()
    return tmp_path / "runs"


def test_seeds_and_tests_are_added_to_completed_ones(tools, work_dir, call):
    tests = ("--test", "as configured", "--test", "a b", "x=1", "--test", "a-b", "x=2", "--test", "trained")
    assert call("seeds", CONFIG, "--work-dir", work_dir, "--seeds", 0, 1, *tests)[0] == 0
    assert tools.calls == [
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
    "config, arguments, phrase",
    [
        (CONFIG, ["--cfg-options", "train_cfg.max_iters=9"], "runs of another config or other --cfg-options"),
        (CONFIG.with_name("fpn_xcit-n12-p16_camvid.py"), [], "runs of another config or other --cfg-options"),
        (CONFIG, ["--test", "as configured", "x=1"], "scores of --test 'as configured' with no options"),
    ],
    ids=["options", "config", "test"],
)
def test_scores_of_other_settings_are_not_reported(config, arguments, phrase, tools, work_dir, refusal):
    assert phrase in refusal("seeds", config, "--work-dir", work_dir, "--seeds", 0, *arguments)
    assert tools.calls == []


def test_runs_without_settings_are_not_reported(tools, work_dir, refusal):
    (work_dir / "settings.json").unlink()
    assert "runs of another config" in refusal("seeds", CONFIG, "--work-dir", work_dir)


def test_settings_may_change_after_a_failed_run(tools, tmp_path, call):
    tools.error = subprocess.CalledProcessError(1, "train.py")
    assert call("seeds", CONFIG, "--work-dir", tmp_path / "runs", "--cfg-options", "x=1")[0] == 1
    tools.error = None
    assert call("seeds", CONFIG, "--work-dir", tmp_path / "runs", "--seeds", 0)[0] == 0


@pytest.mark.parametrize(
    "config, arguments, phrase",
    [
        ("", ["--test", "a", "x=1", "--test", "a", "x=2"], "--test 'a' is given twice"),
        ("", ["--test", "../a"], "--test '../a' also names a folder"),
        ("", ["--test", "batch", "1"], "--test 'batch' 1: options are KEY=VALUE"),
        ('test_evaluator = dict(_delete_=True, type="CityscapesMetric")', [], "is tested by CityscapesMetric"),
    ],
)
def test_invalid_settings_are_rejected_before_training(config, arguments, phrase, tools, tmp_path, refusal):
    path = tmp_path / "own.py"
    path.write_text(f'_base_ = "{CONFIG}"\n{config}')
    assert phrase in refusal("seeds", path, "--work-dir", tmp_path / "runs", *arguments)
    assert tools.calls == [] and not (tmp_path / "runs").exists()


def test_unknown_scores_are_named(tools, tmp_path, refusal):
    tools.scores = dict(mDice=50.0)
    line = refusal("seeds", CONFIG, "--work-dir", tmp_path / "runs")
    assert "has the scores mDice, but none of coco/bbox_mAP" in line


@pytest.mark.parametrize("error, code", [(subprocess.CalledProcessError(3, "train.py"), 3), (KeyboardInterrupt(), 130)])
@pytest.mark.parametrize("name", ["seeds", "demo"])
def test_a_failed_tool_and_ctrl_c_print_no_traceback(name, error, code, call, tools, tmp_path, monkeypatch):
    tools.error = error

    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr("demo.write_dataset", fail)
    monkeypatch.setattr("demo.ROOT", tmp_path)
    arguments = (CONFIG, "--work-dir", tmp_path / "runs") if name == "seeds" else ()
    assert call(name, *arguments)[0] == code


def test_a_killed_tool_is_named(tools, tmp_path, refusal):
    tools.error = subprocess.CalledProcessError(-9, "train.py")
    assert "SIGKILL" in refusal("seeds", CONFIG, "--work-dir", tmp_path / "runs")
