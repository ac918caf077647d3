"""What can be known to fail before a run has cost anything."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from mmengine.config import Config

from .backbone import XCiT

__all__ = ["check_backbone", "check_checkpoint", "check_data"]


def check_backbone(cfg: Config) -> None:
    """Build the config's XCiT without memory, so that a wrong argument raises its error now."""
    backbone = cfg.model.get("backbone", {})
    if backbone.get("type") == "XCiT":
        with torch.device("meta"):
            XCiT(**{name: value for name, value in backbone.items() if name not in ("type", "_scope_")})


def check_checkpoint(path: str) -> None:
    """Check that a local checkpoint is there; URLs and `xcit://` names are left to be fetched.

    Raises:
        FileNotFoundError: If it is not.
    """
    if "://" not in path and not Path(path).is_file():
        raise FileNotFoundError(f"no checkpoint at {path}: check the path")


def check_data(cfg: Config, splits: Iterable[str]) -> None:
    """Check that the folders and annotation files of the splits exist.

    Args:
        cfg: A config of mmdet or mmseg.
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
    for dataset in _leaf_datasets((cfg.get(f"{split}_dataloader") or {}).get("dataset") or {}):
        root = dataset.get("data_root") or ""
        parts = [*(dataset.get("data_prefix") or {}).values(), dataset.get("ann_file")]
        yield from [root] * bool(root) + [os.path.join(root, part) for part in parts if part]
    evaluators = cfg.get(f"{split}_evaluator") or {}
    for evaluator in [evaluators] if isinstance(evaluators, dict) else evaluators:
        if evaluator.get("ann_file"):
            yield evaluator["ann_file"]


def _leaf_datasets(dataset: dict) -> Iterator[dict]:
    """The data sets inside wrappers such as RepeatDataset and ConcatDataset."""
    inner = [dataset["dataset"]] if "dataset" in dataset else dataset.get("datasets")
    if inner is None:
        yield dataset
    else:
        for one in inner:
            yield from _leaf_datasets(one)
