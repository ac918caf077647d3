"""Detectors of mmdet with other heads than this project's configs, untrained, on a narrow XCiT."""

from pathlib import Path

import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, init_default_scope

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


def _narrow(part: ConfigDict) -> None:
    for key, value in part.items():
        if isinstance(value, dict):
            _narrow(value)
        elif key.endswith("channels"):
            part[key] = WIDTH if isinstance(value, int) else [WIDTH] * len(value)


def write_model(folder: Path, name: str, min_score: float = 0.0) -> tuple[str, str]:
    """Write config and checkpoint of a detector. SOLOv2 finds nothing with a `min_score` of 1."""
    config = folder / f"{name}.py"
    checkpoint = folder / f"{name}.pth"
    config.write_text(f"_base_ = 'mmdet::{HEADS[name]}.py'")
    cfg = Config.fromfile(config)
    model = cfg.model
    for part in ("neck", "rpn_head", "roi_head", "mask_head"):
        _narrow(model.get(part, ConfigDict()))
    if name == "SOLOv2":
        model.mask_head.update(num_grids=[12, 9, 6, 4, 3], stacked_convs=1)
        model.test_cfg.score_thr = min_score
    model.backbone = TRUNK
    for key in FEW.keys() & model.test_cfg.keys():
        cfg.merge_from_dict({f"model.test_cfg.{key}": FEW[key]})
    cfg.test_dataloader.dataset.pipeline = PIPELINE
    cfg.dump(config)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), checkpoint)
    return str(config), str(checkpoint)
