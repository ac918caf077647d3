"""Detectors whose heads return results in a form of their own."""

import json

import cv2
import numpy as np
import pytest
from batch_runs import read_records
from published_heads import write_model

from xcit_mm.prediction.predictor import Predictor


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


@pytest.mark.parametrize("name", ["MS R-CNN", "Mask2Former"])
def test_the_best_object_comes_first(name, image, tmp_path):
    predictor = Predictor(*write_model(tmp_path, name))
    sample = predictor(image)
    scores = sample.pred_instances.scores.tolist()
    assert scores != sorted(scores, reverse=True)  # the head's own order
    found = predictor.to_prediction(image, sample).instances
    assert found.scores.tolist() == sorted(scores, reverse=True)
    for number, score in enumerate(found.scores.tolist()):
        own = sample.pred_instances[scores.index(score)]
        assert found.labels[number] == own.labels and (found.boxes[number] == own.bboxes.numpy()).all()
        assert (found.masks[number] == own.masks[0].numpy()).all()


def test_point_rend_in_half_precision(image, tmp_path):
    model = write_model(tmp_path, "PointRend")
    single, half = (Predictor(*model, dtype=dtype).predict(image).instances for dtype in ("float32", "bfloat16"))
    assert len(half.boxes) == len(single.boxes) == 5 and half.masks.any()
    assert np.abs(half.scores - single.scores).max() < 0.02
