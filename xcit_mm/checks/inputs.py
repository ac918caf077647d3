"""Checks of what a model gets: batches, the sizes and colours of images, and weights."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.registry import HOOKS

from ..archs import MEAN, STD
from ..models import MIN_SIZE, Pyramid
from ..utils.config_data import data_sets
from ..utils.config_parts import find_step, part_class
from ..utils.model_input import ModelInput
from ..weights import StrictLoadHook
from ..weights.reader import check_checkpoint
from ..weights.work_dirs import CHECKPOINT_SUFFIXES
from .findings import Finding, fail, listed, note


def check_start(cfg: Config, processes: int) -> Iterator[Finding]:
    """Check that the learning rate is for the images of a step, and files of weights are there."""
    accumulated = (cfg.get("optim_wrapper") or {}).get("accumulative_counts", 1)
    scaling = cfg.get("auto_scale_lr") or {}
    batch = (cfg.get("train_dataloader") or {}).get("batch_size", 1) * processes * accumulated
    base = scaling.get("base_batch_size", batch)
    if batch != base and not scaling.get("enable"):
        images = f"{batch} images a step over {processes} process(es), {accumulated} iteration(s)"
        yield note(
            "D204", f"{images}; the learning rate is for {base} images", "auto_scale_lr.enable=True"
        )
    init_cfg = (cfg.model.get("backbone") or {}).get("init_cfg")
    initial = init_cfg.get("checkpoint") if isinstance(init_cfg, dict) else None
    for source in map(str, filter(None, (initial, cfg.get("load_from")))):
        if source.endswith(CHECKPOINT_SUFFIXES):  # not a name or a folder
            check_checkpoint(source)


def check_sizes(cfg: Config, model: Any) -> Iterator[Finding]:
    """Check that a segmentor sees sides that are multiples of 32, in tests and in training.

    The coarsest map has a cell for each whole 32 pixels, and mmseg stretches the logits to the
    image. What remains of a side shifts them, and a training on such sides learns the shift.
    """
    if not (hasattr(model, "decode_head") and isinstance(model.backbone, Pyramid)):
        return
    options = vars(model.data_preprocessor)
    padding = options.get("test_cfg") or {}
    heads = [type(part).__name__ for part in model.modules()]
    if "MaskFormerHead" in heads:
        if padding:
            problem = "mmseg's MaskFormerHead squeezes the map of a padded image"
            fix = "model.data_preprocessor.test_cfg=None, and test images of multiples of 32"
            yield note("D607", problem, fix)
    elif (padding.get("size_divisor") or 1) % MIN_SIZE:
        problem = "a map is misplaced if a side of its image is no multiple of 32"
        yield note("D607", problem, "model.data_preprocessor.test_cfg=dict(size_divisor=32)")
    sizes = []
    if model.test_cfg and model.test_cfg.get("mode") == "slide":
        sizes.append(model.test_cfg.get("crop_size", MIN_SIZE))
        if padding and "Mask2FormerHead" in heads:
            problem = "Mask2FormerHead enlarges each crop to the padded image, and mmseg stops"
            yield fail("D607", problem, "model.test_cfg.mode=whole")
    for dataset in data_sets(cfg, "train"):
        crop = find_step(dataset.get("pipeline", []), "RandomCrop") or {}
        if options.get("size"):  # to which smaller crops are padded
            sizes.append(np.maximum(options["size"], crop.get("crop_size", 0)))
    wrong = [size for size in sizes if np.mod(size, MIN_SIZE).any()]
    fix = "give crop_size and data_preprocessor.size multiples of 32"
    yield from listed("note", "D607", wrong, "sizes of crops misplace the map", fix)


def check_weights(cfg: Config, model: Any) -> Iterator[Finding]:
    """Check that weights get images as in their training, and that they are loaded whole."""
    if not isinstance(getattr(model, "backbone", None), Pyramid):
        return
    sources = f"{cfg.model.backbone.get('init_cfg')} {cfg.get('load_from')}"
    if "xcit://" in sources and cfg.get("test_dataloader"):
        inputs = ModelInput(cfg)
        mean, std = inputs.normalisation
        is_same = np.allclose(mean or 0, MEAN, atol=1) and np.allclose(std or 0, STD, atol=1)
        if inputs.channel_order == "BGR" or (inputs.channel_order == "RGB" and not is_same):
            problem = "published weights were trained on others than"
            fix = f"bgr_to_rgb=True, mean={MEAN}, std={STD} in data_preprocessor"
            yield note("D216", f"{problem} {inputs.channel_order}, {mean=}, {std=}", fix)
    hooks = cfg.get("custom_hooks") or []
    if not any(part_class(hook, HOOKS) is StrictLoadHook for hook in hooks):
        problem = "without StrictLoadHook mmengine loads the part of a checkpoint that fits"
        fix = "custom_hooks = [dict(type='StrictLoadHook')]"
        yield note("D701", f"{problem}, without an error", fix)
