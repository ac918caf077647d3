"""What can be known to fail before a run has cost anything."""

import argparse
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from mmengine.config import Config

from ..models.backbone import XCiT
from ..models.classifier import XCiTClassifier
from ..weights.reader import load_from_file
from .configs import evaluators, leaf_datasets

__all__ = ["check_backbone", "check_checkpoint", "check_data", "check_resume"]


def check_backbone(cfg: Config) -> None:
    """Build the config's XCiT without memory, so that a wrong argument raises its error now."""
    backbone = cfg.model.get("backbone", {})
    kind = dict(XCiT=XCiT, XCiTClassifier=XCiTClassifier).get(backbone.get("type"))
    if kind:
        with torch.device("meta"):
            kind(**{name: value for name, value in backbone.items() if name not in ("type", "_scope_")})
    if backbone.get("ignore_padding"):
        _check_padding(cfg.model.get("data_preprocessor") or {})


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


def check_resume(cfg: Config, argv: list[str]) -> int | None:
    """Check that the checkpoint that `--resume` would go on from is whole; returns the seed it was trained with.

    Args:
        cfg: The config.
        argv: The command line, with `--resume [PATH]` and maybe `--work-dir DIR`.

    Raises:
        ValueError: If it is missing or broken, with the newest whole one.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("config")
    parser.add_argument("--resume", nargs="?")
    parser.add_argument("--work-dir")
    options, _ = parser.parse_known_args(argv)
    work_dir = Path(options.work_dir or cfg.get("work_dir") or Path("work_dirs") / Path(options.config).stem)
    pointer = work_dir / "last_checkpoint"
    if options.resume is None and not pointer.is_file():
        return None  # nothing was saved yet: mmengine says so and starts at the first iteration
    path = Path(options.resume or pointer.read_text().strip())
    try:
        return load_from_file(str(path))["meta"].get("seed")
    except (OSError, ValueError) as error:
        whole = next((other for other in _newest_first(work_dir) if other != path and _is_whole(other)), None)
        fix = f"go on from {whole}: echo {whole} > {pointer}" if whole else "no whole checkpoint is beside it"
        raise ValueError(f"cannot resume from {path}: {error}; {fix}") from None


def _newest_first(work_dir: Path) -> list[Path]:
    found = [path for path in work_dir.glob("*.pth") if path.stem.startswith(("iter_", "epoch_"))]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def _is_whole(path: Path) -> bool:
    try:
        return "meta" in load_from_file(str(path))
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
        for path in _data_paths(cfg, split):
            # Remote storage (s3://...) is left to mmengine.
            if "://" not in path and not Path(path).exists():
                raise FileNotFoundError(
                    f"the {split} data are not at {path}: put or link the data set there, "
                    f"or set {split}_dataloader.dataset.data_root (and {split}_evaluator.ann_file, if it has one)"
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
