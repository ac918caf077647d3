"""Fixtures of the tests that start a training or a test."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import mmengine.runner
import pytest
from helpers.doctor_data import edit_json
from helpers.exports import copy_shape_maps, shapes_options
from mmengine.config import Config
from torch import nn

from xcit_mm.__main__ import main


class Started(BaseException):
    """mmengine would run this config."""


class NotRun:
    """In place of mmengine's Runner."""

    model = nn.Module()
    logger = SimpleNamespace(handlers=[])

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg

    def register_hook(self, hook: object) -> None:
        pass

    def train(self) -> None:
        raise Started(self.cfg)

    test = train


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path) -> Path:
    """The folder of a test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path / "downloads"))
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
    """Returns the config with which a command starts mmengine."""

    def run(*args: object) -> Config:
        argv = [str(arg) for arg in args]
        with monkeypatch.context() as patch, pytest.raises(Started) as started:
            patch.setattr(mmengine.runner.Runner, "from_cfg", NotRun)
            main(argv)
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


@pytest.fixture
def own_data(data) -> list[str]:
    """Arguments of `finetune` for the jsons of two classes, and a config to write."""
    return [*shapes_options(data), "--config", "my-data.py"]


@pytest.fixture
def maps(shapes, tmp_path) -> Path:
    """A folder of images and segmentation maps."""
    return copy_shape_maps(shapes, tmp_path / "maps")


def keep_two_classes(coco: dict) -> None:
    coco["categories"] = coco["categories"][:2]
    coco["annotations"] = [entry for entry in coco["annotations"] if entry["category_id"] <= 2]


@pytest.fixture
def refused(refusal) -> Callable[..., str]:
    """Returns the error of a command, which must be one line. Only `finetune` may write files."""

    def run(*args: object) -> str:
        before = set(Path().rglob("[!.]*.*"))
        message = refusal(*args)
        assert args[0] == "finetune" or set(Path().rglob("[!.]*.*")) == before
        return message

    return run
