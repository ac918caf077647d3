"""Checks of how a training starts: its batch, learning rate, and weights."""

import os
from collections.abc import Iterator
from typing import Any

from mmengine.config import Config
from mmengine.registry import HOOKS

from ..models import Pyramid
from ..utils.configs import ModelInput, part_class
from ..weights import StrictLoadHook
from .findings import Finding, fail, note


def check_start(cfg: Config, model: Any) -> Iterator[Finding]:
    """Check the batch, and for a model with a pyramid learning rates and weights."""
    wrapper = cfg.get("optim_wrapper") or {}
    processes = int(os.environ.get("WORLD_SIZE") or 1)
    accumulated = wrapper.get("accumulative_counts", 1)
    scaling = cfg.get("auto_scale_lr") or {}
    batch = (cfg.get("train_dataloader") or {}).get("batch_size", 1) * processes * accumulated
    base = scaling.get("base_batch_size", batch)
    if batch != base and not scaling.get("enable"):
        images = f"{batch} images a step over {processes} process(es), {accumulated} iteration(s)"
        yield note("D204", f"{images}; the learning rate is for {base} images", "--auto-scale-lr")
    if cfg.get("compile"):
        problem = "compile: mmengine compiles the whole step, which is traced again for each batch"
        yield note("", problem, "no compile, and in a script torch.compile(model.backbone)")
    if not isinstance(getattr(model, "backbone", None), Pyramid):
        return
    constructor = wrapper.get("constructor")  # in a pure Python config a class
    name = str(getattr(constructor, "__name__", constructor))
    # Layer decay of mmdet, mmseg and mmpretrain, for backbones of their own.
    if "LearningRateDecay" in name or name.endswith("LayerDecayOptimizerConstructor"):
        own = "constructor='LayerDecayOptimWrapperConstructor'"
        problem = f"constructor={name!r} knows no {type(model.backbone).__name__}"
        yield fail("", problem, f"{own}, paramwise_cfg=dict(layer_decay_rate=0.8)")
    hooks = cfg.get("custom_hooks") or []
    if not any(part_class(hook, HOOKS) is StrictLoadHook for hook in hooks):
        problem = "without StrictLoadHook mmengine loads the part of a checkpoint that fits"
        fix = "custom_hooks = [dict(type='StrictLoadHook')]"
        yield note("D701", f"{problem}, without an error", fix)
    is_published = "xcit://" in f"{cfg.model.backbone.get('init_cfg')} {cfg.get('load_from')}"
    is_tested = bool(cfg.get("test_dataloader"))
    if is_published and is_tested and ModelInput(cfg).channel_order == "BGR":
        problem = "published weights were trained on RGB, the model gets BGR"
        yield note("D216", problem, "--cfg-options model.data_preprocessor.bgr_to_rgb=True")
