"""`Model` of run.py returns what mmdet and mmseg predict, from photos of any kind."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.detections import Detections, assert_same
from helpers.pages import blocks
from helpers.paths import CONFIGS, ROOT
from helpers.small_models import synthetic_photo
from mmengine.config import Config
from PIL import Image

from xcit_mm.deployment.metadata import describe_model, find_unsupported
from xcit_mm.prediction import Predictor
from xcit_mm.utils.images import read_image

onnx = pytest.importorskip("onnx")
run = pytest.importorskip("xcit_mm.deployment.run")
MASK_RCNN = CONFIGS / "mask_rcnn" / "mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
FPN = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes.py"
PAGE = ROOT / "docs" / "deployment.md"
RESIZE = "test_dataloader.dataset.pipeline.1"
PHOTO = synthetic_photo(240, 333)  # the width is resized to 166.5 pixels before rounding


@pytest.fixture
def edited(segmentor_file, tmp_path) -> Callable[..., Path]:
    """Write a copy of the segmentor's file with other metadata."""

    def write(**facts: object) -> Path:
        file = onnx.load(segmentor_file)
        metadata = {prop.key: prop.value for prop in file.metadata_props}
        metadata |= {name: json.dumps(fact) for name, fact in facts.items()}
        onnx.helper.set_model_props(file, metadata)
        onnx.save(file, tmp_path / "edited.onnx")
        return tmp_path / "edited.onnx"

    return write


def test_detections_in_a_photo_are_the_predictor_s(mask_rcnn, mask_rcnn_file):
    model = run.Model(mask_rcnn_file)
    every = model(PHOTO)
    prediction = Predictor.from_pretrained(*mask_rcnn, device="cpu")(PHOTO)
    expected = Detections(prediction.boxes, prediction.scores, prediction.labels, prediction.masks)
    # Where the limit has cut others off, or at the config's threshold.
    cut = expected.scores.min() if len(expected.scores) == 60 else 0.25
    size = PHOTO.shape[:2]
    assert assert_same(Detections(**every), expected, size, float(cut), pixels=1e-3) > 0
    best = model(PHOTO, min_score=float(every["scores"][1]))
    assert len(best["scores"]) == 2
    for name, array in best.items():
        assert np.array_equal(array, every[name][:2])
    (recipe,) = (code for _, code in blocks(PAGE) if "supervision" in code)
    names = dict(model=model, image=PHOTO, prediction=best)
    exec(recipe, names)
    assert not np.array_equal(names["drawn"], PHOTO)
    nothing = model(PHOTO, min_score=1.0)
    assert nothing["boxes"].shape == (0, 4)
    assert nothing["masks"].shape == (0, *size)


@pytest.mark.forks
@pytest.mark.parametrize(
    "options",
    [
        {f"{RESIZE}.keep_ratio": False},
        {f"{RESIZE}.scale": 224},
        {"model.data_preprocessor.test_cfg": dict(size_divisor=48)},
    ],
    ids=str,
)
def test_segmentation_maps_are_the_predictor_s(options, segmentor, edited, tmp_path):
    cfg, model = segmentor.load()
    cfg.merge_from_dict(options)
    cfg.dump(tmp_path / "own.py")
    path = edited(**describe_model(cfg, model, ["logits"]))
    actual = run.Model(path)(PHOTO)["map"]
    predictor = Predictor.from_pretrained(
        str(tmp_path / "own.py"), segmentor.checkpoint, device="cpu"
    )
    expected = predictor(PHOTO).segmentation
    assert actual.dtype == expected.dtype
    assert len(np.unique(actual)) > 1
    assert (actual != expected).mean() < 5e-4


@pytest.mark.parametrize(
    "count, threshold, align_corners", [(3, None, False), (300, None, True), (1, 0.3, False)]
)
def test_resized_maps_are_torch_s(align_corners, count, threshold, edited):
    logits = torch.randn(1, count, 13, 21, generator=torch.Generator().manual_seed(0))
    whole = F.interpolate(logits, (40, 33), mode="bilinear", align_corners=align_corners)
    expected = whole.argmax(1)[0] if count > 1 else (whole.sigmoid() > threshold)[0, 0]
    model = run.Model(edited(align_corners=align_corners, threshold=threshold))
    assert np.array_equal(model.to_classes(logits[0].numpy(), (40, 33)), expected.numpy())


@pytest.mark.parametrize(
    "path, options, named",
    [
        (MASK_RCNN, {f"{RESIZE}.type": "ResizeShortestEdge"}, "ResizeShortestEdge"),
        (MASK_RCNN, {f"{RESIZE}.interpolation": "bicubic"}, "interpolation='bicubic'"),
        (FPN, {"model.test_cfg.mode": "slide"}, "test_cfg.mode='slide'"),
    ],
)
def test_preprocessing_that_the_script_lacks_is_named(path, options, named, edited):
    cfg = Config.fromfile(path)
    cfg.merge_from_dict(options)
    with pytest.raises(ValueError, match=re.escape(named)):
        run.Model(edited(unsupported=find_unsupported(cfg)))


def test_a_photo_is_read_upright_as_by_the_predictor(tmp_path):
    upright = Image.Exif()
    upright[0x0112] = 6
    Image.fromarray(synthetic_photo(40, 60)).save(tmp_path / "upright.jpg", exif=upright)
    image = run.read_image(tmp_path / "upright.jpg")
    assert image.shape == (60, 40, 3)
    assert np.array_equal(image, read_image(tmp_path / "upright.jpg"))


@pytest.mark.parametrize(
    "shape, message",
    [((5, 5), r"\(5, 5\).*\(H, W, 3\)"), ((60, 90, 3), "120x180.* a side below 300")],
)
def test_array_that_the_model_does_not_take_is_refused(shape, message, edited):
    with pytest.raises(ValueError, match=message):
        run.Model(edited(min_side=300))(np.zeros(shape, np.uint8))
