"""Checks of data sets: whether their files exist, and hold what the config says."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from torch import nn

from ..utils.configs import data_sets, dataset_class, evaluators, metainfo, type_name
from ..utils.errors import preview
from .coco import check_coco, image_paths
from .findings import Finding, fail, note
from .images import build_dataset
from .maps import check_maps

SPLITS = ("train", "val")
_FORMATS = ("CocoDataset", "BaseSegDataset")  # those that are checked


def check_paths(cfg: Config, splits: Iterable[str]) -> list[Finding]:
    """Find the first path of each split that does not exist. Remote storage (s3://...) is not
    checked.
    """
    keys = "data_root, data_prefix and ann_file of data set and evaluator"
    findings = []
    for split in splits:
        paths = [path for dataset in data_sets(cfg, split) for path in _paths(dataset)]
        scored = [evaluator.get("ann_file") for evaluator in evaluators(cfg, split)]
        for path in [*paths, *filter(None, scored)]:
            if "://" not in path and not Path(path).exists():
                problem = f"the {split} data are not at {path}"
                fix = f"put or link the data set there, or correct {keys}"
                findings.append(fail("D311", problem, fix))
                break
    return findings


def _paths(dataset: dict) -> list[str]:
    """Return the paths of a data set's folders and annotation file, as mmengine joins them."""
    root = dataset.get("data_root") or ""
    prefix = dataset.get("data_prefix") or {}
    folders = prefix.values() if isinstance(prefix, dict) else [prefix]
    paths = [root] if root else []
    for part in filter(None, [*folders, dataset.get("ann_file")]):
        paths.append(part if "://" in part else os.path.join(root, part))
    return paths


def check_classes(
    cfg: Config,
    heads: Mapping[str, nn.Module],
    splits: Iterable[str] = SPLITS,
    learned: Sequence[str] | None = None,
) -> Iterator[Finding]:
    """Check the classes of all data sets against each other and against `num_classes` of the heads.

    Args:
        learned: The classes of the checkpoint that is tested, if it names them.
    """
    if cfg.get("default_scope") == "mmpretrain":  # which takes classes from its data
        return
    origins: dict[tuple[str, ...], str] = {}
    for split in splits:
        for dataset in data_sets(cfg, split):
            classes = metainfo(dataset).get("classes")
            if classes and not isinstance(classes, str):
                if tuple(classes) not in origins:
                    origins[tuple(classes)] = f"{split} data"
                    yield from _check_heads(cfg, split, classes, heads)
            elif _data_format(dataset) in _FORMATS:  # others may read the names
                problem = f"classes={classes!r} in the {split} data set"
                yield fail("D302", problem, "metainfo=dict(classes=('name', ...))")
    if learned:
        origins = {tuple(learned): "checkpoint", **origins}
    yield from _compare_classes(origins)


def _check_heads(
    cfg: Config, split: str, classes: Sequence[str], heads: Mapping[str, nn.Module]
) -> Iterator[Finding]:
    number = len(classes)
    for name, head in heads.items():
        if head.num_classes != number:
            problem = f"{name}.num_classes is {head.num_classes}"
            problem = f"{problem}, the {split} data set has {number} classes"
            fix = f"--cfg-options model.{name}.num_classes={number}, or correct metainfo.classes"
            yield fail("D303", problem, fix)
    if number == 1 and cfg.get("default_scope") == "mmseg":
        problem = f"{split} data: with one class IoUMetric counts every pixel as that class"
        fix = "metainfo=dict(classes=('background', 'name')), num_classes=2 and "
        yield note("D304", problem, f"{fix}out_channels=1 in the heads")


def _compare_classes(origins: Mapping[tuple[str, ...], str]) -> Iterator[Finding]:
    """Compare the first two lists of classes that differ, given the origin of each."""
    if len(origins) < 2:
        return
    classes, other_classes = list(origins)[:2]
    pairs = list(zip(classes, other_classes, strict=False))
    differing = [(name, other) for name, other in pairs if name != other]
    examples = [f"{name} and {other}" for name, other in differing]
    if not examples:
        examples = [f"{len(classes)} and {len(other_classes)} classes"]
    are_new_names = all(other not in classes for _, other in differing)
    level = note if len(classes) == len(other_classes) and are_new_names else fail
    where = f"{origins[classes]} and {origins[other_classes]}"
    problem = f"{where} have different classes: {preview(examples)}"
    fix = "give both the same metainfo.classes, in the order that the model has learned"
    yield level("D305", problem, fix)


def _data_format(dataset: dict) -> str:
    """Return the name of the class whose `load_data_list` reads a data set's files."""
    return getattr(dataset_class(dataset), "load_data_list", dict).__qualname__.partition(".")[0]


def check_data_sets(cfg: Config, split: str, heads: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """Check the content of the files of a split, if they exist and are scored or trained on."""
    if check_paths(cfg, [split]):
        return
    scores = evaluators(cfg, split)
    if scores and all(evaluator.get("format_only") for evaluator in scores):
        yield note("", f"{split}: with format_only nothing is scored, and labels are not checked")
        return
    datasets = list(data_sets(cfg, split))
    for dataset in datasets:
        is_remote = any("://" in path for path in _paths(dataset))
        data_format = "" if is_remote else _data_format(dataset)
        api: Any = getattr(dataset_class(dataset), "COCOAPI", None)
        if data_format == "CocoDataset" and api.__name__ == "COCO":  # not panoptic
            findings = check_coco(cfg, split, dataset)
        elif data_format == "BaseSegDataset":
            is_only_training_set = split == "train" and len(datasets) == 1
            findings = check_maps(dataset, heads, is_only_training_set)
        else:
            where = " on a server" if is_remote else ""
            findings = iter([note("", f"a {type_name(dataset)}{where} is not checked")])
        for finding in findings:
            yield finding._replace(text=f"{split}: {finding.text}")


def check_overlap(cfg: Config, split: str) -> Iterator[Finding]:
    """Compare the files of a split, 'val' or 'test', with those of the training split."""
    if not check_paths(cfg, ("train", split)):  # another check reports them
        train = set(_images(cfg, "train"))
        held_out = set(_images(cfg, split))
        both = sorted(train & held_out)
        if both:
            problem = f"{len(both)} of {len(held_out)} images of the {split} split"
            fix = f"{split} on other images: the scores are too high"
            yield note("D319", f"{problem} are in the training split: {preview(both)}", fix)


def _images(cfg: Config, split: str) -> list[str]:
    """Return the paths of a split's images, of the formats that are checked."""
    checked = [dataset for dataset in data_sets(cfg, split) if _data_format(dataset) in _FORMATS]
    paths = []
    for dataset in checked:
        if _data_format(dataset) == "CocoDataset":
            paths += image_paths(dataset)
        else:
            paths += [image["img_path"] for image in build_dataset(dataset).data_list]
    return paths
