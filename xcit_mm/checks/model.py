"""Checks of the model: channels from the backbone to the heads, weights, BatchNorm."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.registry import HOOKS, MODELS
from torch import nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from ..models.build import model_config
from ..utils.configs import part_class
from ..utils.errors import reason
from ..weights.bands import FILL_HINT
from ..weights.layouts import parse_checkpoint
from ..weights.matching import BandMismatch, HeadMismatch, match_model, match_trunk
from ..weights.published import REMOTE_PREFIXES, download_folder, local_path
from ..weights.reader import load_from_file
from ..weights.strict_loading import StrictLoadHook
from .findings import Finding, fail, note, ok

__all__ = ["build_model", "check_channels", "check_norms", "check_weights", "class_heads", "strict_load_hooks"]

SIDE = 512  # pixels of the square image whose maps are looked at, a multiple of every stride


def build_model(cfg: Config) -> nn.Module:
    try:
        with torch.device("meta"):
            return MODELS.build(model_config(cfg))
    except Exception:  # a module that computes with its values as it is built needs real ones
        return MODELS.build(model_config(cfg))


def class_heads(model: nn.Module) -> dict[str, nn.Module]:
    """The heads whose classes are the data set's, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if name.rstrip(".0123456789").endswith("head")
        and not name.endswith(("rpn_head", "semantic_head"))
        and isinstance(getattr(module, "num_classes", None), int)
    }


class Map(NamedTuple):
    """What is known of a feature map without its values."""

    width: int
    stride: float


def check_channels(cfg: Config, model: nn.Module) -> Iterator[Finding]:
    """Check number, width and stride of the backbone's maps against the neck, and of the maps that heads get."""
    source = "the backbone"
    backbone: Any = model.backbone
    maps = [Map(backbone.arch.embed_dim, stride) for stride in backbone.strides]
    if cfg.model.get("neck"):
        widths = [one.width for one in maps]
        first: Any = cfg.model.neck if isinstance(cfg.model.neck, dict) else cfg.model.neck[0]
        given = list(first.in_channels) if isinstance(first.get("in_channels"), Sequence) else widths
        if given != widths:
            yield fail("D602", f"neck.in_channels is {given}, the backbone gives {widths}", f"in_channels={widths}")
        try:
            maps = _maps_of(model, [Map(width, one.stride) for width, one in zip(given, maps, strict=True)])
        except Exception as error:  # a neck may be anything
            if given == widths:
                yield note("D604", f"the neck cannot be tried on small maps ({reason(error)})")
            return
        source = "the neck"
    yield from _check_widths(model, source, [one.width for one in maps])
    yield from _check_strides(cfg, model, source, [one.stride for one in maps])
    yield ok(
        f"{source} gives {len(maps)} maps of {maps[0].width} channels at strides "
        f"{_listed(one.stride for one in maps)}, as the heads expect"
    )


