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
from .preflight import check_checkpoint


def strict_load_hooks(cfg: Config) -> list[dict]:
    """Return the configs of the hooks that load a checkpoint completely or not at all."""
    hooks = cfg.get("custom_hooks") or []
    return [hook for hook in hooks if part_class(hook, HOOKS, cfg.get("default_scope")) is StrictLoadHook]


def _loading(cfg: Config) -> dict[str, dict]:
    """Return the checkpoints that training starts from: 'init_cfg' and 'load_from' with their options."""
    init, hooks = (cfg.model.get("backbone") or {}).get("init_cfg") or {}, strict_load_hooks(cfg)
    init = init if isinstance(init, dict) else next((each for each in init if "checkpoint" in each), {})
    found = dict(init_cfg=init, load_from=dict(hooks[0] if hooks else {}, checkpoint=cfg.get("load_from")))
    return {option: given for option, given in found.items() if given.get("checkpoint")}


def started_from(cfg: Config) -> list[str]:
    """Return the checkpoints that training starts from."""
    return [given["checkpoint"] for given in _loading(cfg).values()]


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
    strict = strict_load_hooks(cfg)
    for option, given in _loading(cfg).items():
        is_whole = option == "load_from" and bool(strict) and given.get("strict_heads", True)
        yield from _check_file(f"{option} {given['checkpoint']}", given, model, is_whole)
    if not strict:
        text = "without StrictLoadHook mmengine loads the part of a checkpoint that fits, without an error"
        yield note("D701", text, "custom_hooks = [dict(type='StrictLoadHook')]")


def _check_file(where: str, given: dict, model: nn.Module, is_whole: bool) -> Iterator[Finding]:
    """Check a file against the whole model or its backbone. `given` is `init_cfg`, or the hook of `load_from`."""
    name, fill_stem = given["checkpoint"], given.get("fill_stem")
    check_checkpoint(name)
    path = local_path(name) if name.startswith(REMOTE_PREFIXES) else Path(name).expanduser()
    if not path.is_file():  # it is downloaded at the start
        return
    content = load_from_file(str(path))
    try:
        if is_whole:
            match_model(model, content, fill_stem=fill_stem)
        else:
            match_trunk(model.backbone, parse_checkpoint(content, given.get("use_ema", False)), fill_stem=fill_stem)
    except ValueError as error:
        fix = "take weights of this model, or correct the model; to fine-tune on other classes, "
        fix += f"StrictLoadHook(strict_heads=False); on other bands, {FILL_HINT} in init_cfg or StrictLoadHook"
        yield fail("D704", f"{where} does not fit: {error}", fix)
    yield ok(f"{where} fits")
