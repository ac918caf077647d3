"""Recipes with a small trunk, narrow necks and heads, and images for them."""

from copy import deepcopy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor

from helpers.golden import fill
from helpers.paths import CONFIGS

WIDTH = 32  # of the trunk
NECK = 48
NAMES = ("circle", "square", "triangle", "star")
TRUNK = dict(embed_dim=WIDTH, depth=4, num_heads=4, eta=1.0)
BACKBONE = dict(_delete_=True, type="XCiT", patch_size=16, arch=TRUNK, out_indices=(0, 1, 2, 3))
BOXES = dict(in_channels=NECK, fc_out_channels=32, num_classes=4)
MASKS = dict(in_channels=NECK, conv_out_channels=16, num_convs=1, num_classes=4)
TWO_STAGES = dict(
    backbone=BACKBONE,
    neck=dict(in_channels=[WIDTH] * 4, out_channels=NECK),
    rpn_head=dict(in_channels=NECK, feat_channels=32),
    roi_head=dict(
        bbox_head=BOXES,
        bbox_roi_extractor=dict(out_channels=NECK),
        mask_roi_extractor=dict(out_channels=NECK),
        mask_head=MASKS,
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=60)),
)
RETINANET = dict(
    backbone=dict(BACKBONE, out_indices=(1, 2, 3), strides=(8, 16, 32)),
    neck=dict(in_channels=[WIDTH] * 3, out_channels=NECK),
    bbox_head=dict(in_channels=NECK, feat_channels=32, stacked_convs=1, num_classes=4),
)
SEMANTIC_FPN = dict(
    backbone=BACKBONE,
    neck=dict(in_channels=[WIDTH] * 4, out_channels=NECK),
    decode_head=dict(in_channels=[NECK] * 4, channels=16, num_classes=5),
)
UPERNET = dict(
    backbone=BACKBONE,
    decode_head=dict(in_channels=[WIDTH] * 4, channels=NECK, num_classes=5),
    auxiliary_head=dict(in_channels=WIDTH, channels=16, num_classes=5),
)


def _merge(leaf: str, *models: dict[str, Any]) -> Config:
    cfg = Config.fromfile(CONFIGS / leaf)
    for model in models:
        cfg.merge_from_dict(dict(model=deepcopy(model)))  # the merge takes `_delete_` away
    return cfg


def mask_rcnn(**model: Any) -> Config:
    return _merge("demo/mask-rcnn_xcit-n12-p16_shapes.py", TWO_STAGES, model)


def cascade_mask_rcnn(agnostic: bool = True, **model: Any) -> Config:
    leaf = "cascade_rcnn/cascade-mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
    heads = Config.fromfile(CONFIGS / leaf).model.roi_head.bbox_head
    stages = [dict(head, **BOXES, reg_class_agnostic=agnostic) for head in heads]
    roi_head = dict(TWO_STAGES["roi_head"], bbox_head=stages)
    cfg = _merge(leaf, dict(TWO_STAGES, roi_head=roi_head), model)
    cfg.test_dataloader.dataset.metainfo = dict(classes=NAMES)
    return cfg


def retinanet(**model: Any) -> Config:
    cfg = _merge("retinanet/retinanet_xcit-s12-p16_fpn_1x_coco.py", RETINANET, model)
    cfg.test_dataloader.dataset.metainfo = dict(classes=NAMES)
    return cfg


def semantic_fpn(**model: Any) -> Config:
    leaf = "semantic_fpn/fpn_xcit-s12-p16_8xb2-80k_ade20k-512x512.py"
    return _merge(leaf, SEMANTIC_FPN, model)


def upernet(**model: Any) -> Config:
    return _merge("upernet/upernet_xcit-s12-p16_8xb2-160k_ade20k-512x512.py", UPERNET, model)


def build(cfg: Config) -> Any:
    """Build a recipe's model with the parameters of the golden values, in eval mode."""
    init_default_scope(cfg.default_scope)
    cfg.model.backbone.pop("init_cfg", None)
    return fill(revert_sync_batchnorm(MODELS.build(cfg.model))).eval()


def synthetic_images(batch: int, height: int, width: int) -> Tensor:
    """Return smooth noise and rectangles in normalised values, (batch, 3, height, width)."""
    rng = np.random.default_rng(height)
    coarse = rng.standard_normal((batch, 3, height // 16 + 1, width // 16 + 1), np.float32)
    images = F.interpolate(torch.from_numpy(coarse), (height, width), mode="bilinear")
    for index in range(12 * batch):
        top = rng.integers(height - 16)
        left = rng.integers(width - 16)
        rows = slice(top, top + rng.integers(8, 96))
        columns = slice(left, left + rng.integers(8, 96))
        colour = torch.from_numpy(rng.standard_normal((3, 1, 1)))
        images[index % batch, :, rows, columns] = colour
    return images


def synthetic_photo(height: int, width: int) -> np.ndarray:
    """Return smooth noise and rectangles as a photo (height, width, 3), BGR, uint8."""
    pixels = synthetic_images(1, height, width)[0] * 64 + 128
    return pixels.clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()
