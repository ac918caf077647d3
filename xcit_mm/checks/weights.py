"""Checks of the weights that training starts from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import HOOKS

from ..models import XCiT
from ..utils.configs import ModelInput, part_class
from ..weights.layouts import parse_checkpoint
from ..weights.matching import StrictLoadHook, match_model, match_trunk
from ..weights.published import REMOTE_PREFIXES, local_path
from ..weights.reader import check_checkpoint, load_from_file
from ..weights.zoo import load_checkpoint
from .findings import Finding, fail, note, ok


def check_weights(cfg: Config, model: Any) -> Iterator[Finding]:
    """Check that the weights of a model with an XCiT exist, or can be downloaded, and fit."""
    if not isinstance(getattr(model, "backbone", None), XCiT):
        return
    init = cfg.model.backbone.get("init_cfg") or {}
    if not isinstance(init, dict):
        init = next((part for part in init if "checkpoint" in part), {})
    if init.get("checkpoint"):
        yield from _check_file(cfg, "init_cfg", init, model, is_whole=False)
    hooks = cfg.get("custom_hooks") or []
    scope = cfg.default_scope
    strict_hooks = [hook for hook in hooks if part_class(hook, HOOKS, scope) is StrictLoadHook]
    strict = strict_hooks[0] if strict_hooks else None
    if cfg.get("load_from"):
        load_from = dict(strict or {}, checkpoint=cfg.load_from)
        is_whole = strict is not None and strict.get("strict_heads", True)
        yield from _check_file(cfg, "load_from", load_from, model, is_whole)
    if not strict:
        problem = "without StrictLoadHook mmengine loads the part of a checkpoint that fits"
        fix = "custom_hooks = [dict(type='StrictLoadHook')]"
        yield note("D701", f"{problem}, without an error", fix)


def learned_classes(checkpoint: str) -> tuple[str, ...] | None:
    """Return the classes that a checkpoint was trained on, or None if it does not name them.

    Args:
        checkpoint: As in `load_checkpoint`, which may download it.
    """
    content = load_checkpoint(checkpoint)
    meta = content.get("meta") if isinstance(content, dict) else None
    classes = ((meta or {}).get("dataset_meta") or {}).get("classes")
    return tuple(classes) if isinstance(classes, (list, tuple)) else None


def _check_file(
    cfg: Config, option: str, options: dict, model: Any, is_whole: bool
) -> Iterator[Finding]:
    """Check a file against the whole model or its backbone.

    Args:
        option: Name of the option that names the file.
        options: How the file is loaded: `checkpoint`, `fill_stem` and `use_ema`.
    """
    name = options["checkpoint"]
    is_published = name.startswith("xcit://") and bool(cfg.get("test_dataloader"))
    if is_published and ModelInput(cfg).channel_order == "BGR":
        problem = f"{name} was trained on RGB, the model gets BGR"
        yield note("D216", problem, "--cfg-options model.data_preprocessor.bgr_to_rgb=True")
    check_checkpoint(name)
    path = local_path(name) if name.startswith(REMOTE_PREFIXES) else Path(name).expanduser()
    if not path.is_file():  # the run downloads it, and checks it again
        return
    content = load_from_file(str(path))
    fill_stem = options.get("fill_stem")
    try:
        if is_whole:
            match_model(model, content, fill_stem=fill_stem)
        else:
            weights = parse_checkpoint(content, options.get("use_ema", False))
            match_trunk(model.backbone, weights, fill_stem=fill_stem)
    except ValueError as error:
        fix = "take weights of this model, or correct the model"
        yield fail("D704", f"{option} {name} does not fit: {error}", fix)
        return
    yield ok(f"{option} {name} fits")
