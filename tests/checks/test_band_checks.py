"""Images, normalisation and weights of other bands than the model's are named before a run begins."""

from pathlib import Path

import numpy as np
import pytest
import torch
from doctor_data import MASK_RCNN, SEMANTIC_FPN, SHAPES, assert_named, failures, findings, oks, write_map
from mmengine.config import Config
from paths import CONFIGS

from xcit_mm import XCiT
from xcit_mm.checks.model import build_model
from xcit_mm.checks.preflight import check_backbone
from xcit_mm.checks.start import check_training
from xcit_mm.deployment.preprocessing import preprocessing_steps
from xcit_mm.utils.configs import channel_order, image_side, normalisation

pytestmark = pytest.mark.usefixtures("doctors_place")

FOUR = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes-4band.py"
BANDS, MEAN, STD = (
    f"model.{name}" for name in ("backbone.in_channels", "data_preprocessor.mean", "data_preprocessor.std")
)


def write_rasters(count: int) -> None:
    rasterio = pytest.importorskip("rasterio")
    for split in ("training", "validation"):
        for number in range(2):
            path = Path("data/shapes-4band/rasters") / split / f"{number}.tif"
            path.parent.mkdir(parents=True, exist_ok=True)
            size = dict(count=count, height=48, width=64, dtype="uint16")
            with rasterio.open(path, "w", driver="GTiff", **size) as file:
                file.write(np.full((count, 48, 64), 999, np.uint16))
            write_map(Path("data/shapes-4band/annotations") / split / f"{number}.png", [1, 2, 3, 4, 5])


def test_the_demo_of_four_bands_is_not_complained_of():
    write_rasters(4)
    assert [finding for finding in findings(FOUR) if finding.level != "ok"] == []


def test_images_of_other_bands_than_the_model_s_are_named():
    write_rasters(5)
    assert_named(failures(FOUR), [("D317", "train", 5, "in_channels=4"), ("D317", "val", 5, "in_channels=4")])
    with pytest.raises(ValueError, match=r"^D317 train: .* 5 bands.* -- fix: .*LoadRasterFromFile"):
        check_training(Config.fromfile(FOUR))


def test_images_of_three_bands_for_a_model_of_four_are_named():
    options = [f"{BANDS}=4", f"{MEAN}=[1.5]", f"{STD}=[1]"]
    expected = [("D317", "train", 3, "in_channels=4"), ("D317", "val", 3, "in_channels=4")]
    assert_named(failures(SHAPES, *options), expected)


def test_bands_that_the_pipeline_adds_count():
    """As of an index computed from the others, or a mask that goes in with the image."""
    from mmengine.registry import TRANSFORMS

    @TRANSFORMS.register_module(force=True)
    def AddBand():
        return lambda results: {**results, "img": np.dstack((results["img"], results["img"][..., :1]))}

    cfg = Config.fromfile(SHAPES)
    steps = [
        dict(type="LoadImageFromFile"),
        dict(type="AddBand"),
        dict(type="LoadAnnotations"),
        dict(type="PackSegInputs"),
    ]
    for split in ("train", "val"):
        cfg[f"{split}_dataloader"].dataset.pipeline = steps
    cfg.model.backbone.in_channels = 4
    cfg.model.data_preprocessor.update(mean=[1.5], std=[1])
    check_training(cfg)


def test_an_unreadable_raster_is_named():
    write_rasters(4)
    Path("data/shapes-4band/rasters/training/1.tif").write_bytes(b"no image")
    assert_named(failures(FOUR), [("D315", "train", "data/shapes-4band/rasters/training/1.tif", "RasterioIOError")])


@pytest.mark.parametrize(
    "config, options, message",
    [
        (
            SHAPES,
            dict(in_channels=1),
            "model.data_preprocessor.mean has 3 values, the backbone has in_channels=1: give one",
        ),
        (MASK_RCNN, dict(in_channels=4), "model.data_preprocessor.mean has 3 values, the backbone has in_channels=4"),
        (
            MASK_RCNN,
            dict(in_channels=4, mean=[1, 2, 3, 4], std=[1, 1, 1, 1]),
            r"DetDataPreprocessor takes 1 or 3: set mean and std to None and put dict\(type='Normalize'",
        ),
    ],
)
def test_normalisation_for_other_bands_is_named(config, options, message):
    cfg = Config.fromfile(config)
    cfg.model.backbone.in_channels = options.pop("in_channels")
    cfg.model.data_preprocessor.update(options)
    with pytest.raises(ValueError, match=message) as error:
        check_backbone(cfg)
    assert "\n" not in str(error.value)
    cfg.model.data_preprocessor.update(mean=[1.5], std=[1.0])
    check_backbone(cfg)
    cfg.model.data_preprocessor.update(mean=None, std=None)
    cfg.data_preprocessor = None
    check_backbone(cfg)


