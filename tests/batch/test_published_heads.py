"""Detectors whose heads return results in a form of their own."""

import json

import cv2
import numpy as np
import pytest
from batch_runs import read_records
from demo import save_untrained
from mmdet.apis import inference_detector, init_detector
from PIL import Image
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
    sample = predictor.predict_sample(image)
    scores = sample.pred_instances.scores.tolist()
    assert scores != sorted(scores, reverse=True)  # the head's own order
    found = predictor.to_prediction(image, sample).instances
    assert found.scores.tolist() == sorted(scores, reverse=True)
    for number, score in enumerate(found.scores.tolist()):
        own = sample.pred_instances[scores.index(score)]
        assert found.labels[number] == own.labels and (found.boxes[number] == own.bboxes.numpy()).all()
        assert (found.masks[number] == own.masks[0].numpy()).all()


LOADING = """
_base_ = {base!r}
load = dict(type="LoadImageFromFile", {options})
test_pipeline = [
    load, dict(type="Resize", scale=(160, 96), keep_ratio=True),
    dict(type="PackDetInputs", meta_keys=("img_path", "ori_shape", "img_shape", "scale_factor")),
]
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
"""
GREY = """
model = dict(
    backbone=dict(in_channels=1), data_preprocessor=dict(mean=[100.0], std=[50.0], bgr_to_rgb=False)
)
"""


@pytest.mark.parametrize(
    "options, tiles",
    [
        ("color_type='color_ignore_orientation'", ("--tile", 200)),
        ("imdecode_backend='pillow'", ()),
        ("color_type='grayscale'", ()),
    ],
)
def test_images_are_loaded_as_the_config_states(options, tiles, models, photos, call, tmp_path):
    config, checkpoint = tmp_path / "config.py", models["det"][1]
    config.write_text(LOADING.format(base=models["det"][0], options=options) + GREY * ("grayscale" in options))
    if "grayscale" in options:
        checkpoint = tmp_path / "grey.pth"
        save_untrained(config, checkpoint)
    exif = Image.Exif()
    exif[0x112] = 6  # the camera was turned
    Image.open(photos / "00.png").save(tmp_path / "turned.jpg", quality=30, exif=exif)
    path, out = str(tmp_path / "turned.jpg"), tmp_path / "out"
    expected = inference_detector(init_detector(str(config), str(checkpoint), device="cpu"), path)
    assert call("infer", path, config, checkpoint, "--out", out, *tiles)[0] == 0
    (record,) = read_records(out)
    assert (record.height, record.width) == expected.ori_shape == ((96, 160) if "ignore" in options else (160, 96))
    assert np.allclose(record.boxes, expected.pred_instances.bboxes.numpy(), atol=1e-3) and len(record.boxes) > 5
    drawn = cv2.imread(str(out / "visualizations" / "turned.jpg"))
    assert drawn.shape == (record.height, record.width, 3)


def test_point_rend_in_half_precision(image, tmp_path):
    model = write_model(tmp_path, "PointRend")
    single, half = (Predictor(*model, dtype=dtype)(image).instances for dtype in ("float32", "bfloat16"))
    assert len(half.boxes) == len(single.boxes) == 5 and half.masks.any()
    assert np.abs(half.scores - single.scores).max() < 0.02