def _maps_of(model: Any, maps: Sequence[Map]) -> list[Map]:
    """What a model's neck makes of the backbone's maps of an image; it costs nothing on the meta device.

    Raises:
        ValueError: If it makes no maps of them.
    """
    device = next(model.parameters()).device
    with torch.no_grad():
        given = [torch.zeros((1, one.width, *[int(SIDE // one.stride)] * 2), device=device) for one in maps]
        shapes = [tuple(one.shape) for one in model.neck.eval()(given)]
    if any(len(shape) != 4 for shape in shapes):
        raise ValueError(f"it gives {shapes}")
    return [Map(shape[1], SIDE / shape[3]) for shape in shapes]


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
            yield fail(
                "D605",
                f"{name} has anchors for {levels} maps, {source} gives {len(widths)}",
                "one stride in its anchor_generator for each map",
            )


def _check_strides(cfg: Config, model: Any, source: str, strides: list[float]) -> Iterator[Finding]:
    """Check that whatever turns places on the maps into pixels does it by their strides."""
    for name, module in model.named_modules():
        wanted = _strides_of(name, module)
        # Some anchors of mmdet's (SSD's) are only about as far from each other as the places on the map.
        if all(0.7 < ours / theirs < 1.4 for ours, theirs in zip(wanted, strides, strict=False)):
            continue
        key = "featmap_strides" if hasattr(module, "featmap_strides") else "strides"
        fix = f"{key}={[round(stride) for stride in strides[: len(wanted)]]} in {name}"
        neck, given = cfg.model.get("neck"), model.backbone.strides
        if isinstance(neck, dict) and wanted[0] in given and given.index(wanted[0]) != neck.get("start_level", 0):
            fix = f"--cfg-options model.neck.start_level={given.index(wanted[0])}, or {fix}"
        yield fail("D606", f"{name} expects maps of strides {_listed(wanted)}, {source} gives {_listed(strides)}", fix)


def _strides_of(name: str, module: Any) -> list[float]:
    """The strides that a module believes its maps to have, if it is one that needs them."""
    if hasattr(module, "featmap_strides"):  # RoI extractors
        return list(module.featmap_strides)
    if name.endswith("pixel_decoder"):
        return list(getattr(module, "strides", []))
    if name.rstrip(".0123456789") in ("rpn_head", "bbox_head"):
        return [stride[0] for stride in getattr(getattr(module, "prior_generator", None), "strides", [])]
    return []


def _channels_of(head: nn.Module, widths: Sequence[int]) -> int | list[int]:
    """The `in_channels` of a head that is given maps of these widths; 0 if it takes a map that there is not."""
    index = getattr(head, "in_index", 0 if isinstance(head.in_channels, int) else range(len(widths)))
    taken = [widths[i] for i in ([index] if isinstance(index, int) else index) if i < len(widths)]
    as_one = isinstance(index, int) or getattr(head, "input_transform", None) == "resize_concat"
    return sum(taken) if as_one else taken


def strict_load_hooks(cfg: Config) -> list[dict]:
    """The configs of the hooks that load a checkpoint whole or not at all."""
    hooks = cfg.get("custom_hooks") or []
    return [hook for hook in hooks if part_class(hook, HOOKS, cfg.get("default_scope")) is StrictLoadHook]


def check_weights(cfg: Config, model: nn.Module) -> Iterator[Finding]:
    """Check that weights are there, or will be fetched, and fit."""
    init_cfg = cfg.model.backbone.get("init_cfg") or []
    for one in [init_cfg] if isinstance(init_cfg, dict) else init_cfg:
        if "checkpoint" in one:
            use_ema, fill_stem = one.get("use_ema", False), one.get("fill_stem")
            yield from _check_file("init_cfg", one["checkpoint"], model, False, use_ema, fill_stem)
    hooks = strict_load_hooks(cfg)
    if cfg.get("load_from"):
        strict = any(hook.get("strict_heads", True) for hook in hooks)
        fill_stem = next((hook["fill_stem"] for hook in hooks if hook.get("fill_stem")), None)
        yield from _check_file("load_from", cfg.load_from, model, strict, fill_stem=fill_stem)
    if not hooks:
        yield note(
            "D701",
            "without StrictLoadHook mmengine loads the part of a checkpoint that fits, without an error",
            "custom_hooks = [dict(type='StrictLoadHook')]",
        )


def _check_file(
    option: str, name: str, model: nn.Module, strict: bool, use_ema: bool = False, fill_stem: str | None = None
) -> Iterator[Finding]:
    path = local_path(name) if name.startswith(REMOTE_PREFIXES) else Path(name).expanduser()
    if not path.is_file():
        if "://" in name:
            yield note("D702", f"{option} {name} is not in {download_folder()} yet: training downloads it first")
        else:
            fix = "check the path, or give a name of tools/weights.py list"
            yield fail("D703", f"{option}: no checkpoint at {name}", fix)
        return
    content = load_from_file(str(path))
    try:
        if strict:
            match_model(model, content, fill_stem=fill_stem)
        else:
            match_trunk(model.backbone, parse_checkpoint(content, use_ema), fill_stem=fill_stem)
    except ValueError as error:
        fix = "take weights of this model, or correct the model"
        if isinstance(error, HeadMismatch):
            fix += "; to fine-tune on other classes, StrictLoadHook(strict_heads=False)"
        if isinstance(error, BandMismatch):
            fix = (
                f"{FILL_HINT} in {'init_cfg' if option == 'init_cfg' else 'StrictLoadHook'}, or weights for such images"
            )
        yield fail("D704", f"{option} {name} does not fit: {error}", fix)
    yield ok(f"{option} {name} fits")


def check_norms(model: nn.Module, batch_size: int, processes: int) -> Iterator[Finding]:
    """Check that BatchNorm has the devices and the values it needs in training."""
    norms = {
        name: norm for name, norm in model.train().named_modules() if isinstance(norm, _BatchNorm) and norm.training
    }
    if processes > 1 and not torch.cuda.is_available():
        parts = sorted({name.partition(".")[0] for name, norm in norms.items() if isinstance(norm, SyncBatchNorm)})
        if parts:
            yield fail(
                "D609",
                f"{' and '.join(parts)} use SyncBN, which needs CUDA on {processes} processes",
                f"--cfg-options {' '.join(f'model.{part}.norm_cfg.type=BN' for part in parts)}",
            )
    alone = [name for name, norm in norms.items() if processes == 1 or not isinstance(norm, SyncBatchNorm)]
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
            yield fail(
                "D608",
                f"BatchNorm in {' and '.join(pooled)} follows pooling to 1x1: one image gives one value a channel",
                "train_dataloader.batch_size=2, or more",
            )
        else:
            yield note("D607", "BatchNorm learns from single images", "train_dataloader.batch_size=2, or more")
    yield ok(f"BatchNorm runs on {processes} process(es)")
