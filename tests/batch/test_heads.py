"""Detectors whose heads return results in a form of their own."""

import json

import cv2
import numpy as np
import pytest
from batch_runs import read_records
from published_heads import write_model


@pytest.fixture
def image(photos) -> np.ndarray:
    return cv2.imread(str(photos / "00.png"))


@pytest.mark.parametrize("name, tiles", [("SOLO", ()), ("SOLOv2", ("--tile", 96))])
def test_solo_may_find_nothing(name, tiles, photos, call, tmp_path):
    """Its labels are then floating-point numbers."""
    model = write_model(tmp_path, name, min_score=1.0)
    code, _, errors = call("infer", photos / "00.png", *model, "--out", tmp_path / "out", *tiles)
    assert code == 0, errors
    assert json.loads((tmp_path / "out" / "predictions.json").read_text()) == []
    assert read_records(tmp_path / "out")[0].labels == []
