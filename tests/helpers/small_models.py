"""Shipped recipes with a small trunk, narrow necks and heads and few proposals, and images."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config, ConfigDict
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from torch import Tensor

from helpers.configs import read_config_file
from helpers.golden import fill
from helpers.paths import CONFIGS

WIDTH = 32  # of the trunk
# The most that layers of neck and heads have.
CHANNELS = dict(in_channels=48, out_channels=48, fc_out_channels=32, feat_channels=32)
CHANNELS |= dict(conv_out_channels=16, channels=16)
SIZES = ("scale", "scales", "crop_size", "size")  # pixels
TRUNK = dict(embed_dim=WIDTH, depth=4, num_heads=4, eta=1.0)


def narrow(node: Any) -> None:
    """Give neck and heads in a config fewer channels and convolutions, in place."""
    if isinstance(node, list):
        for child in node:
            narrow(child)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in CHANNELS and isinstance(value, list):
                node[key] = [min(channels, CHANNELS[key]) for channels in value]
            elif key in CHANNELS:
                node[key] = min(value, CHANNELS[key])
            elif key in ("num_convs", "stacked_convs"):
                node[key] = 1
            else:
                narrow(value)


def narrow_model(model: Any) -> None:
    """Give the model of a config a small trunk, narrow layers and few proposals, in place."""
    number = len(model.backbone.get("strides", (4, 8, 16, 32)))
    trunk = dict(arch=TRUNK, out_indices=(0, 1, 2, 3)[-number:])
    width = WIDTH
    if model.backbone.type == "TimmPyramid":
        trunk = dict(model="test_vit", pretrained=False)
        width = 64
    # With dropped paths a branch may get no gradient.
    model.backbone.update(trunk, drop_path_rate=0.0, init_cfg=None)
    masked = model.get("panoptic_head") or model.get("decode_head", {})
    if "num_queries" in masked:  # Mask2Former, whose channels depend on each other
        masked.num_queries = 10
    else:
        narrow([part for key, part in model.items() if key != "backbone"])
    (model.get("neck") or masked).in_channels = [width] * number
    if "auxiliary_head" in model:
        model.auxiliary_head.in_channels = width
    if "rpn_head" in model:
        model.train_cfg.rpn_proposal.max_per_img = 20
        model.test_cfg.rpn.update(nms_pre=200, max_per_img=60)


def small(leaf: str, **model: Any) -> Config:
    """Return a leaf config of a small model, with changes of the model."""
    cfg = read_config_file(CONFIGS / leaf)
    narrow_model(cfg.model)
    cfg.merge_from_dict(dict(model=model))
    return cfg


def mask_rcnn(**model: Any) -> Config:
    return small("demo/mask-rcnn_xcit-n12-p16_shapes.py", **model)


def cascade_mask_rcnn(agnostic: bool = True) -> Config:
    cfg = small("cascade_rcnn/cascade-mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py")
    for head in cfg.model.roi_head.bbox_head:
        head.reg_class_agnostic = agnostic
    return cfg


def retinanet() -> Config:
    return small("retinanet/retinanet_xcit-s12-p16_fpn_1x_coco.py")


def semantic_fpn(**model: Any) -> Config:
    """Of five classes."""
    cfg = small("semantic_fpn/fpn_xcit-s12-p16_8xb2-80k_ade20k-512x512.py")
    cfg.model.decode_head.num_classes = 5
    cfg.merge_from_dict(dict(model=model))
    return cfg


def upernet() -> Config:
    return small("upernet/upernet_xcit-s12-p16_8xb2-160k_ade20k-512x512.py")


def build(cfg: Config) -> Any:
    """Build a recipe's model with the parameters of the golden values, in eval mode."""
    init_default_scope(cfg.default_scope)
    cfg.model.backbone.pop("init_cfg", None)
    return fill(revert_sync_batchnorm(MODELS.build(cfg.model))).eval()


def read(leaf: Path) -> Config:
    cfg = read_config_file(leaf)
    init_default_scope(cfg.default_scope)
    return cfg


def divided(size: object, by: int) -> object:
    if isinstance(size, int):
        return max(1, size // by)
    return type(size)(divided(side, by) for side in size)


def shrink(node: object, by: int) -> None:
    """Divide the image sizes in a config, in place."""
    if isinstance(node, dict):
        node.update({key: divided(value, by) for key, value in node.items() if key in SIZES})
        node = list(node.values())
    for child in node if isinstance(node, (list, tuple)) else ():
        shrink(child, by)


def tiny(leaf: Path, shapes: Path) -> Config:
    """Return a leaf config with narrow layers, few proposals, and shapes of about 100 pixels."""
    cfg = read(leaf)
    model = cfg.model
    narrow_model(model)
    if "rpn_head" in model:
        stages = model.train_cfg.rcnn
        for stage in stages if isinstance(stages, list) else [stages]:
            stage.sampler.num = 16
    test_cfg = model.test_cfg.get("rcnn", model.test_cfg)
    if "nms" in test_cfg:
        test_cfg.update(score_thr=0.0, max_per_img=5)  # an untrained model has low scores
    cfg.optim_wrapper.type = "OptimWrapper"  # mixed precision needs a GPU
    by = 8 if cfg.default_scope == "mmdet" else 4
    shrink(model.data_preprocessor, by)
    shrink(cfg.get("tta_pipeline"), by)
    for split, folder in (("train", "training"), ("test", "validation")):
        loader = cfg[f"{split}_dataloader"]
        loader.update(num_workers=0, persistent_workers=False)
        loader.dataset.data_root = str(shapes)
        shrink(loader.dataset.pipeline, by)
        if cfg.default_scope == "mmdet":
            loader.dataset.update(
                ann_file=f"annotations/instances_{folder}.json",
                data_prefix=dict(img=f"images/{folder}"),
                metainfo=dict(classes=("circle", "square", "triangle", "star")),
            )
    return cfg


def first_batch(loader: ConfigDict) -> dict:
    return next(iter(Runner.build_dataloader(loader, seed=0)))


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
