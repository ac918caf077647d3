from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers.golden import fill
from helpers.paths import ROOT
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from xcit_mm.deployment import export_model
from xcit_mm.models.build import load_model

# The pipeline enlarges images, and the preprocessor pads them. Results are converted back from
# both.
SEGMENTOR = """
_base_ = "{root}/configs/demo/fpn_xcit-n12-p16_shapes.py"
model = dict(
    data_preprocessor=dict(test_cfg=dict(size_divisor=32)),
    backbone=dict(
        arch=dict(_delete_=True, embed_dim=32, depth=2, num_heads=4, eta=1.0), out_indices=(0, 1)
    ),
    neck=None,
    decode_head=dict(
        _delete_=True,
        type="UPerHead",
        in_channels=[32] * 2,
        in_index=[0, 1],
        pool_scales=(1, 2, 3, 6),
        channels=16,
        num_classes=5,
        norm_cfg=dict(type="BN"),
        align_corners=True,
    ),
)
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(200, 120), keep_ratio=True),
    dict(type="LoadAnnotations", reduce_zero_label=True),
    dict(type="PackSegInputs"),
]
test_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(data_root="{data}", pipeline=test_pipeline),
)
"""
# Its images of 96 pixels are enlarged to 150 and padded to 160. The objects have other scores than
# noise, so the file's comparison needs its own threshold. An export takes time for every block,
# level and stage, so it has few.
MASK_RCNN = """
_base_ = "{root}/configs/demo/mask-rcnn_xcit-n12-p16_shapes.py"
trunk = dict(_delete_=True, embed_dim=32, depth=2, num_heads=4, eta=1.0)
model = dict(
    backbone=dict(arch=trunk, out_indices=(0, 1), strides=(8, 16)),
    neck=dict(in_channels=[32] * 2, out_channels=32, num_outs=2),
    rpn_head=dict(in_channels=32, feat_channels=32, anchor_generator=dict(strides=[8, 16])),
    roi_head=dict(
        bbox_head=dict(in_channels=32, fc_out_channels=32),
        bbox_roi_extractor=dict(out_channels=32, featmap_strides=[8, 16]),
        mask_roi_extractor=dict(out_channels=32, featmap_strides=[8, 16]),
        mask_head=dict(in_channels=32, conv_out_channels=16, num_convs=1),
    ),
    # The threshold and the IoU of the detections are equal constants of the file.
    test_cfg=dict(
        rpn=dict(nms_pre=200, max_per_img=60),
        rcnn=dict(score_thr=0.25, max_per_img=60, nms=dict(iou_threshold=0.25)),
    ),
)
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(150, 150), keep_ratio=True),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(
        type="PackDetInputs",
        meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor"),
    ),
]
test_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(data_root="{data}", pipeline=test_pipeline),
)
test_evaluator = dict(ann_file="{data}/annotations/instances_validation.json")
"""


class Trained(NamedTuple):
    config: Path
    checkpoint: Path

    def load(self) -> tuple[Config, Any]:
        """Return the config and the model in eval mode."""
        cfg = Config.fromfile(self.config)
        return cfg, load_model(cfg, self.checkpoint)


@pytest.fixture(scope="session")
def write_trained(tmp_path_factory, shapes) -> Callable[..., Trained]:
    """Write a config, given as text or as a Config, and a checkpoint of its model or backbone."""

    def write(recipe: str | Config, part: str = "model", **names: object) -> Trained:
        folder = tmp_path_factory.mktemp("trained")
        config = folder / "config.py"
        checkpoint = folder / "model.pth"
        if isinstance(recipe, Config):
            recipe.dump(config)
        else:
            config.write_text(recipe.format(root=ROOT, data=shapes, **names))
        cfg = Config.fromfile(config)
        init_default_scope(cfg.default_scope)
        cfg.model.backbone.pop("init_cfg", None)
        model = fill(MODELS.build(cfg.model if part == "model" else cfg.model.backbone))
        torch.save(dict(state_dict=model.state_dict()), checkpoint)
        return Trained(config, checkpoint)

    return write


@pytest.fixture(scope="session")
def segmentor(write_trained) -> Trained:
    """A small UperNet."""
    return write_trained(SEGMENTOR)


@pytest.fixture(scope="session")
def mask_rcnn(write_trained) -> Trained:
    """A small Mask R-CNN."""
    return write_trained(MASK_RCNN)


@pytest.fixture(scope="session")
def export(tmp_path_factory) -> Callable[..., Path]:
    """Export a model to a file in a folder of its own."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)

    def write(trained: Trained, **options: Any) -> Path:
        path = tmp_path_factory.mktemp("exported") / "model.onnx"
        export_model(*trained, path, **options)
        return path

    return write


@pytest.fixture(scope="session")
def segmentor_file(segmentor, export) -> Path:
    """The float32 file of the segmentor."""
    return export(segmentor)


@pytest.fixture(scope="session")
def mask_rcnn_file(mask_rcnn, export) -> Path:
    """The float32 file of the detector."""
    return export(mask_rcnn)
