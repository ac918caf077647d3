"""Fixtures of the doctor's tests."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.doctor_data import ADE, SHAPES, write_coco, write_segmentation_maps


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> Path:
    """Write correct data sets for the shipped configs."""
    root = tmp_path_factory.mktemp("doctor")
    write_coco(root)
    write_segmentation_maps(root / ADE, list(range(151)))
    write_segmentation_maps(root / "data" / "shapes", [1, 2, 3, 4, 5])
    return root


@pytest.fixture
def doctors_place(written, tmp_path, monkeypatch) -> None:
    """A folder with correct data sets, and no GPU."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.fixture
def own_config(tmp_path) -> Callable[[str], Path]:
    """Return a function that writes a config on top of the config of the shapes."""

    def write(text: str) -> Path:
        path = tmp_path / "config.py"
        path.write_text(f"_base_ = {str(SHAPES)!r}\n{text}\n")
        return path

    return write
