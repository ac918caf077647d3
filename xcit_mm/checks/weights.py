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
    strict = None
    for hook in cfg.get("custom_hooks") or []:
        if part_class(hook, HOOKS, cfg.default_scope) is StrictLoadHook:
            strict = hook
            break
    for option, given in dict(
        init_cfg=init, load_from=dict(strict or {}, checkpoint=cfg.get("load_from"))
    ).items():
        if not given.get("checkpoint"):
            continue
        is_whole = option == "load_from" and strict is not None and given.get("strict_heads", True)
        yield from _check_file(option, given, model, is_whole)
        if (
            given["checkpoint"].startswith("xcit://")
            and cfg.get("test_dataloader")
            and ModelInput(cfg).channel_order == "BGR"
        ):
            text = f"{given['checkpoint']} was trained on RGB, the model gets BGR"
            yield note("D216", text, "--cfg-options model.data_preprocessor.bgr_to_rgb=True")
    if strict is None:
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


def _check_file(option: str, given: dict, model: Any, is_whole: bool) -> Iterator[Finding]:
    """Check a file against the whole model or its backbone. `given` is `init_cfg`, or the hook of
    `load_from`.
    """
    name = given["checkpoint"]
    fill_stem = given.get("fill_stem")
    check_checkpoint(name)
    path = local_path(name) if name.startswith(REMOTE_PREFIXES) else Path(name).expanduser()
    if not path.is_file():  # the run downloads it, and checks it again
        return
    content = load_from_file(str(path))
    try:
        if is_whole:
            match_model(model, content, fill_stem=fill_stem)
        else:
            match_trunk(
                model.backbone,
                parse_checkpoint(content, given.get("use_ema", False)),
                fill_stem=fill_stem,
            )
    except ValueError as error:
        yield fail(
            "D704",
            f"{option} {name} does not fit: {error}",
            "take weights of this model, or correct the model",
        )
    yield ok(f"{option} {name} fits")
