"""Detectors and segmentors of every published kind give what mmdet's and mmseg's own inference
gives.
"""

import os

import cv2
import numpy as np
import pytest
import torch
from demo import save_untrained
from helpers.paths import CONFIGS
from helpers.published_heads import HEADS, write_model
from helpers.runs import model_of, read_records
from helpers.tiny_recipes import tiny
from mmdet.apis import inference_detector, init_detector
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmseg.apis import inference_model, init_model
from PIL import Image
from pycocotools.mask import decode

from xcit_mm.prediction import Predictor
from xcit_mm.utils.coco import to_corners

GLOBS = (
    *("mask_rcnn/*t12-p*.py", "cascade_rcnn/*s12-p16*.py", "retinanet/*s12-p16*.py"),
    *("mask2former/*s12-p16*.py", "semantic_fpn/*t12-p*.py", "upernet/*t12-p*.py"),
    "segformer/*s12-p16*.py",
)
LEAVES = sorted(leaf for pattern in GLOBS for leaf in CONFIGS.glob(pattern))
KINDS = [*HEADS, *LEAVES]


@pytest.fixture(
    params=KINDS,
    ids=lambda kind: kind if isinstance(kind, str) else kind.stem.partition("_8xb2")[0],
)
def model(request, shapes, tmp_path) -> tuple[str, str]:
    """Config and checkpoint of an untrained, narrow model."""
    if isinstance(request.param, str):
        return write_model(tmp_path, request.param)
    cfg = tiny(request.param, shapes)
    cfg.test_dataloader.dataset.pop("metainfo", None)  # the head has the published classes
    cfg.test_pipeline = cfg.test_dataloader.dataset.pipeline  # mmseg's inference reads this one
    cfg.dump(tmp_path / "tiny.py")
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    weights = MODELS.build(cfg.model).state_dict()
    torch.save(dict(meta={}, state_dict=weights), tmp_path / "tiny.pth")
    return str(tmp_path / "tiny.py"), str(tmp_path / "tiny.pth")


TIES = 1e-3  # part of the pixels. Random weights have many pixels at the threshold.


def assert_equal(objects: list[dict], expected: list[dict]) -> None:
    """Compare COCO results of an image: boxes to 1e-3 pixels, masks except for ties."""
    assert len(objects) > 0
    for result, other in zip(objects, expected, strict=True):
        assert result["category_id"] == other["category_id"]
        assert np.allclose(result["bbox"], other["bbox"], atol=1e-3)
        assert result["score"] == pytest.approx(other["score"], abs=1e-5)
        if "segmentation" in other:
            mask = decode(result["segmentation"])
            assert np.mean(mask != decode(other["segmentation"])) <= TIES


def test_a_run_equals_the_librarys_own_inference(model, photos, call, tmp_path):
    paths = [str(photos / f"{number:02}.png") for number in (0, 3, 1)]  # two of one size
    is_detector = Config.fromfile(model[0]).default_scope == "mmdet"
    library = (init_detector if is_detector else init_model)(*model, device="cpu")
    predictor = Predictor.from_config(*model, device="cpu", batch_size=3)
    out = tmp_path / "out"
    options = ("--batch-size", 2, "--no-visualizations", "--out", out)
    assert call("infer", *paths, *model_of(model), *options)[0] == 0
    records = {record["path"]: record for record in read_records(out)}
    for path, single in zip(paths, predictor(paths), strict=True):
        sample = (inference_detector if is_detector else inference_model)(library, path)
        expected = predictor.to_prediction(cv2.imread(path), sample)
        if is_detector:
            assert_equal(single.to_coco(), expected.to_coco())
            assert_equal(records[path]["objects"], expected.to_coco())
        else:
            name = records[path]["name"]
            labels = cv2.imread(str(out / "labels" / f"{name}.png"), cv2.IMREAD_UNCHANGED)
            assert np.mean(single.segmentation != expected.segmentation) <= TIES
            assert np.mean(labels != expected.segmentation) <= TIES


@pytest.mark.parametrize("name, tiles", [("SOLO", ()), ("SOLOv2", ("--tile", 96))])
def test_solo_may_find_nothing(name, tiles, photos, call, tmp_path):
    """Its labels are then floating-point numbers."""
    model = write_model(tmp_path, name, min_score=1.0)
    code, _, errors = call(
        "infer", photos / "00.png", *model_of(model), "--out", tmp_path / "out", *tiles
    )
    assert code == 0, errors
    assert read_records(tmp_path / "out")[0]["objects"] == []


@pytest.mark.parametrize("name", ["MS R-CNN", "Mask2Former"])
def test_the_best_object_comes_first(name, photos, tmp_path):
    image = cv2.imread(str(photos / "00.png"))
    predictor = Predictor.from_config(*write_model(tmp_path, name))
    sample = predictor.predict_sample(image)
    scores = sample.pred_instances.scores
    order = scores.argsort(descending=True, stable=True)
    assert order.tolist() != sorted(order.tolist())  # the head has another order
    instances = sample.pred_instances[order]
    prediction = predictor.to_prediction(image, sample)
    assert np.array_equal(prediction.scores, instances.scores)
    assert np.array_equal(prediction.labels, instances.labels)
    assert np.array_equal(prediction.boxes, instances.bboxes)
    assert np.array_equal(prediction.masks, instances.masks)


@pytest.mark.parametrize(
    "options, tiles",
    [
        (dict(color_type="color_ignore_orientation"), ("--tile", 200)),
        (dict(imdecode_backend="pillow"), ()),
        (dict(color_type="grayscale"), ()),
    ],
)
def test_images_are_loaded_as_the_config_states(options, tiles, models, photos, call, tmp_path):
    config = tmp_path / "config.py"
    checkpoint = models["det"][1]
    cfg = Config.fromfile(models["det"][0])
    cfg.test_dataloader.dataset.pipeline[0].update(options)
    if "grayscale" in options.values():
        checkpoint = tmp_path / "grey.pth"
        cfg.model.backbone.in_channels = 1
        cfg.model.data_preprocessor.update(mean=[100.0], std=[50.0], bgr_to_rgb=False)
    cfg.dump(config)
    if not os.path.exists(checkpoint):
        save_untrained(config, checkpoint)
    exif = Image.Exif()
    exif[0x112] = 6  # the camera was turned
    path = str(tmp_path / "turned.jpg")
    Image.open(photos / "00.png").save(path, quality=30, exif=exif)
    expected = inference_detector(init_detector(str(config), str(checkpoint), device="cpu"), path)
    out = tmp_path / "out"
    assert call("infer", path, *model_of((config, checkpoint)), "--out", out, *tiles)[0] == 0
    (record,) = read_records(out)
    size = record["height"], record["width"]
    is_turned = "color_ignore_orientation" not in options.values()
    assert size == expected.ori_shape == ((160, 96) if is_turned else (96, 160))
    boxes = to_corners([result["bbox"] for result in record["objects"]])
    assert np.allclose(boxes, expected.pred_instances.bboxes, atol=1e-3) and len(boxes) > 5
    assert cv2.imread(str(out / "visualizations" / "turned.jpg")).shape == (*size, 3)


def test_point_rend_in_half_precision(photos, tmp_path):
    image = cv2.imread(str(photos / "00.png"))
    model = write_model(tmp_path, "PointRend")
    single = Predictor.from_config(*model)(image)
    half = Predictor.from_config(*model, dtype="bfloat16")(image)
    assert len(half) == len(single) == 5 and half.masks.any()
    assert np.abs(half.scores - single.scores).max() < 0.02
