"""Checks of the model: whether it can be built, channels and strides from backbone to heads, BatchNorm."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from ..models import XCiT
from ..models.build import model_config
from ..utils.compat import BatchNorm
from ..utils.configs import type_name
from ..utils.errors import reason
from .findings import Finding, check, fail, note, ok
from .preflight import check_backbone

SIDE = 512  # pixels of the square image whose feature maps are computed, a multiple of every stride


def build_checked_model(cfg: Config, tta: bool = False) -> tuple[nn.Module, Finding]:
    """Build the model of a config, without memory for its tensors where possible.

    Returns:
        The model and an `ok`, or an empty module and a failure.
    """
    init_default_scope(cfg.default_scope)
    try:
        check_backbone(cfg, tta)
        return build_model(cfg), ok(f"{type_name(cfg.model)} can be built")
    except Exception as error:  # a wrong config makes the libraries raise nearly any exception
        text = f"the model cannot be built: {reason(error)}"
        return nn.Module(), fail("D601", text, "correct the model in the config")


def build_model(cfg: Config) -> nn.Module:
    """Build the model of a config, on the meta device where possible."""
    try:
        with torch.device("meta"):
            return MODELS.build(model_config(cfg))
    except Exception:  # modules that compute with their own values need real tensors
        return MODELS.build(model_config(cfg))


def class_heads(model: nn.Module) -> dict[str, nn.Module]:
    """Return the heads that predict the classes of the data set, by name."""
    things = "roi_head." if hasattr(model, "panoptic_fusion_head") else None  # its heads predict some of the classes
    return {
        name: module
        for name, module in model.named_modules()
        if name.rstrip(".0123456789").endswith("head")
        and not name.endswith(("rpn_head", "semantic_head"))
        and not type(module).__name__.endswith("RPNHead")  # which is the bbox_head of mmdet's RPN
        and not (things and name.startswith(things))
        and isinstance(getattr(module, "num_classes", None), int)
        and not getattr(module, "class_agnostic", False)
        and not _has_own_targets(name, module)
    }


def _has_own_targets(name: str, head: Any) -> bool:
    """Return whether an auxiliary head has a loss of its own, such as that of boundaries in mmseg's `STDCHead`."""
    loss = getattr(head, "loss_by_feat", None)
    return name.startswith("auxiliary_head") and not getattr(loss, "__qualname__", "").startswith("BaseDecodeHead.")


class FeatureMapSpec(NamedTuple):
    """Specification of a feature map: channels, and stride in pixels."""

    channels: int
    stride: float


@check("D690", "correct neck and heads")
def check_channels(cfg: Config, model: Any) -> Iterator[Finding]:
    """Check number, channels and strides of the feature maps of a model with an XCiT, for its neck and its heads."""
    if not isinstance(getattr(model, "backbone", None), XCiT):
        return
    source, backbone = "the backbone", model.backbone
    maps = [FeatureMapSpec(backbone.arch.embed_dim, stride) for stride in backbone.strides]
    if cfg.model.get("neck"):
        widths = [feature_map.channels for feature_map in maps]
        first: Any = cfg.model.neck if isinstance(cfg.model.neck, dict) else cfg.model.neck[0]
        given = list(first.in_channels) if isinstance(first.get("in_channels"), Sequence) else widths
        if given != widths:
            yield fail("D602", f"neck.in_channels is {given}, the backbone gives {widths}", f"in_channels={widths}")
        try:
            maps = _maps_of(model, [FeatureMapSpec(width, m.stride) for width, m in zip(given, maps, strict=True)])
        except Exception as error:  # a neck may be anything
            if given == widths:
                yield note("D604", f"the neck cannot be tried on small maps ({reason(error)})")
            return
        source = "the neck"
    yield from _check_widths(model, source, [feature_map.channels for feature_map in maps])
    yield from _check_strides(cfg, model, source, [feature_map.stride for feature_map in maps])
    yield ok(
        f"{source} gives {len(maps)} maps of {maps[0].channels} channels at strides "
        f"{_listed(feature_map.stride for feature_map in maps)}, as the heads expect"
    )