@pytest.mark.parametrize("split, other", [("train", "test"), ("test", "train")])
def test_a_config_may_train_or_test_alone(split, other):
    cfg = Config.fromfile(SHAPES)
    cfg[f"{other}_dataloader"] = None
    check_backbone(cfg)
    step = dict(type="Normalize", mean=[1.5, 2.5], std=[2.5])
    cfg[f"{split}_dataloader"].dataset.pipeline.insert(1, step)
    with pytest.raises(ValueError, match=r"^Normalize.mean has 2 values, the backbone has in_channels=3"):
        check_backbone(cfg)


@pytest.mark.parametrize("swaps, to_rgb, order", [(True, None, "RGB"), (False, True, "RGB"), (True, True, "BGR")])
def test_a_step_that_normalises_counts_as_the_preprocessor_does(swaps, to_rgb, order):
    cfg = Config.fromfile(SHAPES)
    cfg.model.data_preprocessor.update(bgr_to_rgb=swaps)
    assert normalisation(cfg) == (cfg.model.data_preprocessor.mean, cfg.model.data_preprocessor.std)
    if to_rgb:
        cfg.model.data_preprocessor.update(mean=None, std=None)
        step = dict(type="Normalize", mean=[1.5], std=[2.5], to_rgb=to_rgb)
        cfg.test_dataloader.dataset.pipeline.insert(1, step)
        assert normalisation(cfg) == ([1.5], [2.5])
    assert channel_order(cfg) == order


def test_a_preprocessor_beside_the_model_is_the_model_s():
    """mmengine's Runner takes it from there; mmpretrain's configs are written so."""
    inside, beside = Config.fromfile(SHAPES), Config.fromfile(SHAPES)
    inside.model.data_preprocessor.size = (96, 128)
    beside.model.pop("data_preprocessor")
    beside.data_preprocessor = inside.model.data_preprocessor
    for ask in (normalisation, channel_order, image_side, preprocessing_steps):
        assert ask(beside) == ask(inside)
    assert normalisation(beside)[0] == inside.model.data_preprocessor.mean
    assert type(build_model(beside).data_preprocessor).__name__ == "SegDataPreProcessor"
    beside.data_preprocessor.mean = [1.0, 2.0]
    with pytest.raises(ValueError, match=r"^data_preprocessor.mean has 2 values, "):
        check_backbone(beside)
    beside.data_preprocessor.mean = [1.0, 2.0, 3.0]
    beside.model.backbone.ignore_padding = True
    with pytest.raises(ValueError, match=r"^ignore_padding=True with data_preprocessor.mean="):
        check_backbone(beside)


def test_augmentation_takes_the_normalisation_beside_the_model():
    """Where mmengine finds one there, it replaces the model's: mmseg's base configs bring it, for three bands."""
    cfg = Config.fromfile(SHAPES)
    cfg.model.backbone.in_channels = 4
    cfg.model.data_preprocessor.update(mean=None, std=None)
    check_backbone(cfg)
    with pytest.raises(ValueError, match=r"^data_preprocessor.mean has 3 values, the backbone has in_channels=4"):
        check_backbone(cfg, tta=True)
    check_backbone(Config.fromfile(FOUR), tta=True)


def test_weights_for_rgb_fit_where_a_rule_is_given():
    torch.save(XCiT("t12").state_dict(), "t12.pth")
    options = ["model.backbone.init_cfg.checkpoint=t12.pth", f"{BANDS}=4", f"{MEAN}=None", f"{STD}=None"]
    found = [finding for finding in failures(SEMANTIC_FPN, *options) if finding.code == "D704"]
    assert_named(found, [("D704", "init_cfg", "t12.pth", "3 bands", "in_channels=4")])
    assert found[0].fix == "fill_stem='rgb-mean' (or 'rgb-zero', 'mean') in init_cfg, or weights for such images"
    options.append("model.backbone.init_cfg.fill_stem=rgb-mean")
    assert "init_cfg t12.pth fits" in oks(SEMANTIC_FPN, *options)
