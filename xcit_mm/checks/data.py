"""Checks of data sets: whether their files exist, and hold what the config says."""

import functools
import gc
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import DATASETS
from mmengine.utils import is_abs
from torch import nn

from ..models import XCiT
from ..utils.configs import backbone_class, data_sets, dataset_class, evaluators, metainfo, type_name
from ..utils.errors import preview
from .coco import check_coco
from .coco_json import read_coco
from .findings import Finding, check, fail, note, ok
from .segmentation_maps import check_segmentation_maps

SPLITS = ("train", "val")


def check_paths(cfg: Config, splits: Iterable[str]) -> list[Finding]:
    """Check that the folders and annotation files of the splits exist. Remote storage (s3://...) is not checked."""
    return [
        fail(
            "D311",
            f"the {split} data are not at {path}",
            "put or link the data set there, or set "
            f"{split}_dataloader.dataset.data_root (and {split}_evaluator.ann_file, if it has one)",
        )
        for split in splits
        for path in [
            *(path for dataset in data_sets(cfg, split) for path in _paths(dataset)),
            *(evaluator["ann_file"] for evaluator in evaluators(cfg, split) if evaluator.get("ann_file")),
        ]
        if "://" not in path and not Path(path).exists()
    ]


def _paths(dataset: dict) -> Iterator[str]:
    """Yield the paths of a data set's folders and annotation file, as mmengine joins them."""
    root = dataset.get("data_root") or ""
    prefix = dataset.get("data_prefix") or {}
    parts = [*(prefix.values() if isinstance(prefix, dict) else [prefix]), dataset.get("ann_file")]
    yield from [root] * bool(root) + [part if is_abs(part) else os.path.join(root, part) for part in parts if part]


@check("D390", "correct the data sets in the config")
def check_classes(cfg: Config, heads: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """Check the classes of all data sets against each other and against `num_classes` of the heads."""
    if cfg.get("default_scope") == "mmpretrain":
        yield note("D301", "mmpretrain takes classes from its data: compare their number with the head's num_classes")
        return
    given: dict[tuple[str, ...], str] = {}
    for split in SPLITS:
        for dataset in data_sets(cfg, split):
            classes = metainfo(dataset).get("classes")
            if not classes or isinstance(classes, str):
                known = _data_format(dataset) in ("CocoDataset", "BaseSegDataset")  # others may read the names
                fix = "metainfo=dict(classes=('name', ...))"
                yield (fail if known else note)("D302", f"classes={classes!r} in the {split} data set", fix)
            else:
                given.setdefault(tuple(classes), split)
    for classes, split in given.items():
        for name, head in heads.items():
            if head.num_classes != len(classes):
                text = f"{name}.num_classes is {head.num_classes}, the {split} data set has {len(classes)} classes"
                fix = f"--cfg-options model.{name}.num_classes={len(classes)}, or correct metainfo.classes"
                yield fail("D303", text, fix)
        if len(classes) == 1 and cfg.get("default_scope") == "mmseg":
            text = f"{split}: with one class IoUMetric counts every pixel as that class"
            fix = "metainfo=dict(classes=('background', 'name')), num_classes=2 and out_channels=1 in the heads"
            yield note("D304", text, fix)
    if len(given) > 1:
        (first, split), (second, other) = list(given.items())[:2]
        differing = [f"{a} and {b}" for a, b in zip(first, second, strict=False) if a != b]
        renamed = len(first) == len(second) and all(
            b not in first for a, b in zip(first, second, strict=True) if a != b
        )
        yield (note if renamed else fail)(
            "D305",
            f"the {split} and {other} data sets have different classes: "
            + preview(differing or [f"{len(first)} and {len(second)} classes"]),
            "give both data sets the same metainfo",
        )
    yield ok(f"{len(next(iter(given), ()))} classes in data sets and heads")


def _data_format(dataset: dict) -> str:
    """Return the name of the class that defines how the data set's class reads its files."""
    return getattr(dataset_class(dataset), "load_data_list", dict).__qualname__.partition(".")[0]


@check("D391", "correct the {split} data set")
def check_data_sets(cfg: Config, split: str, heads: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """Check the files of a split, 'train' or 'val', and their content."""
    missing = check_paths(cfg, [split])
    if missing:
        yield missing[0]
        return
    for finding in _check_content(cfg, split, heads):
        yield finding._replace(text=f"{split}: {finding.text}")


def _check_content(cfg: Config, split: str, heads: Mapping[str, nn.Module]) -> Iterator[Finding]:
    read = functools.cache(read_coco)  # of one split only: a parsed json takes a gigabyte
    given = list(data_sets(cfg, split))
    for dataset in given:
        data_format = _data_format(dataset)
        remote = [path for path in _paths(dataset) if "://" in path]
        if remote:
            yield note("D312", f"{remote[0]} is remote storage, which the doctor does not read")
        elif data_format == "CocoDataset" and dataset_class(dataset).COCOAPI.__name__ == "COCO":  # not panoptic
            gc.disable()  # the millions of objects of a json hold no garbage, and a search for garbage takes seconds
            try:
                yield from check_coco(cfg, split, dataset, read)
            finally:
                gc.enable()
        elif data_format == "BaseSegDataset":
            channels = cfg.model.backbone.get("in_channels", 3) if backbone_class(cfg) is XCiT else None
            yield from check_segmentation_maps(dataset, heads, channels, split == "train" and len(given) == 1)
        else:
            yield note("D313", f"the doctor cannot check data sets of type {type_name(dataset)}")


@check("D391", "correct the data sets")
def check_overlap(cfg: Config) -> Iterator[Finding]:
    """Compare the files of the training split with those of the validation split."""
    if check_paths(cfg, SPLITS):
        return
    train, val = ({path for dataset in data_sets(cfg, split) for path in _images(dataset)} for split in SPLITS)
    if train & val:
        yield note(
            "D319",
            f"{len(train & val)} of {len(val)} images of the validation split are in the training split: "
            + preview(sorted(train & val)),
            "validate on other images: the scores are too high",
        )


def _images(dataset: dict) -> Iterator[str]:
    """Yield the paths of a data set's images, of the formats that are checked."""
    data_format = _data_format(dataset)
    if data_format == "CocoDataset":
        root = dataset.get("data_root") or ""
        folder = os.path.join(root, (dataset.get("data_prefix") or {}).get("img") or "")
        text = Path(root, dataset["ann_file"]).read_bytes()  # to parse a large json takes a minute and a gigabyte
        for name in re.findall(rb'"file_name"\s*:\s*"([^"]+)"', text):
            yield os.path.join(folder, name.decode(errors="replace"))
    elif data_format == "BaseSegDataset":
        built = DATASETS.build({**dataset, "pipeline": [], "serialize_data": False})
        yield from (image["img_path"] for image in built.data_list)
