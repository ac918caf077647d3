"""Fixtures of the tests of `train --from MODEL --data DATA`."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import mmengine.runner
import pytest
from helpers.doctor_data import edit_json
from mmengine.config import Config

from xcit_mm.launch import finetune, run_tool


class Started(Exception):
    """mmengine would run this config."""


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    return tmp_path


@pytest.fixture
def trained(models, tmp_path) -> Path:
    """The work folder of a Mask R-CNN for four classes, of a training that was resumed."""
    work = tmp_path / "trained"
    work.mkdir()
    cfg = Config.fromfile(models["det"][0])
    cfg.merge_from_dict(dict(work_dir=str(work), resume=True))
    cfg.dump(work / "mine.py")
    (work / "last_checkpoint").write_text(models["det"][1])
    return work


@pytest.fixture
def started(monkeypatch) -> Callable[..., Config]:
    """Returns the config with which the command starts mmengine."""

    def start(cfg: Config) -> None:
        raise Started(cfg)

    def run(*args: object) -> Config:
        monkeypatch.setattr(mmengine.runner.Runner, "from_cfg", start)
        with pytest.raises(Started) as found:
            finetune(["--from", *map(str, args)])
        return found.value.args[0]

    def run_config(config: Path) -> Config:
        with pytest.raises(Started) as found:
            run_tool("train", [str(config)])
        return found.value.args[0]

    run.again = run_config
    return run


@pytest.fixture
def trained_segmentor(models, tmp_path) -> Path:
    """The work folder of a Semantic FPN."""
    work = tmp_path / "segmentor"
    work.mkdir()
    Config.fromfile(models["seg"][0]).dump(work / "mine.py")
    (work / "last_checkpoint").write_text(models["seg"][1])
    return work


def two_classes(content: dict) -> None:
    content["categories"] = content["categories"][:2]
    content["annotations"] = [each for each in content["annotations"] if each["category_id"] <= 2]


@pytest.fixture
def data(shapes, tmp_path) -> Path:
    """A folder with jsons of two classes and images."""
    shutil.copytree(shapes, tmp_path / "my data")
    for path in (tmp_path / "my data" / "annotations").glob("*.json"):
        edit_json(path, two_classes)
    return tmp_path / "my data"


@pytest.fixture
def refused() -> Callable[..., str]:
    """Returns the error of the command, which must not train."""

    def run(*args: object) -> str:
        with pytest.raises(SystemExit) as end:
            finetune(["--from", *map(str, args)])
        assert isinstance(end.value.code, str) and "\n" not in end.value.code
        return end.value.code

    return run
