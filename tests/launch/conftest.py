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


def write_work_folder(work: Path, config: str, checkpoint: str) -> Path:
    """Write the work folder of a training that was resumed."""
    work.mkdir()
    cfg = Config.fromfile(config)
    cfg.merge_from_dict(dict(work_dir=str(work), resume=True))
    cfg.dump(work / "mine.py")
    (work / "last_checkpoint").write_text(checkpoint)
    return work


@pytest.fixture
def trained(models, tmp_path) -> Path:
    """The work folder of a Mask R-CNN for four classes."""
    return write_work_folder(tmp_path / "trained", *models["det"])


@pytest.fixture
def trained_segmentor(models, tmp_path) -> Path:
    """The work folder of a Semantic FPN."""
    return write_work_folder(tmp_path / "segmentor", *models["seg"])


@pytest.fixture
def start(monkeypatch) -> Callable[..., Config]:
    """Returns the config with which a command of `train` starts mmengine."""

    def stop(cfg: Config) -> None:
        raise Started(cfg)

    def run(*args: object) -> Config:
        monkeypatch.setattr(mmengine.runner.Runner, "from_cfg", stop)
        argv = [str(arg) for arg in args]
        with pytest.raises(Started) as started:
            finetune(argv) if "--from" in argv else run_tool("train", argv)
        return started.value.args[0]

    return run


@pytest.fixture
def data(shapes, tmp_path) -> Path:
    """A folder with jsons of two classes and images."""
    folder = tmp_path / "my data"
    shutil.copytree(shapes, folder)
    for path in (folder / "annotations").glob("*.json"):
        edit_json(path, keep_two_classes)
    return folder


def keep_two_classes(coco: dict) -> None:
    coco["categories"] = coco["categories"][:2]
    coco["annotations"] = [entry for entry in coco["annotations"] if entry["category_id"] <= 2]


@pytest.fixture
def refused() -> Callable[..., str]:
    """Returns the error of `train --from`, which must not train."""

    def run(*args: object) -> str:
        with pytest.raises(SystemExit) as end:
            finetune(["--from", *map(str, args)])
        assert isinstance(end.value.code, str) and "\n" not in end.value.code
        return end.value.code

    return run
