"""Fixtures of the doctor's tests."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers.configs import read_config_file
from helpers.doctor_data import ADE, SHAPES, write_coco, write_segmentation_maps
from mmengine.config import Config
from mmengine.registry import init_default_scope

from xcit_mm.checks.findings import Finding
from xcit_mm.checks.model import CheckedModel, check_maps


def not_in_a_metafile(package: str, config: str) -> str:
    raise ValueError(f"{config} is a base config")


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> Path:
    """Write correct data sets for the shipped configs."""
    root = tmp_path_factory.mktemp("doctor")
    write_coco(root)
    write_segmentation_maps(root / ADE, list(range(151)))
    write_segmentation_maps(root / "data" / "shapes", [1, 2, 3, 4, 5])
    return root


MODELS: dict[str, CheckedModel] = {}


def check_model_once(cfg: Config) -> CheckedModel:
    init_default_scope(cfg.default_scope)
    key = repr(cfg.get("model"))
    if key not in MODELS:
        MODELS[key] = CheckedModel(cfg)
    return MODELS[key]


@cache
def check_maps_once(*arguments: object) -> list[Finding]:
    return list(check_maps(*arguments))


@pytest.fixture
def doctors_place(written, tmp_path, monkeypatch) -> None:
    """A folder with correct data sets, no GPU, a cache of configs, and one of checked models."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr("xcit_mm.checks.doctor.CheckedModel", check_model_once)
    monkeypatch.setattr("xcit_mm.checks.doctor.check_maps", check_maps_once)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    # mmengine searches hundreds of metafiles for `mmdet::_base_/...`, which takes seconds and finds
    # nothing.
    monkeypatch.setattr("mmengine.config.config._get_external_cfg_path", not_in_a_metafile)
    monkeypatch.setattr(Config, "fromfile", read_config_file)


@pytest.fixture
def own_config(tmp_path) -> Callable[[str], Path]:
    """Return a function that writes a config on top of the config of the shapes."""

    def write(text: str) -> Path:
        path = tmp_path / "config.py"
        path.write_text(f"_base_ = {str(SHAPES)!r}\n{text}\n")
        return path

    return write
