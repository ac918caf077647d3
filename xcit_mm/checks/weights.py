"""Checks of the weights that training starts from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import HOOKS
from torch import nn

from ..models import XCiT
from ..utils.configs import part_class
from ..weights.bands import FILL_HINT
from ..weights.layouts import parse_checkpoint
from ..weights.matching import StrictLoadHook, match_model, match_trunk
from ..weights.published import REMOTE_PREFIXES, ensure_downloaded, local_path
from ..weights.reader import load_from_file
from .findings import Finding, check, fail, note, ok


def strict_load_hooks(cfg: Config) -> list[dict]:
    """Return the configs of the hooks that load a checkpoint completely or not at all."""
    hooks = cfg.get("custom_hooks") or []
    return [hook for hook in hooks if part_class(hook, HOOKS, cfg.get("default_scope")) is StrictLoadHook]


def _init_cfgs(cfg: Config) -> list[dict]:
    """Return the backbone's entries of `init_cfg` that name a checkpoint."""
    given = (cfg.model.get("backbone") or {}).get("init_cfg") or []
    return [entry for entry in ([given] if isinstance(given, dict) else given) if "checkpoint" in entry]


def started_from(cfg: Config) -> list[str]:
    """Return the checkpoints that training starts from."""
    return [*(entry["checkpoint"] for entry in _init_cfgs(cfg)), *filter(None, [cfg.get("load_from")])]


def download_weights(cfg: Config) -> None:
    """Download the weights that training starts from. Raise ValueError or OSError if a name or a download is wrong."""
    for name in started_from(cfg):
        if name.startswith(REMOTE_PREFIXES):
            ensure_downloaded(name)


@check
def check_weights(cfg: Config, model: Any) -> Iterator[Finding]:
    """Check that the weights of a model with an XCiT exist, or can be downloaded, and fit."""
    if not isinstance(getattr(model, "backbone", None), XCiT):
        return
    hooks = strict_load_hooks(cfg)
    for entry in _init_cfgs(cfg):
        yield from _check_file("init_cfg", entry["checkpoint"], model, entry)
    if cfg.get("load_from"):
        strict = any(hook.get("strict_heads", True) for hook in hooks)
        options = next((hook for hook in hooks if hook.get("fill_stem")), {})
        yield from _check_file("load_from", cfg.load_from, model, options, strict)
    if not hooks:
        text = "without StrictLoadHook mmengine loads the part of a checkpoint that fits, without an error"
        yield note("D701", text, "custom_hooks = [dict(type='StrictLoadHook')]")


def _check_file(option: str, name: str, model: nn.Module, options: dict, strict: bool = False) -> Iterator[Finding]:
    """Check a file against the model if `strict`, else against the backbone. `options` is `init_cfg`, or the hook."""
    path = local_path(name) if name.startswith(REMOTE_PREFIXES) else Path(name).expanduser()
    if not path.is_file():
        if "://" not in name:
            fix = "check the path, or give a name of tools/weights.py list"
            yield fail("D703", f"{option}: no checkpoint at {name}", fix)
        return
    content, fill_stem = load_from_file(str(path)), options.get("fill_stem")
    try:
        if strict:
            match_model(model, content, fill_stem=fill_stem)
        else:
            match_trunk(model.backbone, parse_checkpoint(content, options.get("use_ema", False)), fill_stem=fill_stem)
    except ValueError as error:
        fix = "take weights of this model, or correct the model; to fine-tune on other classes, "
        fix += f"StrictLoadHook(strict_heads=False); on other bands, {FILL_HINT} in init_cfg or StrictLoadHook"
        yield fail("D704", f"{option} {name} does not fit: {error}", fix)
    yield ok(f"{option} {name} fits")
