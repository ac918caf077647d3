from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers import small_models
from helpers.paths import CONFIGS
from mmengine.config import Config

from xcit_mm.commands import export as export_command
from xcit_mm.models.build import load_model


def enlarge(cfg: Config, scale: tuple[int, int]) -> Config:
    """Let a recipe of the demo test on enlarged images. Results are converted back."""
    dataset = cfg.test_dataloader.dataset
    steps = [step for step in dataset.pipeline if step.type != "Resize"]
    steps.insert(1, dict(type="Resize", scale=scale, keep_ratio=True))
    dataset.pipeline = steps
    return cfg


class Trained(NamedTuple):
    config: Path
    checkpoint: Path

    def load(self) -> tuple[Config, Any]:
        cfg = Config.fromfile(self.config)
        return cfg, load_model(cfg, self.checkpoint)


@pytest.fixture(scope="session")
def write_trained(tmp_path_factory) -> Callable[[Config], Trained]:
    """Write a recipe and a checkpoint of its model."""

    def write(recipe: Config) -> Trained:
        folder = tmp_path_factory.mktemp("trained")
        trained = Trained(folder / "config.py", folder / "model.pth")
        recipe.dump(trained.config)
        model = small_models.build(recipe)
        torch.save(dict(state_dict=model.state_dict()), trained.checkpoint)
        return trained

    return write


@pytest.fixture(scope="session")
def segmentor(write_trained) -> Trained:
    """A small UperNet, whose preprocessor pads."""
    cfg = Config.fromfile(CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes.py")
    trunk = dict(small_models.TRUNK, depth=1)
    options = dict(out_indices=(0,), strides=(8,), patch_embed="linear")
    cfg.model.backbone.update(arch=trunk, **options)
    cfg.model.data_preprocessor.test_cfg = dict(size_divisor=32)
    cfg.model.neck = None
    cfg.model.decode_head = dict(
        type="UPerHead",
        in_channels=[small_models.WIDTH],
        in_index=[0],
        pool_scales=(3,),
        channels=16,
        num_classes=5,
        norm_cfg=dict(type="BN"),
        align_corners=True,
    )
    return write_trained(enlarge(cfg, (200, 120)))


@pytest.fixture(scope="session")
def mask_rcnn(write_trained) -> Trained:
    """A small Mask R-CNN. An export takes time for every block and level, so it has one of each."""
    level = dict(featmap_strides=[8])
    cfg = small_models.mask_rcnn(
        backbone=dict(arch=dict(depth=1), out_indices=(0,), strides=(8,)),
        neck=dict(in_channels=[small_models.WIDTH], num_outs=1),
        rpn_head=dict(anchor_generator=dict(strides=[8])),
        roi_head=dict(bbox_roi_extractor=level, mask_roi_extractor=level),
        # The threshold and the IoU of the detections are equal constants of the file. The objects
        # have other scores than noise, so the file's comparison needs its own threshold.
        test_cfg=dict(rcnn=dict(score_thr=0.25, max_per_img=60, nms=dict(iou_threshold=0.25))),
    )
    return write_trained(enlarge(cfg, (150, 150)))  # padded to 160


@pytest.fixture(scope="session")
def export(tmp_path_factory) -> Callable[..., Path]:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)

    def write(trained: Trained) -> Path:
        path = tmp_path_factory.mktemp("exported") / "model.onnx"
        assert export_command.main([*map(str, trained), "--out", str(path)]) == 0
        return path

    return write


@pytest.fixture(scope="session")
def segmentor_file(segmentor, export) -> Path:
    return export(segmentor)


@pytest.fixture(scope="session")
def mask_rcnn_file(mask_rcnn, export) -> Path:
    return export(mask_rcnn)
