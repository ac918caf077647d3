"""Detectors and segmentors of every published kind give what mmdet's and mmseg's own inference
gives.
"""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from demo import save_untrained
from helpers.paths import CONFIGS
from helpers.runs import model_of, read_records
from helpers.tiny_recipes import tiny
from mmdet.apis import inference_detector, init_detector
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, init_default_scope
from mmseg.apis import inference_model, init_model

from xcit_mm.prediction import Predictor

HEADS = {
    "SOLOv2": "solov2/solov2_r50_fpn_1x_coco",
    "PointRend": "point_rend/point-rend_r50-caffe_fpn_ms-1x_coco",
    "MS R-CNN": "ms_rcnn/ms-rcnn_r50-caffe_fpn_1x_coco",
}
WIDTH = 32
TRUNK = dict(
    type="XCiT",
    arch=dict(embed_dim=WIDTH, depth=4, num_heads=4, eta=1.0),
    patch_size=16,
    out_indices=(0, 1, 2, 3),
)
PIPELINE = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(160, 96), keep_ratio=True),
    dict(type="PackDetInputs", meta_keys=("img_path", "ori_shape", "img_shape", "scale_factor")),
]
FEW = dict(
    rpn=dict(nms_pre=100, max_per_img=20),
    rcnn=dict(score_thr=0.0, max_per_img=5),
    nms_pre=50,
    max_per_img=5,
)
GLOBS = (
    *("mask_rcnn/*t12-p16*.py", "cascade_rcnn/*s12-p16*.py", "retinanet/*s12-p16*.py"),
    *("mask2former/*s12-p16*.py", "semantic_fpn/*t12-p8*.py", "upernet/*t12-p16*.py"),
    "segformer/*s12-p16*.py",
)
LEAVES = sorted(leaf for pattern in GLOBS for leaf in CONFIGS.glob(pattern))
KINDS = [*HEADS, *LEAVES]
TIES = 1e-3  # part of the pixels. Random weights have many pixels at the threshold.


def narrow(part: ConfigDict) -> None:
    """Give all layers of a part the same number of channels."""
    for key, value in part.items():
        if isinstance(value, dict):
            narrow(value)
        elif key.endswith("channels"):
            part[key] = WIDTH if isinstance(value, int) else [WIDTH] * len(value)


def write_untrained(cfg: Config, folder: Path) -> tuple[str, str]:
    """Write config and checkpoint of a model with random weights."""
    config = folder / "model.py"
    checkpoint = folder / "model.pth"
    cfg.dump(config)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    torch.save(dict(meta={}, state_dict=MODELS.build(cfg.model).state_dict()), checkpoint)
    return str(config), str(checkpoint)


def write_model(folder: Path, name: str, min_score: float = 0.0) -> tuple[str, str]:
    """Write a detector of mmdet. SOLOv2 finds nothing with a `min_score` of 1."""
    base = folder / "base.py"
    base.write_text(f"_base_ = 'mmdet::{HEADS[name]}.py'")
    cfg = Config.fromfile(base)
    model = cfg.model
    for part in ("neck", "rpn_head", "roi_head", "mask_head"):
        narrow(model.get(part, ConfigDict()))
    if name == "SOLOv2":
        model.mask_head.update(num_grids=[12, 9, 6, 4, 3], stacked_convs=1)
        model.test_cfg.score_thr = min_score
    model.backbone = TRUNK
    for key in FEW.keys() & model.test_cfg.keys():
        cfg.merge_from_dict({f"model.test_cfg.{key}": FEW[key]})
    cfg.test_dataloader.dataset.pipeline = PIPELINE
    return write_untrained(cfg, folder)


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
    return write_untrained(cfg, tmp_path)


def test_predictions_equal_the_librarys_own_inference(model, photos):
    paths = [str(photos / f"{number:02}.png") for number in (0, 3, 1)]  # two of one size
    is_detector = Config.fromfile(model[0]).default_scope == "mmdet"
    library = (init_detector if is_detector else init_model)(*model, device="cpu")
    predictor = Predictor.from_config(*model, device="cpu", batch_size=3)
    for path, prediction in zip(paths, predictor(paths), strict=True):
        sample = (inference_detector if is_detector else inference_model)(library, path)
        expected = predictor.to_prediction(cv2.imread(path), sample)
        if not is_detector:
            assert np.mean(prediction.segmentation != expected.segmentation) <= TIES
            continue
        assert len(expected) > 0
        assert np.array_equal(prediction.labels, expected.labels)
        assert np.allclose(prediction.boxes, expected.boxes, atol=1e-3)
        assert np.allclose(prediction.scores, expected.scores, atol=1e-5)
        if expected.masks is not None:
            differ = (prediction.masks != expected.masks).mean(axis=(1, 2))
            assert differ.max() <= TIES


@pytest.mark.parametrize("tiles", [(), ("--tile", 96)])
def test_solo_may_find_nothing(tiles, photos, call, tmp_path, out):
    """Its labels are then floating-point numbers."""
    model = model_of(write_model(tmp_path, "SOLOv2", min_score=1.0))
    code, _, errors = call("predict", photos / "00.png", *model, "--out", out, *tiles)
    assert code == 0, errors
    assert read_records(out)[0]["objects"] == []


@pytest.mark.parametrize(
    ("options", "tile", "size"),
    [
        (dict(color_type="color_ignore_orientation"), 200, (96, 160)),
        (dict(imdecode_backend="pillow"), None, (160, 96)),
        (dict(color_type="grayscale"), None, (160, 96)),
    ],
)
def test_images_are_loaded_as_the_config_states(options, tile, size, models, turned, tmp_path):
    config = tmp_path / "config.py"
    cfg = Config.fromfile(models["det"][0])
    cfg.test_dataloader.dataset.pipeline[0].update(options)
    if "grayscale" in options.values():
        cfg.model.backbone.in_channels = 1
        cfg.model.data_preprocessor.update(mean=[100.0], std=[50.0], bgr_to_rgb=False)
    cfg.dump(config)
    save_untrained(config, tmp_path / "model.pth")
    model = (str(config), str(tmp_path / "model.pth"))
    expected = inference_detector(init_detector(*model, device="cpu"), str(turned))
    prediction = Predictor.from_config(*model, device="cpu", tile=tile)(turned)
    assert prediction.image.shape[:2] == expected.ori_shape == size
    assert len(prediction) > 5
    assert np.allclose(prediction.boxes, expected.pred_instances.bboxes, atol=1e-3)
    assert prediction.draw().shape == (*size, 3)
