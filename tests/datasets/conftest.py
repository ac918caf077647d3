"""Fixtures of the tests that read data sets."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path) -> Path:
    """The folder of a test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
