"""Metadata of an exported file: what its runtime and its user need, as text."""

import json
from typing import Any

from mmengine.config import Config
from torch import nn

from ..archs import arch_name
from ..models import MIN_SIZE
from ..utils.configs import channel_order, normalisation, tested_metainfo
from ..version import __version__
from ..weights.reader import load_checkpoint
from .preprocessing import preprocessing_steps


def class_names(cfg: Config, model: Any, checkpoint: str) -> list[str]:
    """Return the names of a model's classes: those of its training, which the checkpoint holds, or else of the config.

    Raises:
        ValueError: If neither has a name for each class.
    """
    if cfg.default_scope == "mmseg":
        count = max(model.out_channels, 2)  # one channel separates a class from the background
    else:
        heads = model.roi_head.bbox_head if hasattr(model, "roi_head") else model.bbox_head
        count = (heads[-1] if isinstance(heads, nn.ModuleList) else heads).num_classes
    content = load_checkpoint(checkpoint)
    meta = content.get("meta") if isinstance(content, dict) else None
    trained = list(((meta or {}).get("dataset_meta") or {}).get("classes") or ())
    if cfg.default_scope == "mmseg" and len(trained) == 1:
        trained = ["background", *trained]
    tested = list(tested_metainfo(cfg)["classes"])
    for names in (trained, tested):
        if len(names) == count:
            return names
    raise ValueError(
        f"{len(tested)} names ({tested[0]}, ...) for the {count} classes of the model: give the data set that the "
        "config tests on metainfo=dict(classes=('name', ...))"
    )


def model_metadata(cfg: Config, model: Any, classes: list[str], divisor: int) -> dict[str, str]:
    """Return what a user of a file needs, which pads the sides of an image to multiples of `divisor`."""
    backbone = getattr(model, "backbone", model)
    mean, std = normalisation(cfg)
    metadata = dict(
        xcit_mm_version=__version__,
        task="backbone",
        arch=arch_name(backbone.arch.embed_dim, backbone.arch.depth, backbone.arch.num_heads),
        patch_size=str(backbone.patch_size),
        channel_order=channel_order(cfg),
        mean=json.dumps(mean),
        std=json.dumps(std),
        min_side=str((MIN_SIZE - 1) // divisor * divisor + 1),  # the backbone takes 32 pixels or more
    )
    if backbone is model:
        return metadata
    metadata["classes"] = json.dumps(classes)
    metadata["test_cfg"] = json.dumps(cfg.model.test_cfg)
    metadata["preprocessing"] = json.dumps(preprocessing_steps(cfg))
    if cfg.default_scope == "mmdet":
        metadata["task"] = "instance segmentation" if model.with_mask else "object detection"
        return metadata
    metadata["task"] = "semantic segmentation"
    metadata["align_corners"] = json.dumps(model.align_corners)
    metadata["threshold"] = json.dumps(model.decode_head.threshold if model.out_channels == 1 else None)
    return metadata
