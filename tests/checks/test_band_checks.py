"""Bands of images and weights, and classes of hooks, metrics and wrappers, are compared whatever name a config has."""

from pathlib import Path

import numpy as np
import pytest
import torch
from doctor_data import (
    FOUR_BANDS,
    SEMANTIC_FPN,
    SHAPES,
    assert_named,
    failures,
    findings,
    oks,
    write_map,
)
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from xcit_mm import XCiT
from xcit_mm.checks.doctor import check_test, check_training
from xcit_mm.checks.machine import check_precision

pytestmark = pytest.mark.usefixtures("doctors_place")

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


def test_demo_of_four_bands_has_no_findings():
    write_rasters(4)
    assert [finding for finding in findings(FOUR_BANDS) if finding.level != "ok"] == []


def test_images_of_other_bands_than_the_model_are_failures():
    write_rasters(5)
    assert_named(failures(FOUR_BANDS), [("D317", "train", 5, "in_channels=4"), ("D317", "val", 5, "in_channels=4")])
    with pytest.raises(ValueError, match=r"^D317 train: .* 5 bands.* -- fix: .*LoadRasterFromFile"):
        check_training(Config.fromfile(FOUR_BANDS))


def test_bands_that_the_pipeline_adds_count():
    """Such as a vegetation index, or a mask that is an input."""
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


def test_unreadable_raster_is_a_failure():
    write_rasters(4)
    Path("data/shapes-4band/rasters/training/1.tif").write_bytes(b"no image")
    assert_named(
        failures(FOUR_BANDS), [("D315", "train", "data/shapes-4band/rasters/training/1.tif", "RasterioIOError")]
    )


def test_weights_for_rgb_fit_with_fill_stem():
    torch.save(XCiT("t12").state_dict(), "t12.pth")
    options = ["model.backbone.init_cfg.checkpoint=t12.pth", f"{BANDS}=4", f"{MEAN}=None", f"{STD}=None"]
    found = [finding for finding in failures(SEMANTIC_FPN, *options) if finding.code == "D704"]
    assert_named(found, [("D704", "init_cfg", "t12.pth", "3 bands", "in_channels=4")])
    assert found[0].fix == "fill_stem='rgb-mean' (or 'rgb-zero', 'mean') in init_cfg, or weights for such images"
    options.append("model.backbone.init_cfg.fill_stem=rgb-mean")
    assert "init_cfg t12.pth fits" in oks(SEMANTIC_FPN, *options)


def test_bands_are_compared_for_any_name_of_xcit():
    options = ["model.backbone.type=mmengine.XCiT", "model.backbone.in_channels=4"]
    assert_named(failures(SHAPES, *options)[:1], [("D601", "model.data_preprocessor.mean", 3, "in_channels=4")])
    options += ["model.data_preprocessor.mean=[1.5]", "model.data_preprocessor.std=[1]"]
    expected = [("D317", "train", 3, "in_channels=4"), ("D317", "val", 3, "in_channels=4")]
    assert_named(failures(SHAPES, *options), expected)


def test_strict_hook_is_found_by_any_name(tmp_path):
    config = tmp_path / "config.py"
    config.write_text(f"_base_ = {str(SHAPES)!r}\ncustom_hooks = [dict(type='mmengine.StrictLoadHook')]\n")
    assert "D701" not in [finding.code for finding in findings(config)]
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    state = MODELS.build(cfg.model).state_dict()
    torch.save(dict(state_dict={key: state[key] for key in state if "conv_seg" not in key}), "headless.pth")
    with pytest.raises(ValueError, match=r"headless\.pth: the checkpoint does not fit the model"):
        check_test(cfg, "headless.pth")


def test_ignored_label_of_metrics_is_found_by_any_name():
    options = ["val_evaluator.type=mmseg.IoUMetric", "val_evaluator.ignore_index=0"]
    labels = ("decode_head.ignore_index=255", "data_preprocessor.seg_pad_val=255", "val_evaluator.ignore_index=0")
    assert_named(failures(SEMANTIC_FPN, *options), [("D509", *labels)])


def test_mixed_precision_is_found_by_any_name(monkeypatch):
    monkeypatch.setattr("xcit_mm.checks.machine.get_device", lambda: "cpu")
    monkeypatch.setattr("xcit_mm.checks.machine.fast_dtype", lambda device: "float32")
    cfg = Config.fromfile(SHAPES)
    cfg.optim_wrapper.type = "mmengine.AmpOptimWrapper"
    assert_named(check_precision(cfg), [("D206", "AmpOptimWrapper")])
