"""Leaf configs with narrow layers, few proposals and images of about 100 pixels."""

from pathlib import Path

from mmengine.config import Config, ConfigDict
from mmengine.registry import init_default_scope
from mmengine.runner import Runner

from helpers.configs import read_config_file

WIDTH = 32
TRUNK = dict(
    arch=dict(embed_dim=WIDTH, depth=6, num_heads=4, eta=1.0),
    drop_path_rate=0.0,  # otherwise a branch may get no gradient
)
PLAIN_WIDTH = 64
PLAIN_TRUNK = dict(model="test_vit", pretrained=False, drop_path_rate=0.0)  # of timm
SIZES = ("scale", "scales", "crop_size", "size")  # pixels


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


def narrow(node: object) -> None:
    """Give the wide layers of neck and heads in a config fewer channels, in place."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key.endswith("channels") and isinstance(value, int):
                node[key] = min(value, WIDTH)
            elif key.endswith("channels") and isinstance(value, list):
                node[key] = [min(channels, WIDTH) for channels in value]
        node = list(node.values())
    for child in node if isinstance(node, list) else ():
        narrow(child)


def tiny(leaf: Path, shapes: Path) -> Config:
    """Return a leaf config with narrow layers, few proposals, and shapes of about 100 pixels."""
    cfg = read(leaf)
    model = cfg.model
    is_plain = model.backbone.type == "TimmPyramid"
    width = PLAIN_WIDTH if is_plain else WIDTH
    model.backbone.update(PLAIN_TRUNK if is_plain else TRUNK, init_cfg=None)
    if "mask2former" in leaf.stem:  # whose channels depend on each other
        (model.get("panoptic_head") or model.decode_head).num_queries = 10
    else:
        narrow([part for key, part in model.items() if key != "backbone"])
    for part in ("neck",) if model.get("neck") else ("decode_head", "panoptic_head"):
        if model.get(part):
            model[part].in_channels = [width] * len(model[part].in_channels)
    if "auxiliary_head" in model:
        model.auxiliary_head.in_channels = width
    if "rpn_head" in model:
        model.train_cfg.rpn_proposal.max_per_img = model.test_cfg.rpn.max_per_img = 20
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
