"""Checks of the model: whether it can be built, and who reads its feature maps, at what stride."""

import re
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from ..models import Pyramid
from ..models.build import fix_of_model, model_config
from ..utils.errors import reason
from .findings import Finding, Findings, fail, ok

_SIDE = 512  # pixels of the square image that feature maps belong to, a multiple of all strides
_HEAD = re.compile(r".*(?<!rpn_)(?<!semantic_)head(\.\d+)?")  # with a number in a cascade


def build_model(cfg: Config) -> tuple[Any, list[Finding]]:
    """Build the model of a config on the meta device, where maps have shapes but no values.

    Returns:
        The model and no finding, or an empty module and why the model cannot be built.
    """
    init_default_scope(cfg.get("default_scope") or "mmengine")
    try:
        return MODELS.build(model_config(cfg)).to("meta"), []
    except Exception as error:  # a wrong config makes the libraries raise nearly any exception
        problem = f"the model cannot be built: {reason(error)}"
        return nn.Module(), [fail("", problem, fix_of_model(cfg))]


def find_heads(model: Any) -> dict[str, Any]:
    """Return the heads that predict the classes of the data set, by name."""
    is_panoptic = hasattr(model, "panoptic_fusion_head")  # boxes are of things alone
    return {
        name: part
        for name, part in model.named_modules()
        if _HEAD.fullmatch(name)
        and isinstance(getattr(part, "num_classes", None), int)
        and not getattr(part, "class_agnostic", False)
        and not (is_panoptic and name.startswith("roi_head."))
    }


def check_feature_maps(model: Any) -> Findings:
    """Check that the neck takes the backbone's maps, and that heads assume the right strides."""
    backbone = getattr(model, "backbone", None)
    if not isinstance(backbone, Pyramid):
        return
    levels = backbone.output_shape().values()
    channels = [level.channels for level in levels]
    strides: list[float] = [level.stride for level in levels]
    source = "the backbone"
    neck = getattr(model, "neck", None)
    if neck is not None:
        expected = getattr(neck, "in_channels", channels)
        if isinstance(expected, list | tuple) and list(expected) != channels:
            problem = f"neck.in_channels is {expected}, the backbone gives {channels}"
            yield fail("", problem, f"model.neck.in_channels={channels}")
            return
        maps = []
        for level in levels:
            side = _SIDE // level.stride
            maps.append(torch.zeros(2, level.channels, side, side, device="meta"))
        strides = [_SIDE / feature_map.shape[3] for feature_map in neck.train()(tuple(maps))]
        source = "the neck"
    for name, part in model.named_modules():
        wanted = _expected_strides(name, part)
        if wanted[: len(strides)] != strides[: len(wanted)]:
            problem = f"{name} expects maps of strides {wanted}, {source} gives {strides}"
            yield fail("D606", problem, f"these strides in {name}, or start_level=0 in the neck")
    yield ok(f"{source} gives maps of the strides {strides}")


def _expected_strides(name: str, part: Any) -> list[float]:
    """Return the strides with which a module converts positions on feature maps into pixels.

    Modules that do not convert positions have none. RoI extractors take the first maps.
    """
    generator = getattr(part, "prior_generator", None)  # of anchors or points
    if generator is not None:
        return [stride[0] for stride in generator.strides]
    is_decoder = name.endswith("pixel_decoder")  # of Mask2Former
    return list(getattr(part, "strides" if is_decoder else "featmap_strides", []))
