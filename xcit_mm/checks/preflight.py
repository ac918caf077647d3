"""Validate the backbone of a config, the path of a checkpoint and a device, before a model is built."""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.model import ImgDataPreprocessor
from mmengine.registry import MODELS

from ..models import XCiT, XCiTClassifier
from ..utils.configs import backbone_class, data_preprocessor, data_sets, normalize_step, part_class, type_name


def check_backbone(cfg: Config, tta: bool = False) -> None:
    """Build the XCiT of a config without memory, so that a wrong argument raises its error now.

    Raises:
        TypeError, ValueError: If an argument is wrong, or if the data preprocessor or values of a base config do not
            fit the backbone.
    """
    backbone, kind = cfg.model.get("backbone", {}), backbone_class(cfg)
    if kind in (XCiT, XCiTClassifier):
        if cfg.model.get("pretrained"):  # a base config of mmseg has the weights of its ResNet
            raise ValueError(
                f"model.pretrained={cfg.model['pretrained']!r} is of the base config's backbone: "
                "set pretrained=None in model, and give weights as backbone.init_cfg"
            )
        if cfg.model.get("neck") and "type" not in cfg.model["neck"]:
            raise ValueError("model.neck has no type, since the base config has none: give in_channels to the heads")
        with torch.device("meta"):
            built = kind(**{name: value for name, value in backbone.items() if name not in ("type", "_scope_")})
        _check_normalisation(cfg, built.in_channels, tta)
        if backbone.get("ignore_padding"):
            _check_padding(cfg)


def _check_normalisation(cfg: Config, channels: int, tta: bool) -> None:
    """Check that mean and std of preprocessor and pipelines have one value, or one for each channel of the model."""
    # mmengine uses the preprocessor beside the model if the model has none, and always for test-time augmentation.
    places = [("model.data_preprocessor", cfg.model), ("data_preprocessor", cfg)]
    given = [(where, place["data_preprocessor"]) for where, place in places if place.get("data_preprocessor")]
    given = given[-1:] if tta else given[:1]
    given += [("Normalize", step) for _, step in _normalize_steps(cfg)]
    for (where, preprocessor), name in product(given, ("mean", "std")):
        values = preprocessor.get(name)
        if not isinstance(values, Sequence):
            continue
        kind = part_class(preprocessor, MODELS, cfg.get("default_scope")) or object
        # That of mmdet, and of mmseg in the OneDL forks, takes RGB and grey images only.
        if len(values) not in (1, 3) and issubclass(kind, ImgDataPreprocessor):
            raise ValueError(
                f"{where}.{name} has {len(values)} values, {type_name(preprocessor)} takes 1 or 3: set mean and std to "
                "None and put dict(type='Normalize', mean=..., std=..., to_rgb=False) into the pipelines"
            )
        if len(values) not in (1, channels):
            raise ValueError(
                f"{where}.{name} has {len(values)} values, the backbone has in_channels={channels}: "
                "give one for each channel, or one for all"
            )


def _normalize_steps(cfg: Config) -> Iterator[tuple[str, dict]]:
    """Yield the steps of the pipelines that normalise, with their split. A config may have a single split."""
    for split in ("train", "test"):
        for dataset in data_sets(cfg, split):
            if step := normalize_step(dataset.get("pipeline") or []):
                yield split, step


def _check_padding(cfg: Config) -> None:
    """Check that `ignore_padding` can distinguish padding from pixels."""
    preprocessor = data_preprocessor(cfg)
    steps = [(f"{split} Normalize", step) for split, step in _normalize_steps(cfg)]
    for where, part in [("data_preprocessor", preprocessor)] if preprocessor.get("mean") or not steps else steps:
        mean = part.get("mean") or [0]
        if all(float(value).is_integer() for value in mean):
            raise ValueError(
                f"ignore_padding=True with {where}.mean={mean}: pixels of that value become zero, like padding; "
                "give a mean that is not a whole number"
            )
    for part in (preprocessor, *(preprocessor.get("batch_augments") or [])):
        for name in ("pad_value", "pad_val", "img_pad_value"):
            if part.get(name):
                raise ValueError(f"ignore_padding=True with {name}={part[name]} in the data_preprocessor: must be 0")


def check_checkpoint(path: str | Path) -> None:
    """Check that a local checkpoint exists. URLs and `xcit://` names are downloaded later.

    Raises:
        FileNotFoundError: If the file does not exist.
    """
    if "://" not in str(path) and not Path(path).is_file():
        raise FileNotFoundError(f"no checkpoint at {path}: check the path")


def check_device(device: str | None) -> None:
    """Check that torch can use a device. None is valid.

    Raises:
        ValueError: If torch cannot use the device.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        why = str(error).strip().splitlines()[0]
        raise ValueError(f"device {device} cannot be used ({why}): leave it out, or take cpu") from None
