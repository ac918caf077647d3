"""What can be known to fail before a run has cost anything."""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.model import ImgDataPreprocessor
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import MODELS, OPTIM_WRAPPERS

from ..models.backbone import XCiT
from ..models.classifier import XCiTClassifier
from ..utils.configs import (
    backbone_class,
    data_preprocessor,
    evaluators,
    leaf_datasets,
    normalize_step,
    part_class,
    type_name,
)
from ..weights.reader import load_checkpoint
from .findings import Finding, fail, refuse

__all__ = [
    "asks_for_amp",
    "check_backbone",
    "check_checkpoint",
    "check_data",
    "check_device",
    "check_precision",
    "check_resume",
    "last_checkpoint",
    "missing_data",
]


def check_backbone(cfg: Config, tta: bool = False) -> None:
    """Build the config's XCiT without memory, so that a wrong argument raises its error now.

    Args:
        cfg: A config of mmdet, mmseg or mmpretrain.
        tta: Whether it will be tested with test-time augmentation.

    Raises:
        TypeError, ValueError: If an argument is wrong, or the data preprocessor's, or what a base config has left, do
            not go with it.
    """
    backbone, kind = cfg.model.get("backbone", {}), backbone_class(cfg)
    if kind in (XCiT, XCiTClassifier):
        _check_left_overs(cfg.model)
        with torch.device("meta"):
            built = kind(**{name: value for name, value in backbone.items() if name not in ("type", "_scope_")})
        _check_normalisation(cfg, built.in_channels, tta)
        if backbone.get("ignore_padding"):
            _check_padding(data_preprocessor(cfg))


def _check_left_overs(model: dict) -> None:
    """Check what a base config of mmseg leaves: weights of its ResNet, or no neck to change."""
    if model.get("pretrained"):
        raise ValueError(
            f"model.pretrained={model['pretrained']!r} is of the base config's backbone: set pretrained=None in model, "
            "and give weights as backbone.init_cfg"
        )
    if model.get("neck") and "type" not in model["neck"]:
        raise ValueError(
            "model.neck has no type, as the base config has no neck: give in_channels to the heads instead"
        )


def _check_normalisation(cfg: Config, channels: int, tta: bool) -> None:
    """Check that mean and std, of preprocessor and pipelines, are for as many channels as the model, or for all."""
    # mmengine takes the one beside the model for a model without, and in place of the model's under augmentation.
    places = [("model.data_preprocessor", cfg.model), ("data_preprocessor", cfg)]
    given = [(where, place["data_preprocessor"]) for where, place in places if place.get("data_preprocessor")]
    given = given[-1:] if tta else given[:1]
    for split in ("train", "test"):  # a config may have one of them alone
        for dataset in leaf_datasets((cfg.get(f"{split}_dataloader") or {}).get("dataset") or {}):
            if step := normalize_step(dataset.get("pipeline") or []):
                given.append(("Normalize", step))
    for (where, preprocessor), name in product(given, ("mean", "std")):
        values = preprocessor.get(name)
        if not isinstance(values, Sequence):
            continue
        if len(values) not in (1, 3) and _is_for_colours(preprocessor, cfg.get("default_scope")):
            raise ValueError(
                f"{where}.{name} has {len(values)} values, {type_name(preprocessor)} takes 1 or 3: set mean and std to "
                "None and put dict(type='Normalize', mean=..., std=..., to_rgb=False) into the pipelines"
            )
        if len(values) not in (1, channels):
            raise ValueError(
                f"{where}.{name} has {len(values)} values, the backbone has in_channels={channels}: "
                "give one for each channel, or one for all"
            )


def _is_for_colours(preprocessor: dict, scope: str | None) -> bool:
    """Whether a data preprocessor knows RGB and grey only: mmdet's, and mmseg's in the forks, as mmengine's does."""
    return issubclass(part_class(preprocessor, MODELS, scope) or object, ImgDataPreprocessor)


def _check_padding(preprocessor: dict) -> None:
    """Check that `ignore_padding` can tell padding from pixels."""
    mean = preprocessor.get("mean") or [0]
    if all(float(value).is_integer() for value in mean):
        raise ValueError(
            f"ignore_padding=True with data_preprocessor.mean={mean}: pixels of that value become zero, like padding; "
            "give a mean that is no whole number"
        )
    for part in (preprocessor, *(preprocessor.get("batch_augments") or [])):
        for name in ("pad_value", "pad_val", "img_pad_value"):
            if part.get(name):
                raise ValueError(f"ignore_padding=True with {name}={part[name]} in the data_preprocessor: must be 0")


def check_checkpoint(path: str) -> None:
    """Check that a local checkpoint is there; URLs and `xcit://` names are left to be fetched.

    Raises:
        FileNotFoundError: If it is not.
    """
    if "://" not in path and not Path(path).is_file():
        raise FileNotFoundError(f"no checkpoint at {path}: check the path")


