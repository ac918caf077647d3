"""Checks of the weights that training starts from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..models import Pyramid
from ..weights.bands import check_fill_stem
from ..weights.classes import check_same_classes, configured_classes, learned_classes
from ..weights.layouts import parse_checkpoint
from ..weights.matching import match_model
from ..weights.published import REMOTE_PREFIXES, local_path
from ..weights.reader import check_checkpoint, load_from_file
from ..weights.zoo import load_checkpoint
from .findings import Finding, fail, note, ok
from .run_config import RunConfig


def check_weights(run: RunConfig, model: Any) -> Iterator[Finding]:
    """Check that the weights of a model with a pyramid exist, or can be downloaded, and fit."""
    if not isinstance(getattr(model, "backbone", None), Pyramid):
        return
    is_strict = run.strict_hook is not None
    for option, options in run.start.items():
        name = options["checkpoint"]
        if name.startswith("xcit://") and run.is_bgr:
            problem = f"{name} was trained on RGB, the model gets BGR"
            yield note("D216", problem, "--cfg-options model.data_preprocessor.bgr_to_rgb=True")
        yield from _check_file(option, options, model, is_strict)
    if not is_strict:
        problem = "without StrictLoadHook mmengine loads the part of a checkpoint that fits"
        fix = "custom_hooks = [dict(type='StrictLoadHook')]"
        yield note("D701", f"{problem}, without an error", fix)


def check_learned_classes(cfg: Config, checkpoint: str) -> Iterator[Finding]:
    """Check that the classes of a test are those that a checkpoint, which may be downloaded, names
    as its own.
    """
    learned = learned_classes(load_checkpoint(checkpoint))
    try:
        check_same_classes(checkpoint, learned, configured_classes(cfg))
    except ValueError as error:
        yield fail("D305", f"test: {error}")


def _check_file(option: str, options: dict, model: Any, is_strict: bool) -> Iterator[Finding]:
    """Check the file that an option of the config names against the whole model, if heads must fit,
    or else its backbone.
    """
    name = options["checkpoint"]
    fill_stem = options.get("fill_stem", False)
    check_checkpoint(name)
    check_fill_stem(fill_stem)
    path = local_path(name) if name.startswith(REMOTE_PREFIXES) else Path(name).expanduser()
    if not path.is_file():  # the run downloads it, and checks it again
        return
    checkpoint = load_from_file(str(path))
    try:
        if option == "load_from" and is_strict and options.get("strict_heads", True):
            match_model(model, checkpoint, fill_stem=fill_stem)
        else:
            weights = parse_checkpoint(checkpoint, options.get("use_ema", False))
            model.backbone.match_weights(weights, fill_stem=fill_stem)
    except ValueError as error:
        fix = "take weights of this model, or correct the model"
        yield fail("D704", f"{option} {name} does not fit: {error}", fix)
        return
    yield ok(f"{option} {name} fits")
