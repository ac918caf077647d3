"""Validate the backbone of a config, the path of a checkpoint and a device, before a model is built."""

from collections.abc import Sequence
from pathlib import Path

import torch
from mmengine.config import Config

from ..models import XCiT, XCiTClassifier
from ..utils.configs import backbone_class, data_preprocessor, data_sets, normalize_step, type_name


def check_backbone(cfg: Config) -> None:
    """Build the XCiT of a config without memory, so that a wrong argument raises its error now.

    Raises:
        TypeError, ValueError: If an argument is wrong, or if the data preprocessor or values of a base config do not
            fit the backbone, or if the head cannot predict in windows.
    """
    backbone, kind = cfg.model.get("backbone", {}), backbone_class(cfg)
    if kind in (XCiT, XCiTClassifier):
        if cfg.model.get("pretrained"):  # a base config of mmseg has the weights of its ResNet
            fix = "set pretrained=None in model, and give weights as backbone.init_cfg"
            raise ValueError(f"model.pretrained={cfg.model['pretrained']!r} is of the base config's backbone: {fix}")
        if cfg.model.get("neck") and "type" not in cfg.model["neck"]:
            raise ValueError("model.neck has no type, since the base config has none: give in_channels to the heads")
        with torch.device("meta"):
            built = kind(**{name: value for name, value in backbone.items() if name not in ("type", "_scope_")})
        _check_normalisation(cfg, built.in_channels)
    head = cfg.model.get("decode_head") or {}
    is_mask2former = isinstance(head, dict) and head.get("type") and type_name(head) == "Mask2FormerHead"
    if is_mask2former and (cfg.model.get("test_cfg") or {}).get("mode") == "slide":
        raise ValueError("Mask2FormerHead of mmseg predicts whole images only: model.test_cfg=dict(mode='whole')")


def _check_normalisation(cfg: Config, channels: int) -> None:
    """Check that mean and std of preprocessor and pipelines have one value, or one for each channel of the model."""
    given = [("data_preprocessor", data_preprocessor(cfg))]
    for dataset in (each for split in ("train", "test") for each in data_sets(cfg, split)):
        given.append(("Normalize", normalize_step(dataset.get("pipeline") or []) or {}))
    for where, name, values in ((where, name, step.get(name)) for where, step in given for name in ("mean", "std")):
        if isinstance(values, Sequence) and len(values) not in (1, channels):
            fix = "give one for each channel, or one for all"
            raise ValueError(f"{where}.{name} has {len(values)} values, the backbone has in_channels={channels}: {fix}")


def check_checkpoint(path: str | Path) -> None:
    """Raise FileNotFoundError if a local checkpoint does not exist. URLs and `xcit://` names are downloaded later."""
    if "://" not in str(path) and not Path(path).expanduser().is_file():
        raise FileNotFoundError(f"no checkpoint at {path}: check the path")


def check_device(device: str | None) -> None:
    """Raise ValueError if torch cannot use a device. None is valid."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        why = str(error).strip().splitlines()[0]
        raise ValueError(f"device {device} cannot be used ({why}): leave it out, or take cpu") from None
