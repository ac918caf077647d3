"""Detectors of mmdet with other heads than this project's configs, untrained, on a narrow XCiT."""

from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

CONFIG = """
_base_ = "mmdet::{base}.py"
trunk = dict(
    _delete_=True, type="XCiT", arch=dict(embed_dim=32, depth=4, num_heads=4, eta=1.0),
    patch_size=16, out_indices=(0, 1, 2, 3),
)
model = dict(backbone=trunk, **{model})
test_pipeline = [
    dict(type="LoadImageFromFile"), dict(type="Resize", scale=(160, 96), keep_ratio=True),
    dict(type="PackDetInputs", meta_keys=("img_path", "ori_shape", "img_shape", "scale_factor")),
]
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
"""
NECK = dict(in_channels=[32] * 4, out_channels=32)


def _mask_rcnn(mask_head: dict[str, Any], **heads: Any) -> dict[str, Any]:
    return dict(
        neck=NECK,
        rpn_head=dict(in_channels=32, feat_channels=32),
        roi_head=dict(
            bbox_roi_extractor=dict(out_channels=32),
            bbox_head=dict(in_channels=32, fc_out_channels=32),
            mask_roi_extractor=dict(out_channels=32),
            mask_head=dict(mask_head, in_channels=32),
            **heads,
        ),
        test_cfg=dict(
            rpn=dict(nms_pre=100, max_per_img=20), rcnn=dict(score_thr=0.0, max_per_img=5)
        ),
    )


# Config of mmdet, and what is narrower than in it.
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "SOLOv2": (
        "solov2/solov2_r50_fpn_1x_coco",
        dict(
            neck=NECK,
            mask_head=dict(
                in_channels=32,
                feat_channels=32,
                num_grids=[12, 9, 6, 4, 3],
                stacked_convs=1,
                mask_feature_head=dict(in_channels=32, feat_channels=32, out_channels=32),
            ),
            test_cfg=dict(nms_pre=50, max_per_img=5),
        ),
    ),
    "PointRend": (
        "point_rend/point-rend_r50-caffe_fpn_ms-1x_coco",
        _mask_rcnn(
            dict(fc_out_channels=32, conv_out_channels=32),
            point_head=dict(in_channels=32, fc_channels=32),
        ),
    ),
    "MS R-CNN": (
        "ms_rcnn/ms-rcnn_r50-caffe_fpn_1x_coco",
        _mask_rcnn(
            dict(conv_out_channels=32),
            mask_iou_head=dict(in_channels=32, conv_out_channels=32, fc_out_channels=32),
        ),
    ),
}


def write_model(folder: Path, name: str, min_score: float = 0.0) -> tuple[str, str]:
    """Write config and checkpoint of a detector. SOLOv2 finds nothing with a `min_score` of 1."""
    base, model = HEADS[name]
    if name == "SOLOv2":
        model = model | dict(test_cfg=model["test_cfg"] | dict(score_thr=min_score))
    config = folder / f"{name}.py"
    checkpoint = folder / f"{name}.pth"
    config.write_text(CONFIG.format(base=base, model=model))
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), checkpoint)
    return str(config), str(checkpoint)
