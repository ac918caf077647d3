"""Models with their weights: from a checkpoint alone, or from a config and its checkpoint."""

import copy
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from ..archs import ARCHS
from ..utils.configs import SUFFIXES, backbone_class, data_preprocessor, read_config, type_name
from ..utils.errors import reason
from ..weights.layouts import backbone_options, describe, parse_checkpoint
from ..weights.matching import load_pretrained, match_model, match_trunk
from ..weights.models import HUB_PREFIX, find_config, find_model, shipped_models, similar_names
from ..weights.published import PUBLISHED
from ..weights.reader import load_checkpoint
from .classifier import XCiTClassifier
from .xcit import STRIDES, Trunk, XCiT


def model_from_weights(checkpoint: str, device: str | None = None, use_ema: bool = False) -> Trunk:
    """Build the model of a file in any layout, in eval mode.

    Settings that a file does not contain have their published values: the blocks that are tapped,
    and `tokens_norm` of class attention, which is logged for shapes that are not published.

    Args:
        checkpoint: A path, a URL or `xcit://NAME`.
        device: A device of torch. Default: a GPU if torch has one.
        use_ema: Whether to load the averaged weights of a training file: `model_ema`, or timm's
            `state_dict_ema`.

    Returns:
        An `XCiTClassifier` if the file has class attention, without a head if the file has no head
        (DINO's); an `XCiT` if the file has the pyramid, as those of detectors and segmentors;
        otherwise a `Trunk`.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file does not contain a complete XCiT.
    """
    try:
        weights = parse_checkpoint(load_checkpoint(checkpoint), use_ema)
        with torch.device(
            "meta"
        ):  # the file is checked before memory is taken for the sizes that it claims
            match_trunk(_model_of(weights.trunk), weights)
        model = _model_of(weights.trunk)
        if (
            isinstance(model, XCiTClassifier)
            and describe(weights.trunk).partition("/")[0] not in ARCHS
        ):
            print_log(
                f"{checkpoint} does not state tokens_norm: assumed True", "current", logging.WARNING
            )
        model.load_state_dict(match_trunk(model, weights))
    except ValueError as error:
        raise ValueError(f"{checkpoint}: {error}") from None
    return model.eval().to(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _model_of(trunk: dict[str, Tensor]) -> Trunk:
    """Build the model whose options are those of a trunk's tensors."""
    options = backbone_options(trunk)
    if "cls_token" in trunk:
        head = trunk.get("head.weight")
        return XCiTClassifier(
            num_classes=0 if head is None else len(torch.atleast_1d(head)), **options
        )
    if any(key.startswith("fpn") for key in trunk):
        return XCiT(strides=_strides(trunk, options["patch_size"]), **options)
    return Trunk(**options)


def model_from_config(cfg: Config, checkpoint: str | Path) -> nn.Module:
    """Build the detector, segmentor or classifier of a config with its weights, on the CPU in eval
    mode.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the model cannot be built, or the checkpoint does not fill it.
    """
    model = _build(cfg, _unfilled(cfg))
    model.load_state_dict(match_model(model, load_checkpoint(checkpoint)))
    return model.eval()


def backbone_from_config(cfg: Config, checkpoint: str | Path) -> nn.Module:
    """Build the backbone of a config with its weights, pyramid included; see `model_from_config`."""
    backbone = _unfilled(cfg).get("backbone")
    if not backbone:
        raise ValueError(
            f"the config's model, {cfg.model.get('type')}, has no backbone: use model_from_config"
        )
    model = _build(cfg, backbone)
    if initial := load_pretrained(model, str(checkpoint)):
        lacks = f"it lacks {initial[0]} and {len(initial) - 1} more of the pyramid, which would be random"
        raise ValueError(f"{checkpoint}: {lacks}: give a checkpoint of a detector or segmentor")
    return model.eval()


def build_backbone(name: str | Path, pretrained: bool = True, **options: Any) -> Trunk:
    """Build the backbone of a model or of published weights by its name, for torch code, in eval
    mode.

    The heads of the weights are left out. Images are RGB, minus `MEAN`, divided by `STD` of
    `xcit_mm.archs`.

    Args:
        name: Published weights, such as 'xcit_small_12_p16_224_dist', or a model: a name of the
            model zoo, the folder of a training run, a config, or `hf://OWNER/NAME`. A config
            without published weights needs `pretrained=False`.
        pretrained: Whether to load the weights, which are downloaded on first use. Else the values
            are random.
        options: Arguments of `XCiT` that replace those of the model, such as `out_indices` and
            `frozen_stages`.

    Returns:
        Of ImageNet's or DINO's weights a `Trunk`, whose feature maps have the stride of the
        patches. With `strides`, an `XCiT`, whose pyramid such weights do not train. Of a detector
        or segmentor an `XCiT` with its pyramid.

    Raises:
        ValueError: If the name is unknown, with the most similar names, or the weights do not fit
            the options.
        TypeError: If an option is not an argument.
        FileNotFoundError, ConnectionError: If config or weights cannot be found or downloaded.
    """
    name = str(name).removeprefix("xcit://")
    models, is_path = shipped_models(), name.endswith(SUFFIXES) or Path(name).is_dir()
    if not (is_path or name.startswith(HUB_PREFIX) or name in models or name in PUBLISHED):
        similar = similar_names(name, {**models, **PUBLISHED})
        raise ValueError(
            f"{name} is not a model or weights: try {', '.join(similar) or 'tools/weights.py list'}"
        )
    if name in PUBLISHED and name not in models:
        found = re.match(r"xcit_([a-z])[a-z]+_(\d+)_c?p(\d+)", name)
        assert found is not None
        settings: dict[str, Any] = dict(arch=found[1] + found[2], patch_size=int(found[3]))
        checkpoint = f"xcit://{name}"
        model: Any = (XCiT if "strides" in options else Trunk)(**settings | options)
    else:
        config, checkpoint = find_model(name) if pretrained else (find_config(name), "")
        cfg = read_config(config, [])
        model = _build(cfg, _unfilled(cfg).get("backbone", ConfigDict()) | options)
    if pretrained:
        load_pretrained(model, checkpoint)
    return model.eval()


def model_config(cfg: Config) -> ConfigDict:
    """Copy the model of a config, as mmengine's Runner builds it.

    A `data_preprocessor` of the config becomes the model's, unless the model has its own.

    Raises:
        ValueError: If the config has no model.
    """
    if not cfg.get("model"):
        raise ValueError("the config has no model: give the config of a whole run")
    model = copy.deepcopy(cfg.model)
    if cfg.get("data_preprocessor") is not None:
        model.setdefault("data_preprocessor", copy.deepcopy(cfg.data_preprocessor))
    return model


def check_backbone(cfg: Config) -> None:
    """Raise the error of a wrong backbone now, before weights are loaded. No memory is taken.

    Raises:
        TypeError: If an argument is not one of the backbone's.
        ValueError: If a value is wrong, or if the data preprocessor or values of a base config do
            not fit the backbone, or if the head cannot predict in windows.
    """
    backbone_type = backbone_class(cfg)
    if backbone_type in (XCiT, XCiTClassifier):
        _check_leftovers(cfg)
        options = {
            name: value
            for name, value in cfg.model.backbone.items()
            if name not in ("type", "_scope_")
        }
        with torch.device("meta"):
            backbone: Any = backbone_type(**options)
        _check_normalisation(cfg, backbone.in_channels)
    head = cfg.model.get("decode_head") or {}
    is_mask2former = (
        isinstance(head, dict) and head.get("type") and type_name(head) == "Mask2FormerHead"
    )
    if is_mask2former and (cfg.model.get("test_cfg") or {}).get("mode") == "slide":
        raise ValueError(
            "Mask2FormerHead of mmseg predicts whole images only: model.test_cfg=dict(mode='whole')"
        )


def _check_leftovers(cfg: Config) -> None:
    """Raise ValueError for values that base configs have for their own backbones."""
    pretrained = cfg.model.get("pretrained")
    neck = cfg.model.get("neck")
    if pretrained:  # a base config of mmseg has the weights of its ResNet
        fix = "set pretrained=None in model, and give weights as backbone.init_cfg"
        raise ValueError(f"model.pretrained={pretrained!r} is of the base config's backbone: {fix}")
    if neck and "type" not in neck:
        fix = "give in_channels to the heads"
        raise ValueError(f"model.neck has no type, since the base config has none: {fix}")


def _check_normalisation(cfg: Config, channels: int) -> None:
    for name in ("mean", "std"):
        values = data_preprocessor(cfg).get(name)
        if isinstance(values, Sequence) and len(values) not in (1, channels):
            problem = f"{len(values)} values, the backbone has in_channels={channels}"
            fix = "give one for each channel, or one for all"
            raise ValueError(f"data_preprocessor.{name} has {problem}: {fix}")


def _unfilled(cfg: Config) -> ConfigDict:
    model = model_config(cfg)
    (model.get("backbone") or {}).pop("init_cfg", None)  # the checkpoint has all weights
    return model


def _build(cfg: Config, part: ConfigDict) -> nn.Module:
    init_default_scope(cfg.get("default_scope") or "mmengine")
    try:
        return MODELS.build(part)
    except Exception as error:  # a wrong config makes the libraries raise nearly anything
        fix = (
            "correct the model in the config"
            if cfg.get("default_scope")
            else "give the config a default_scope"
        )
        raise ValueError(f"the model cannot be built: {reason(error)}; {fix}") from error


def _strides(trunk: Mapping[str, Tensor], patch_size: int) -> tuple[int, ...]:
    """Return the strides of a pyramid. Levels from stride `patch_size` on have no parameters and
    count as present.
    """
    names = {stride: f"fpn{number}." for number, stride in enumerate(STRIDES, start=1)}
    return tuple(
        s for s in STRIDES if s >= patch_size or any(key.startswith(names[s]) for key in trunk)
    )
