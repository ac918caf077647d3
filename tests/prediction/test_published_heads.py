"""Detectors and segmentors of every published kind give what mmdet's and mmseg's own inference
gives.
"""

import cv2
import numpy as np
import pytest
import torch
from helpers.paths import CONFIGS
from helpers.small_models import tiny
from mmdet.apis import inference_detector, init_detector
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import MODELS, init_default_scope
from mmseg.apis import inference_model, init_model

from xcit_mm.models import labels as labels_module
from xcit_mm.prediction import Predictor
from xcit_mm.prediction.preprocessing import Preprocessing

LEAVES = [
    *("mask_rcnn/*t12-p16*.py", "mask2former/*s12-p16*coco*.py"),
    *("semantic_fpn/*t12-p8*.py", "upernet/*t12-p16*.py"),
]
SLOW_LEAVES = [
    *("cascade_rcnn/*s12-p16*.py", "retinanet/*s12-p16*.py"),
    *("mask2former/*s12-p16*ade20k*.py", "segformer/*s12-p16*.py"),
]
LEAVES += [pytest.param(leaf, marks=pytest.mark.slow) for leaf in SLOW_LEAVES]
TIES = 1e-3  # part of the pixels. Random weights have many pixels at the threshold.


@pytest.mark.parametrize("leaf", LEAVES)
def test_predictions_equal_the_librarys_own_inference(leaf, photos, shapes, tmp_path, monkeypatch):
    monkeypatch.setattr(labels_module, "LOGITS", 2**17)  # so of some classes at a time
    (path,) = CONFIGS.glob(leaf)
    cfg = tiny(path, shapes)
    cfg.test_dataloader.dataset.pop("metainfo", None)  # the head has the published classes
    cfg.test_pipeline = cfg.test_dataloader.dataset.pipeline  # mmseg's inference reads this one
    cfg.dump(tmp_path / "model.py")
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    weights = MODELS.build(cfg.model).state_dict()
    torch.save(dict(meta={}, state_dict=weights), tmp_path / "model.pth")
    model = (str(tmp_path / "model.py"), str(tmp_path / "model.pth"))

    paths = [str(photos / f"{number:02}.png") for number in (0, 3, 1)]  # two of one size
    is_detector = cfg.default_scope == "mmdet"
    library = (init_detector if is_detector else init_model)(*model, device="cpu")
    predictor = Predictor.from_pretrained(*model, device="cpu", batch_size=3)
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


@pytest.mark.parametrize(
    ("options", "size"),
    [
        (dict(color_type="color_ignore_orientation"), (96, 160, 3)),
        (dict(color_type="grayscale", imdecode_backend="pillow"), (160, 96)),
    ],
)
def test_images_are_loaded_as_the_config_states(options, size, models, turned):
    cfg = Config.fromfile(models["det"][0])
    load, *steps = cfg.test_dataloader.dataset.pipeline
    load.update(options)
    cfg.model.backbone.in_channels = (*size, 1)[2]
    preprocess = Preprocessing(cfg)
    pixels = preprocess.read(turned)
    assert pixels.shape == size
    pipeline = Compose([load, *(step for step in steps if "Annotation" not in step.type)])
    expected = pipeline(dict(img_path=str(turned), img_id=0))
    assert torch.equal(preprocess(pixels)["inputs"], expected["inputs"])
    with pytest.raises(ValueError, match=r"the image has 4 channels, but the model takes [13]"):
        preprocess(np.zeros((40, 40, 4), np.uint8))
