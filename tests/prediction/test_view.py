"""At which scale, and in what, a model sees a large image."""

from types import SimpleNamespace

import pytest
from helpers.configs import read_config_file
from helpers.paths import CONFIGS
from helpers.small_models import build, mask_rcnn, semantic_fpn
from mmengine.config import Config

from xcit_mm import Predictor
from xcit_mm.prediction import predictor as predictor_module
from xcit_mm.prediction.preprocessing import Preprocessing
from xcit_mm.prediction.view import choose_view, trained_scale
from xcit_mm.weights.published import PUBLISHED

RECIPE = CONFIGS / "mask_rcnn" / "mask-rcnn_xcit-t12-p16_fpn_amp-ms-crop-3x_coco.py"


def view_of(cfg: Config, whole: bool = True, **options: object):
    predictor = SimpleNamespace(cfg=cfg, model=None, preprocess=Preprocessing(cfg))
    predictor.is_detector = cfg.default_scope == "mmdet"
    return choose_view(predictor, whole, **options)


def test_the_scale_of_a_published_detector_is_that_of_its_recipe():
    cfg = read_config_file(RECIPE)
    scale = PUBLISHED["maskrcnn_xcit_tiny_12_p16"].scale
    assert scale == pytest.approx(trained_scale(Preprocessing(cfg), (480, 640)), abs=0.01)
    with pytest.raises(ValueError, match=r"resizes 640 x 480 pixels by 1\.67: give 1\.67"):
        view_of(cfg)


def test_a_published_name_brings_its_scale_and_other_weights_do_not(monkeypatch, tmp_path):
    cfg = mask_rcnn()
    cfg.pop("large")
    cfg.dump(tmp_path / "model.py")
    monkeypatch.setattr(predictor_module, "load_model", lambda cfg, weights: build(cfg))
    names = {"xcit://maskrcnn_xcit_tiny_12_p16": 1.67, "own.pth": None}
    for weights, scale in names.items():
        found = (str(tmp_path / "model.py"), weights)
        monkeypatch.setattr(predictor_module, "find_model", lambda *_, found=found: found)
        cfg = Predictor.from_pretrained("name").cfg
        assert (cfg.get("large") or {}).get("scale") == scale


def test_a_scale_is_that_of_the_call_then_the_config_then_the_pipeline():
    cfg = mask_rcnn()
    assert view_of(cfg).scale == 1.0  # the pipeline resizes a photo of 640 x 480 by 0.25
    assert view_of(cfg, scale=0.5).scale == 0.5
    cfg.large = None
    cfg.raster = dict(tile=80)
    assert view_of(cfg).scale == 2.0  # of the tiles of the training
    cfg.raster = None
    cfg.test_dataloader.dataset.pipeline[1] = dict(type="Resize", scale_factor=1.5)
    assert view_of(cfg).scale == 1.5  # of all images


@pytest.mark.parametrize("scale", [0.5, 0.25])
def test_a_scale_is_that_of_all_steps_whatever_the_metadata_say(scale):
    cfg = semantic_fpn()
    pipeline = cfg.test_dataloader.dataset.pipeline
    resize = dict(type="Resize", scale=(320, 240), keep_ratio=True)
    pipeline[1:2] = [resize, dict(type="Resize", scale_factor=2 * scale)]
    pipeline[-1].meta_keys = ("img_path", "ori_shape", "img_shape")
    assert trained_scale(Preprocessing(cfg), (480, 640)) == scale


def test_tiles_have_the_size_of_the_training_and_do_not_change_the_scale():
    cfg = read_config_file(RECIPE)
    view = view_of(cfg, whole=False, scale=1.6)
    assert (view.side, view.overlap) == (800, 200)
    other = view_of(cfg, whole=False, scale=1.6, tile=200, overlap=10)
    assert (other.scale, other.side, other.overlap) == (1.6, 320, 16)
    assert str(other) == "seen at scale 1.6, in tiles of 200 pixels"


def test_windows_of_a_detector_have_the_side_of_its_training():
    assert view_of(read_config_file(RECIPE), scale=1).side == 800
    assert view_of(semantic_fpn(), scale=1).side == 1024
    assert view_of(read_config_file(RECIPE), scale=2, overlap=300).overlap == 600
