"""Shrunken configs of plain vision transformers through every command, with timm."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rasterio")
pytest.importorskip("timm", reason="timm is not installed: make STACK=peers test")
import rasterio
import torch
from helpers.pages import blocks
from helpers.paths import CONFIGS, ROOT
from helpers.raster_files import UTM, noise, save
from helpers.small_models import tiny
from mmengine.config import Config

from xcit_mm import Predictor, predict_raster
from xcit_mm.__main__ import main
from xcit_mm.checks.doctor import diagnose

pytestmark = pytest.mark.peers

CLASSES = ("circle", "square", "triangle", "star")
SEGMENTOR, DETECTOR, _ = sorted((CONFIGS / "vit").glob("*deit*.py"))


def write_config(leaf: Path, shapes: Path) -> Path:
    """Write a shrunken config that trains on shapes for four iterations."""
    cfg = tiny(leaf, shapes)
    cfg.model.backbone.update(drop_path_rate=0.2)
    if cfg.default_scope == "mmdet":
        for head in (cfg.model.roi_head.bbox_head, cfg.model.roi_head.mask_head):
            head.num_classes = len(CLASSES)
    cfg.train_cfg = dict(type="IterBasedTrainLoop", max_iters=4, val_interval=4)
    cfg.train_dataloader.sampler = dict(type="InfiniteSampler", shuffle=True)
    cfg.val_dataloader = cfg.val_evaluator = cfg.val_cfg = None
    cfg.default_hooks.checkpoint.update(by_epoch=False, interval=2)
    cfg.log_processor.by_epoch = False
    cfg.randomness = dict(seed=0)
    path = Path(f"{leaf.stem}.py")
    cfg.dump(path)
    return path


def run(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


def test_the_doctor_misses_nothing_but_the_data_of_the_config_on_the_page():
    ((_, code),) = blocks(ROOT / "docs" / "plain-transformers.md")
    Path("own.py").write_text(code)
    findings = {finding.code: finding.level for finding in diagnose("own.py")}
    assert [code for code, level in findings.items() if level == "FAIL"] == ["D311"]


def test_a_detector_trains_in_bfloat16_predicts_and_is_finetuned_on_own_data(shapes, own_data):
    run("train", write_config(DETECTOR, shapes), "--work-dir", "work", "--amp")
    predictor = Predictor.from_pretrained("work", device="cpu", batch_size=2)
    photos = sorted((shapes / "images" / "validation").glob("*.jpg"))[:2]
    batch = predictor(photos)
    for prediction, photo in zip(batch, photos, strict=True):
        np.testing.assert_allclose(prediction.scores, predictor(photo).scores, atol=1e-4)
    options = ["--cfg-options", "train_cfg.max_iters=2", "train_dataloader.num_workers=0"]
    options += ["train_dataloader.persistent_workers=False", "val_dataloader=None"]
    options += ["val_evaluator=None", "val_cfg=None"]
    run("finetune", "work", *own_data, "--config", "own.py", *options)
    cfg = Config.fromfile("own.py")
    assert cfg.optim_wrapper.constructor == "LayerDecayOptimWrapperConstructor"
    state = torch.load(next(Path("work_dirs/own").glob("*.pth")), weights_only=False)["state_dict"]
    assert state["roi_head.bbox_head.fc_cls.weight"].shape[0] == 3


def test_a_segmentor_is_tested_and_predicts_a_raster(shapes):
    config = write_config(SEGMENTOR, shapes)
    run("train", config, "--work-dir", "work")
    run("test", config, "work/iter_4.pth", "--work-dir", "test")
    save(Path("scene.tif"), noise(3, 150, 130), **UTM)
    predictor = Predictor.from_pretrained(str(config), "work/iter_4.pth", device="cpu")
    predict_raster(predictor, "scene.tif", "map.tif", tile=64, overlap=16, scale=1.0)
    with rasterio.open("map.tif") as file:
        assert (file.shape, file.crs.to_epsg()) == ((150, 130), 32633)
