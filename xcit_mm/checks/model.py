"""Checks of the model: whether it can be built, channels, strides and gradients from backbone to
heads.
"""

from collections.abc import Iterator
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from ..models import XCiT
from ..models.build import check_backbone, model_config
from ..training.finite import tensors_in
from ..utils.errors import preview, reason
from .findings import Finding, fail, ok

SIDE = 512  # pixels of the square image whose feature maps are computed, a multiple of every stride
_PARTS = (
    "neck",
    "decode_head",
    "auxiliary_head",
    "rpn_head",
    "bbox_head",
)  # those that take feature maps alone


def build_checked_model(cfg: Config) -> tuple[nn.Module, list[Finding]]:
    """Build the model of a config, without memory where possible. If it fails, return an empty
    module and a failure.
    """
    init_default_scope(cfg.default_scope)
    try:
        check_backbone(cfg)
        return build_model(cfg), []
    except Exception as error:  # a wrong config makes the libraries raise nearly any exception
        return nn.Module(), [
            fail(
                "", f"the model cannot be built: {reason(error)}", "correct the model in the config"
            )
        ]


def build_model(cfg: Config) -> nn.Module:
    """Build the model of a config, on the meta device where possible."""
    try:
        with torch.device("meta"):
            return MODELS.build(model_config(cfg))
    except Exception:  # modules that compute with their own values need real tensors
        return MODELS.build(model_config(cfg))


def class_heads(model: nn.Module) -> dict[str, nn.Module]:
    """Return the heads that predict the classes of the data set, by name."""
    things = (
        "roi_head." if hasattr(model, "panoptic_fusion_head") else "-"
    )  # its heads predict some of the classes
    return {
        name: module
        for name, module in model.named_modules()
        if name.rstrip(".0123456789").endswith("head")
        and not name.endswith(("rpn_head", "semantic_head"))
        and not type(module).__name__.endswith(
            ("RPNHead", "STDCHead")
        )  # mmdet's RPN; boundaries have two classes
        and not name.startswith(things)
        and isinstance(getattr(module, "num_classes", None), int)
        and not getattr(module, "class_agnostic", False)
    }


def check_forward(cfg: Config, model: Any, processes: int = 1) -> Iterator[Finding]:
    """Compute the feature maps of an image for the neck and the dense heads, at no cost on the meta
    device.

    All parameters of the backbone must get a gradient if several processes train.
    """
    if not isinstance(getattr(model, "backbone", None), XCiT):
        return
    device = next(model.parameters()).device
    maps = model.train().backbone(
        torch.zeros(2, model.backbone.in_channels, SIDE, SIDE, device=device)
    )
    source = "the backbone"
    used = []
    parts = [
        (name, each) for name, each in model.named_modules() if name.rstrip(".0123456789") in _PARTS
    ]
    for name, part in parts:  # the neck comes before the heads
        try:
            output = part(maps)
        except TypeError:  # Mask2Former's takes samples too
            continue
        except Exception as error:
            expected = f"{name}.in_channels is {getattr(part, 'in_channels', None)}"
            widths = [feature_map.shape[1] for feature_map in maps]
            text = f"{expected}, {source} gives {widths} ({reason(error)})"
            yield fail(
                "D602" if name == "neck" else "D603", text, "in_channels of the maps that it takes"
            )
            if name == "neck":
                return
            continue
        if name == "neck":
            maps = output
            source = "the neck"
        else:
            used += [each for each in tensors_in(output) if each.requires_grad]
    strides = [SIDE / each.shape[3] for each in maps]
    yield from _check_strides(model, source, strides)
    wrapper = dict(find_unused_parameters=cfg.get("find_unused_parameters")) | (
        cfg.get("model_wrapper_cfg") or {}
    )
    if processes > 1 and not wrapper["find_unused_parameters"]:
        yield from _check_gradients(model, used or list(maps))
    listed = ", ".join(f"{stride:g}" for stride in strides)
    given = f"{len(maps)} maps of {maps[0].shape[1]} channels at strides {listed}"
    yield ok(f"{source} gives {given}, as the heads expect")


def _check_gradients(model: Any, used: list[torch.Tensor]) -> Iterator[Finding]:
    trained = {name: p for name, p in model.backbone.named_parameters() if p.requires_grad}
    if not trained:  # linear probing
        return
    loss: Any = sum(each.float().sum() for each in used)
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    unused = {
        name.rpartition(".")[0]: None
        for name, each in zip(trained, gradients, strict=True)
        if each is None
    }
    if unused:
        effect = "several processes stop in the second iteration"
        fix = "use all maps (in_index, start_level), or find_unused_parameters = True"
        yield fail("D609", f"no head uses {preview(unused)} of the backbone: {effect}", fix)


def _check_strides(model: Any, source: str, strides: list[float]) -> Iterator[Finding]:
    """Check the strides by which modules convert positions on the feature maps into pixels."""
    for name, module in model.named_modules():
        wanted = []
        number = len(strides)
        if hasattr(module, "featmap_strides"):  # RoI extractors, which take the first maps
            wanted = list(module.featmap_strides)
            number = len(wanted)
        elif name.endswith("pixel_decoder"):
            wanted = list(getattr(module, "strides", []))
        elif name.rstrip(".0123456789") in ("rpn_head", "bbox_head"):
            wanted = [
                stride[0]
                for stride in getattr(getattr(module, "prior_generator", None), "strides", [])
            ]
        # The distances of some anchors of mmdet (SSD) are only close to the strides.
        close = all(
            0.7 < ours / theirs < 1.4 for ours, theirs in zip(wanted, strides, strict=False)
        )
        if wanted and not (close and len(wanted) == number):
            listed, own = (
                ", ".join(f"{each:g}" for each in values) for values in (wanted, strides)
            )
            rounded = [round(stride) for stride in strides[:number]]
            fix = f"the strides {rounded} in {name}, or start_level=0 in the neck"
            text = f"{name} expects maps of strides {listed}, {source} gives {own}"
            yield fail("D606", text, fix)
