"""Fixtures of the tests that read data sets."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path) -> Path:
    """The folder of a test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def data(shapes, tmp_path) -> Path:
    """A folder with jsons of two splits and images."""
    folder = tmp_path / "my data"
    shutil.copytree(shapes, folder)
    return folder
