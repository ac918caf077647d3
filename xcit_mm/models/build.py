"""Models built and filled: from weights alone, or from a config and its checkpoint."""

import copy
import logging
from collections.abc import Mapping

import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from ..weights.layouts import backbone_options, parse_checkpoint
from ..weights.matching import match_model, match_trunk
from ..weights.reader import load_checkpoint
from .backbone import Trunk, XCiT
from .classifier import XCiTClassifier
from .pyramid import STRIDES

__all__ = ["backbone_from_config", "model_config", "model_from_config", "model_from_weights"]


def model_from_weights(checkpoint: str, device: str | None = None, use_ema: bool = False) -> Trunk:
    """The model of a file in any layout, in eval mode.

    What a file does not tell is taken as published: the blocks that are tapped, and class attention's `tokens_norm`,
    which is logged for shapes that are not published.

    Args:
        checkpoint: A path, a URL or `xcit://NAME`.
        device: As in torch; default: a GPU if there is one.
        use_ema: Take the averaged weights of a training file: `model_ema`, or timm's `state_dict_ema`.

    Returns:
        An `XCiTClassifier` if the file has class attention, without a head if the file has none (DINO's); an
        `XCiT` if it has the pyramid, as detectors and segmentors do; else a `Trunk`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it holds no whole XCiT.
    """
    try:
        weights = parse_checkpoint(load_checkpoint(checkpoint), use_ema)
        options, trunk = backbone_options(weights.trunk), weights.trunk
        if "cls_token" in trunk:
            model = XCiTClassifier(num_classes=len(trunk.get("head.weight", ())), **options)
            if not isinstance(options["arch"], str):
                print_log(f"{checkpoint} does not tell tokens_norm: taken as True", "current", logging.WARNING)
        elif any(key.startswith("fpn") for key in trunk):
            model = XCiT(strides=_strides(trunk, options["patch_size"]), **options)
        else:
            model = Trunk(**options)
        model.load_state_dict(match_trunk(model, weights))
    except ValueError as error:
        raise ValueError(f"{checkpoint}: {error}") from None
    return model.eval().to(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def model_from_config(cfg: Config, checkpoint: str) -> nn.Module:
    """The detector, segmentor or classifier of a config, filled whole by its checkpoint, on the CPU in eval mode.

    Args:
        cfg: A config of mmdet, mmseg or mmpretrain; it is not changed.
        checkpoint: A path, a URL or `xcit://NAME`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the model cannot be built, or the checkpoint does not fill it.
    """
    model = _build(cfg, _unfilled(cfg))
    model.load_state_dict(match_model(model, load_checkpoint(checkpoint)))
    return model.eval()


def backbone_from_config(cfg: Config, checkpoint: str) -> nn.Module:
    """The backbone of a config alone, pyramid included; see `model_from_config`."""
    backbone = _unfilled(cfg).get("backbone")
    if not backbone:
        raise ValueError(f"the config's model, {cfg.model.get('type')}, has no backbone: take it whole")
    model = _build(cfg, backbone)
    weights = parse_checkpoint(load_checkpoint(checkpoint))
    state = match_trunk(model, weights)
    initial = [key for key in model.state_dict() if key not in state]
    if initial:
        raise ValueError(
            f"{checkpoint} is a {weights.task} without {initial[0]} and {len(initial) - 1} more of the pyramid, "
            "which would be random: give a checkpoint of a detector or segmentor"
        )
    model.load_state_dict(state)
    return model.eval()


def model_config(cfg: Config) -> ConfigDict:
    """A copy of a config's model as mmengine's Runner builds it: a `data_preprocessor` may stand beside the model.

    The model's own wins.

    Raises:
        ValueError: If the config has no model.
    """
    if not cfg.get("model"):
        raise ValueError("the config has no model: give the config of a whole run")
    model = copy.deepcopy(cfg.model)
    if cfg.get("data_preprocessor") is not None:
        model.setdefault("data_preprocessor", copy.deepcopy(cfg.data_preprocessor))
    return model


def _unfilled(cfg: Config) -> ConfigDict:
    model = model_config(cfg)
    (model.get("backbone") or {}).pop("init_cfg", None)  # the checkpoint holds all
    return model


def _build(cfg: Config, part: ConfigDict) -> nn.Module:
    init_default_scope(cfg.get("default_scope") or "mmengine")
    try:
        return MODELS.build(part)
    except Exception as error:  # a wrong config makes the libraries raise nearly anything
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        fix = "correct the model in the config" if cfg.get("default_scope") else "give the config a default_scope"
        raise ValueError(f"the model cannot be built: {why}; {fix}") from error


def _strides(trunk: Mapping[str, Tensor], patch_size: int) -> tuple[int, ...]:
    """Strides of a pyramid; those from `patch_size` on have no parameters and count as there."""
    names = {stride: f"fpn{number}." for number, stride in enumerate(STRIDES, start=1)}
    return tuple(s for s in STRIDES if s >= patch_size or any(key.startswith(names[s]) for key in trunk))
