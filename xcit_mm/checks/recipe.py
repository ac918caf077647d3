"""Check of the recipe of a config."""

from collections.abc import Iterator

import torch
from mmengine.config import Config
from mmengine.registry import OPTIMIZERS

from ..models import XCiT
from ..utils.configs import backbone_class, part_class
from .findings import Finding, note


def check_recipe(cfg: Config, processes: int) -> Iterator[Finding]:
    """Check that learning rate and optimizer, which bases may set, suit the batch and an XCiT."""
    scaling = cfg.get("auto_scale_lr") or {}
    batch = (cfg.get("train_dataloader") or {}).get("batch_size", 1) * processes
    base = scaling.get("base_batch_size", batch)
    if batch != base and not scaling.get("enable"):
        images = f"{batch} images a step over {processes} process(es)"
        fix = "--auto-scale-lr (mmdet), --cfg-options auto_scale_lr.enable=True (both)"
        yield note("D204", f"{images}, the learning rate is for {base} images", fix)
    optimizer = (cfg.get("optim_wrapper") or {}).get("optimizer") or {}
    is_sgd = part_class(optimizer, OPTIMIZERS, cfg.default_scope) is torch.optim.SGD
    if is_sgd and backbone_class(cfg) is XCiT:
        problem = f"SGD with lr={optimizer.get('lr')}, which base configs have for ResNets"
        options = "lr=6e-05, weight_decay=0.01"
        if cfg.default_scope != "mmseg":
            options = "lr=0.0001, weight_decay=0.05"
        fix = f"optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', {options}))"
        yield note("D205", f"{problem}: the recipes of XCiT take AdamW", fix)
