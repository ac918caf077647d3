"""Checks of what a model gets: batches, the sizes and colours of images, and weights."""

from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.registry import HOOKS

from ..archs import MEAN, STD
from ..models import MIN_SIZE, Pyramid
from ..models.build import has_pyramid
from ..utils.config_data import data_sets
from ..utils.config_parts import find_step, iter_parts, part_class
from ..utils.model_input import ModelInput
from ..weights import StrictLoadHook
from ..weights.published import PUBLISHED, published_name
from .findings import Findings, fail, listed, note


def check_batch(cfg: Config, processes: int) -> Findings:
    """Check that the learning rate fits the number of images in a step."""
    accumulated = (cfg.get("optim_wrapper") or {}).get("accumulative_counts", 1)
    scaling = cfg.get("auto_scale_lr") or {}
    batch = (cfg.get("train_dataloader") or {}).get("batch_size", 1) * processes * accumulated
    base = scaling.get("base_batch_size", batch)
    if batch != base and not scaling.get("enable"):
        images = f"{batch} images a step over {processes} process(es), {accumulated} iteration(s)"
        problem = f"{images}; the learning rate is for {base} images"
        yield note("D204", problem, "auto_scale_lr.enable=True")


def check_sizes(cfg: Config, model: Any) -> Findings:
    """Check that images for a segmentor have sides that are multiples of 32.

    The coarsest feature map has one cell for each 32 pixels, and mmseg stretches the logits over
    the image. If a side is not a multiple of 32, they are shifted against the image, and a training
    on such images learns the shift.
    """
    if not hasattr(model, "decode_head") or not isinstance(model.backbone, Pyramid):
        return
    parts = {type(part).__name__ for part in model.modules()}
    padding = getattr(model.data_preprocessor, "test_cfg", None) or {}
    slides = (model.test_cfg or {}).get("mode") == "slide"
    if "MaskFormerHead" in parts:
        if padding:
            problem = "mmseg's MaskFormerHead squeezes the map of a padded image"
            fix = "model.data_preprocessor.test_cfg=None, and test images of multiples of 32"
            yield note("D607", problem, fix)
    elif (padding.get("size_divisor") or 1) % MIN_SIZE:
        problem = "a map is misplaced if a side of its image is not a multiple of 32"
        yield note("D607", problem, "model.data_preprocessor.test_cfg=dict(size_divisor=32)")
    if padding and slides and "Mask2FormerHead" in parts:
        problem = "Mask2FormerHead enlarges each crop to the padded image, and mmseg stops"
        yield fail("D607", problem, "model.test_cfg.mode=whole")
    sizes = [model.test_cfg.get("crop_size", MIN_SIZE)] if slides else []
    size = getattr(model.data_preprocessor, "size", None) or 0
    divisor = getattr(model.data_preprocessor, "size_divisor", None) or 1
    if divisor % MIN_SIZE:
        for dataset in data_sets(cfg, "train"):
            crop = find_step(dataset.get("pipeline", []), "RandomCrop") or {}
            # 0 for images that are not cropped, whose size is not known.
            sizes.append(np.maximum(size, crop.get("crop_size", 0)))
    wrong = [size for size in sizes if np.mod(size, MIN_SIZE).any()]
    fix = "give crop_size and data_preprocessor.size multiples of 32"
    yield from listed("note", "D607", wrong, "sizes of crops misplace the map", fix)


def check_pixels(cfg: Config) -> Findings:
    """Check that published weights get pixels that are normalised as in their training."""
    backbone = cfg.model.get("backbone") or {}
    sources = [part.get("checkpoint") for part in iter_parts(backbone.get("init_cfg"))]
    sources.append(cfg.get("load_from"))
    # Names, files of the authors, and what timm has of them on the Hub.
    names = [str(source).rpartition("/")[2].removesuffix(".pth") for source in sources]
    is_published = any(published_name(name) in PUBLISHED for name in names)
    if not is_published or not cfg.get("test_dataloader") or not has_pyramid(cfg):
        return
    inputs = ModelInput(cfg)
    order = inputs.channel_order
    if order is None:  # other bands have a mean of their own
        return
    mean, std = inputs.normalisation
    is_same = np.allclose(mean or 0, MEAN, atol=1) and np.allclose(std or 0, STD, atol=1)
    if order == "BGR" or not is_same:
        problem = f"published weights were trained on other values than {order}, {mean=}, {std=}"
        fix = f"bgr_to_rgb=True, mean={MEAN}, std={STD} in data_preprocessor"
        yield note("D216", problem, fix)


def check_hook(cfg: Config) -> Findings:
    """Check that mmengine loads a checkpoint whole."""
    hooks = [part_class(hook, HOOKS) for hook in cfg.get("custom_hooks") or []]
    if has_pyramid(cfg) and StrictLoadHook not in hooks:
        problem = "without StrictLoadHook mmengine loads the part of a checkpoint that fits"
        fix = "custom_hooks = [dict(type='StrictLoadHook')]"
        yield note("D701", f"{problem}, of any classes and without an error", fix)