def check_device(device: str | None) -> None:
    """Check that torch can use a device, if one is given.

    Raises:
        ValueError: If it cannot.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        why = str(error).strip().splitlines()[0]
        raise ValueError(f"--device {device} cannot be used ({why}): leave it out, or take cpu") from None


def asks_for_amp(cfg: Config) -> bool:
    """Whether a config trains in mixed precision."""
    wrapper = part_class(cfg.get("optim_wrapper") or {}, OPTIM_WRAPPERS, cfg.get("default_scope"))
    return wrapper is AmpOptimWrapper


def check_precision(cfg: Config, amp: bool = False) -> None:
    """Check that there is a GPU if mixed precision is asked for, by the config or by `--amp`.

    Raises:
        ValueError: If there is none.
    """
    if get_device() not in ("cpu", "mps"):
        return
    if amp:
        raise ValueError("--amp is mixed precision, which needs a GPU, and there is none: leave --amp out")
    wrapper = cfg.get("optim_wrapper") or {}
    if asks_for_amp(cfg):
        others = [f"optim_wrapper.{name}" for name in ("loss_scale", "dtype") if name in wrapper]
        raise ValueError(
            "D206 the config trains in mixed precision (AmpOptimWrapper), which needs a GPU, and there is none: "
            # OptimWrapper would refuse them.
            + f"leave out {' and '.join(others)}, and give " * bool(others)
            + "--cfg-options optim_wrapper.type=OptimWrapper"
        )


def last_checkpoint(work_dir: Path) -> str | None:
    """The checkpoint that a run saved last, or None."""
    pointer = work_dir / "last_checkpoint"
    return pointer.read_text().strip() if pointer.is_file() else None


def check_resume(checkpoint: str, work_dir: Path) -> int | None:
    """Check that a run can go on from a checkpoint; returns the seed it was trained with.

    Args:
        checkpoint: A path, a URL or `xcit://NAME`.
        work_dir: The run's folder.

    Raises:
        ValueError: If it is missing, broken or holds weights alone, with the newest whole one of the folder.
    """
    try:
        return _training_state(checkpoint)["meta"].get("seed")
    except (OSError, ValueError) as error:
        others = (str(path) for path in _newest_first(work_dir) if path != Path(checkpoint))
        whole = next(filter(_is_whole, others), None)
        fix = f"go on from {whole}: --resume {whole}" if whole else f"no whole checkpoint is in {work_dir}"
        raise ValueError(f"cannot resume from {checkpoint}: {error}; {fix}") from None


def _training_state(checkpoint: str) -> dict:
    """Content of a checkpoint that mmengine can go on from."""
    content = load_checkpoint(checkpoint)
    meta = content.get("meta") if isinstance(content, dict) else None
    if not isinstance(meta, dict) or not {"epoch", "iter"} <= meta.keys() or content.get("message_hub") is None:
        raise ValueError("it holds weights, not the state of a training run of mmengine: start from it with load_from")
    return content


def _newest_first(work_dir: Path) -> list[Path]:
    found = [path for path in work_dir.glob("*.pth") if path.stem.startswith(("iter_", "epoch_"))]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def _is_whole(checkpoint: str) -> bool:
    try:
        return bool(_training_state(checkpoint))
    except (OSError, ValueError):
        return False


def check_data(cfg: Config, splits: Iterable[str]) -> None:
    """Check that the folders and annotation files of the splits exist.

    Args:
        cfg: A config of mmdet, mmseg or mmpretrain.
        splits: Of 'train', 'val' and 'test'.

    Raises:
        FileNotFoundError: If one does not.
    """
    for split in splits:
        refuse(missing_data(cfg, split), FileNotFoundError)


def missing_data(cfg: Config, split: str) -> Iterator[Finding]:
    """A failure for each folder and annotation file of a split that does not exist."""
    for path in _data_paths(cfg, split):
        # mmengine reads remote storage (s3://...).
        if "://" not in path and not Path(path).exists():
            yield fail(
                "D311",
                f"the {split} data are not at {path}",
                "put or link the data set there, or set "
                f"{split}_dataloader.dataset.data_root (and {split}_evaluator.ann_file, if it has one)",
            )


def _data_paths(cfg: Config, split: str) -> Iterator[str]:
    for dataset in leaf_datasets((cfg.get(f"{split}_dataloader") or {}).get("dataset") or {}):
        root = dataset.get("data_root") or ""
        prefix = dataset.get("data_prefix") or {}
        parts = [*(prefix.values() if isinstance(prefix, dict) else [prefix]), dataset.get("ann_file")]
        yield from [root] * bool(root) + [os.path.join(root, part) for part in parts if part]
    for evaluator in evaluators(cfg, split):
        if evaluator.get("ann_file"):
            yield evaluator["ann_file"]