def _maps_of(model: Any, maps: Sequence[FeatureMapSpec]) -> list[FeatureMapSpec]:
    """Compute the feature maps of a model's neck, at no cost on the meta device.

    Raises:
        ValueError: If the neck does not return feature maps.
    """
    device = next(model.parameters()).device
    with torch.no_grad():
        given = [torch.zeros((1, m.channels, *[int(SIDE // m.stride)] * 2), device=device) for m in maps]
        shapes = [tuple(output.shape) for output in model.neck.eval()(given)]
    if any(len(shape) != 4 for shape in shapes):
        raise ValueError(f"it gives {shapes}")
    return [FeatureMapSpec(shape[1], SIDE / shape[3]) for shape in shapes]


def _listed(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _check_widths(model: nn.Module, source: str, widths: list[int]) -> Iterator[Finding]:
    for name, head in model.named_modules():
        part = name.rstrip(".0123456789")
        if part not in ("decode_head", "auxiliary_head", "rpn_head", "bbox_head") or not hasattr(head, "in_channels"):
            continue
        given = head.in_channels if isinstance(head.in_channels, int) else list(head.in_channels)
        wanted = _channels_of(head, widths)
        if given != wanted:
            yield fail("D603", f"{name}.in_channels is {given}, {source} gives {widths}", f"in_channels={wanted}")
        levels = getattr(getattr(head, "prior_generator", None), "num_levels", len(widths))
        if levels != len(widths):
            text = f"{name} has anchors for {levels} maps, {source} gives {len(widths)}"
            yield fail("D605", text, "one stride in its anchor_generator for each map")


def _check_strides(cfg: Config, model: Any, source: str, strides: list[float]) -> Iterator[Finding]:
    """Check the strides by which modules convert positions on the feature maps into pixels."""
    for name, module in model.named_modules():
        wanted = _strides_of(name, module)
        # The distances of some anchors of mmdet (SSD) are only close to the strides.
        if all(0.7 < ours / theirs < 1.4 for ours, theirs in zip(wanted, strides, strict=False)):
            continue
        key = "featmap_strides" if hasattr(module, "featmap_strides") else "strides"
        fix = f"{key}={[round(stride) for stride in strides[: len(wanted)]]} in {name}"
        neck, given = cfg.model.get("neck"), model.backbone.strides
        if isinstance(neck, dict) and wanted[0] in given and given.index(wanted[0]) != neck.get("start_level", 0):
            fix = f"--cfg-options model.neck.start_level={given.index(wanted[0])}, or {fix}"
        yield fail("D606", f"{name} expects maps of strides {_listed(wanted)}, {source} gives {_listed(strides)}", fix)


def _strides_of(name: str, module: Any) -> list[float]:
    """Return the strides that a module assumes for its feature maps, or [] if it does not use strides."""
    if hasattr(module, "featmap_strides"):  # RoI extractors
        return list(module.featmap_strides)
    if name.endswith("pixel_decoder"):
        return list(getattr(module, "strides", []))
    if name.rstrip(".0123456789") in ("rpn_head", "bbox_head"):
        return [stride[0] for stride in getattr(getattr(module, "prior_generator", None), "strides", [])]
    return []


def _channels_of(head: nn.Module, widths: Sequence[int]) -> int | list[int]:
    """Return the `in_channels` of a head for feature maps of these widths, or 0 if its `in_index` is out of range."""
    index = getattr(head, "in_index", 0 if isinstance(head.in_channels, int) else range(len(widths)))
    taken = [widths[i] for i in ([index] if isinstance(index, int) else index) if i < len(widths)]
    as_one = isinstance(index, int) or getattr(head, "input_transform", None) == "resize_concat"
    return sum(taken) if as_one else taken


@check("D691", "correct norm_cfg")
def check_norms(model: nn.Module, batch_size: int, processes: int) -> Iterator[Finding]:
    """Check that BatchNorm has the values it needs in training."""
    norms = [(name, m) for name, m in model.train().named_modules() if isinstance(m, BatchNorm) and m.training]
    alone = [name for name, norm in norms if processes == 1 or not isinstance(norm, nn.SyncBatchNorm)]
    if batch_size == 1 and alone:
        pooled = [
            name
            for name, module in model.named_modules()
            if isinstance(module, nn.Sequential)
            and isinstance(next(iter(module), None), nn.AdaptiveAvgPool2d)
            and module[0].output_size in (1, (1, 1))
            and any(norm.startswith(f"{name}.") for norm in alone)
        ]
        if pooled:
            text = f"BatchNorm in {' and '.join(pooled)} follows pooling to 1x1: one image gives one value a channel"
            yield fail("D608", text, "train_dataloader.batch_size=2, or more")
        else:
            yield note("D607", "BatchNorm learns from single images", "train_dataloader.batch_size=2, or more")
    yield ok(f"BatchNorm runs on {processes} process(es)")
