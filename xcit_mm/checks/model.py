"""Checks of the model: whether it can be built, channels and strides from backbone to heads, and
its learning rate.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import (
    MODELS,
    OPTIM_WRAPPER_CONSTRUCTORS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    PARAM_SCHEDULERS,
    init_default_scope,
)
from torch import nn

from ..models import Pyramid
from ..models.build import check_backbone, has_pyramid, model_config
from ..utils.configs import part_class, registered_class, type_name
from ..utils.errors import reason
from ..weights.classes import class_heads
from .findings import Finding, fail, note, ok

_SIDE = 512  # pixels of the square image whose feature maps are computed, a multiple of all strides
# Layer decay of mmdet, mmseg and mmpretrain, for backbones of their own.
_OTHER_LAYER_DECAYS = (
    "LearningRateDecayOptimizerConstructor",
    "LayerDecayOptimizerConstructor",
    "LearningRateDecayOptimWrapperConstructor",
)
_DENSE_HEADS = ("decode_head", "auxiliary_head", "rpn_head", "bbox_head")  # of feature maps alone


class CheckedModel:
    """The model of a config, on the meta device, without memory, where possible.

    Attributes:
        module: The model, or an empty module if it cannot be built, as `failures` tells.
        heads: The heads that predict the classes of the data set, by name.
    """

    def __init__(self, cfg: Config) -> None:
        init_default_scope(cfg.default_scope)
        self.module: Any = nn.Module()
        self.failures = []
        try:
            check_backbone(cfg)
            try:
                with torch.device("meta"):
                    self.module = MODELS.build(model_config(cfg))
            except Exception:  # modules that compute with their own values need real tensors
                self.module = MODELS.build(model_config(cfg))
        except Exception as error:  # a wrong config makes the libraries raise nearly any exception
            problem = f"the model cannot be built: {reason(error)}"
            self.failures = [fail("", problem, "correct the model in the config")]
        self.heads = class_heads(self.module)


def check_rates(cfg: Config) -> Iterator[Finding]:
    """Check that learning rate and optimizer, which bases may set, suit batch and backbone."""
    processes = int(os.environ.get("WORLD_SIZE") or 1)
    wrapper = cfg.get("optim_wrapper") or {}
    accumulated = wrapper.get("accumulative_counts", 1)
    scaling = cfg.get("auto_scale_lr") or {}
    batch = (cfg.get("train_dataloader") or {}).get("batch_size", 1) * processes * accumulated
    base = scaling.get("base_batch_size", batch)
    if batch != base and not scaling.get("enable"):
        images = f"{batch} images a step over {processes} process(es)"
        if accumulated > 1:
            images += f" and {accumulated} iterations"
        yield note("D204", f"{images}, the learning rate is for {base} images", "--auto-scale-lr")
    constructor = wrapper.get("constructor")  # in a pure Python config a class
    name = str(getattr(constructor, "__name__", constructor))
    if name.endswith(_OTHER_LAYER_DECAYS) and has_pyramid(cfg):
        problem = f"constructor={name!r} knows no {type_name(cfg.model.backbone)}"
        own = "constructor='LayerDecayOptimWrapperConstructor'"
        yield fail("", problem, f"{own}, paramwise_cfg=dict(layer_decay_rate=0.8)")
    if cfg.get("compile"):
        problem = "compile: mmengine compiles the whole step, which is traced again for each batch"
        yield note("", problem, "no compile, and in a script torch.compile(model.backbone)")
    optimizer = wrapper.get("optimizer") or {}
    is_sgd = part_class(optimizer, OPTIMIZERS, cfg.default_scope) is torch.optim.SGD
    if is_sgd and has_pyramid(cfg):
        problem = f"SGD with lr={optimizer.get('lr')}, which base configs have for ResNets"
        options = "lr=6e-05, weight_decay=0.01"
        if cfg.default_scope != "mmseg":
            options = "lr=0.0001, weight_decay=0.05"
        fix = f"optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', {options}))"
        recipes = f"the recipes of {type_name(cfg.model.backbone)} take AdamW"
        yield note("D205", f"{problem}: {recipes}", fix)
    _check_optimizer_types(cfg)


def _check_optimizer_types(cfg: Config) -> None:
    """Raise ValueError if optimizer, wrapper, constructor or a scheduler has an unknown type, which
    the libraries find after they have read the data.
    """
    wrapper = cfg.get("optim_wrapper") or {}
    schedulers = cfg.get("param_scheduler") or []
    if isinstance(schedulers, dict):
        schedulers = [schedulers]
    constructor = dict(type=wrapper.get("constructor", "DefaultOptimWrapperConstructor"))
    parts = [
        ("optim_wrapper.type", wrapper, OPTIM_WRAPPERS),
        ("optim_wrapper.constructor", constructor, OPTIM_WRAPPER_CONSTRUCTORS),
        ("optim_wrapper.optimizer.type", wrapper.get("optimizer") or {}, OPTIMIZERS),
    ]
    for number, part in enumerate(schedulers):
        parts.append((f"param_scheduler.{number}.type", part, PARAM_SCHEDULERS))
    for where, part, registry in parts:
        if "type" in part:  # several optimizers have other keys
            registered_class(where, part, registry, cfg.default_scope)


def check_forward(model: Any) -> Iterator[Finding]:
    """Check that neck and heads take the channels and strides of the feature maps of an image.

    On the meta device the computation costs nothing.
    """
    if not isinstance(getattr(model, "backbone", None), Pyramid):
        return
    device = next(model.parameters()).device
    image = torch.zeros(2, model.backbone.in_channels, _SIDE, _SIDE, device=device)
    maps = model.train().backbone(image)
    source = "the backbone"
    name = "neck"
    try:
        if getattr(model, "neck", None) is not None:
            maps = model.neck(maps)
            source = "the neck"
        for name, part in model.named_modules():
            if _base_name(name) in _DENSE_HEADS:
                with contextlib.suppress(TypeError):  # Mask2Former's head takes samples too
                    part(maps)
    except Exception as error:
        expected = getattr(model.get_submodule(name), "in_channels", None)
        channels = [feature_map.shape[1] for feature_map in maps]
        problem = f"{name}.in_channels is {expected}, {source} gives {channels} ({reason(error)})"
        yield fail("", problem, "in_channels of the maps that it takes")
        return
    yield from _check_strides(model, maps, source)


def _check_strides(model: Any, maps: Sequence[torch.Tensor], source: str) -> Iterator[Finding]:
    """Check the strides by which heads convert positions on feature maps into pixels."""
    strides = [_SIDE / feature_map.shape[3] for feature_map in maps]
    for name, part in model.named_modules():
        expected, number = _expected_strides(_base_name(name), part, len(maps))
        # The distances of some anchors of mmdet (SSD) are only close to the strides.
        pairs = zip(expected, strides, strict=False)
        are_close = all(0.7 < ours / theirs < 1.4 for ours, theirs in pairs)
        if expected and not (are_close and len(expected) == number):
            problem = f"{name} expects maps of strides {_join(expected)}"
            rounded = [round(stride) for stride in strides[:number]]
            fix = f"the strides {rounded} in {name}, or start_level=0 in the neck"
            yield fail("D606", f"{problem}, {source} gives {_join(strides)}", fix)
    count = f"{len(maps)} maps of {maps[0].shape[1]} channels"
    yield ok(f"{source} gives {count} at strides {_join(strides)}, as the heads expect")


def _base_name(name: str) -> str:
    """Return the name of a module without its number in a list."""
    return name.rstrip(".0123456789")


def _expected_strides(base_name: str, part: Any, number: int) -> tuple[list[float], int]:
    """Return the strides by which a module converts positions on feature maps into pixels, if it
    does, and how many of `number` feature maps it takes.
    """
    if hasattr(part, "featmap_strides"):  # RoI extractors, which take the first maps
        return list(part.featmap_strides), len(part.featmap_strides)
    if base_name.endswith("pixel_decoder"):
        return list(getattr(part, "strides", [])), number
    if base_name in ("rpn_head", "bbox_head"):
        generator = getattr(part, "prior_generator", None)
        return [stride[0] for stride in getattr(generator, "strides", [])], number
    return [], number


def _join(strides: Sequence[float]) -> str:
    return ", ".join(f"{stride:g}" for stride in strides)
