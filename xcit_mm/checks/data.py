"""Checks of data sets: whether their files exist, and hold what the config says."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from torch import nn

from ..utils.configs import data_sets, dataset_class, evaluators, metainfo, type_name
from ..utils.errors import preview
from .coco import check_coco
from .findings import Finding, fail, note
from .images import build_dataset
from .maps import check_maps

SPLITS = ("train", "val")
_FORMATS = ("CocoDataset", "BaseSegDataset")  # those that are checked


def check_paths(cfg: Config, splits: Iterable[str]) -> list[Finding]:
    """Find the first path of each split that does not exist. Remote storage (s3://...) is not
    checked.
    """
    fix = "put or link the data set there, or correct data_root, data_prefix and ann_file of data set and evaluator"
    found = []
    for split in splits:
        given = [path for dataset in data_sets(cfg, split) for path in _paths(dataset)]
        given += [
            evaluator["ann_file"]
            for evaluator in evaluators(cfg, split)
            if evaluator.get("ann_file")
        ]
        missing = [path for path in given if "://" not in path and not Path(path).exists()]
        found += [fail("D311", f"the {split} data are not at {path}", fix) for path in missing[:1]]
    return found


def _paths(dataset: dict) -> list[str]:
    """Return the paths of a data set's folders and annotation file, as mmengine joins them."""
    root, prefix = dataset.get("data_root") or "", dataset.get("data_prefix") or {}
    parts = [*(prefix.values() if isinstance(prefix, dict) else [prefix]), dataset.get("ann_file")]
    return [root] * bool(root) + [
        part if "://" in part else os.path.join(root, part) for part in parts if part
    ]


def check_classes(cfg: Config, heads: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """Check the classes of all data sets against each other and against `num_classes` of the heads."""
    if cfg.get("default_scope") == "mmpretrain":  # which takes classes from its data
        return
    given: dict[tuple[str, ...], str] = {}
    for split, dataset in [(each, dataset) for each in SPLITS for dataset in data_sets(cfg, each)]:
        info = metainfo(dataset)
        classes = info.get("classes")
        if classes and not isinstance(classes, str):
            if tuple(classes) not in given:
                yield from _check_palette(split, info.get("palette"), classes, cfg.default_scope)
            given.setdefault(tuple(classes), split)
        elif _data_format(dataset) in _FORMATS:  # others may read the names
            yield fail(
                "D302",
                f"classes={classes!r} in the {split} data set",
                "metainfo=dict(classes=('name', ...))",
            )
    for classes, split in given.items():
        for name, head in heads.items():
            if head.num_classes != len(classes):
                text = f"{name}.num_classes is {head.num_classes}, the {split} data set has {len(classes)} classes"
                fix = f"--cfg-options model.{name}.num_classes={len(classes)}, or correct metainfo.classes"
                yield fail("D303", text, fix)
        if len(classes) == 1 and cfg.get("default_scope") == "mmseg":
            fix = "metainfo=dict(classes=('background', 'name')), num_classes=2 and out_channels=1 in the heads"
            yield note(
                "D304", f"{split}: with one class IoUMetric counts every pixel as that class", fix
            )
    if len(given) > 1:
        (first, split), (second, other) = list(given.items())[:2]
        pairs = [(a, b) for a, b in zip(first, second, strict=False) if a != b]
        differing = [f"{a} and {b}" for a, b in pairs] or [
            f"{len(first)} and {len(second)} classes"
        ]
        renamed = len(first) == len(second) and all(b not in first for _, b in pairs)
        text = f"the {split} and {other} data sets have different classes: {preview(differing)}"
        yield (note if renamed else fail)("D305", text, "give both data sets the same metainfo")


def _check_palette(
    split: str, palette: Any, classes: Sequence[str], library: str
) -> Iterator[Finding]:
    """Check that the visualizers of the library, with which `test --show-dir` draws, take a
    palette.
    """
    if not palette or isinstance(palette, str):  # random colours, or those of a known data set
        return
    rows = tuple if library == "mmdet" else Sequence
    is_list = isinstance(palette, list) or library != "mmdet"
    colours = all(
        isinstance(row, rows) and len(row) == 3 and all(0 <= c <= 255 for c in row)
        for row in palette
    )
    if not (is_list and colours and len(palette) >= len(classes)):
        text = f"{split}: palette={str(palette)[:40]} for {len(classes)} classes, which test --show-dir cannot draw"
        yield fail(
            "D306", text, "palette=[(red, green, blue), ...], a tuple of 0 to 255 for each class"
        )


def _data_format(dataset: dict) -> str:
    """Return the name of the class that defines how the data set's class reads its files."""
    return getattr(dataset_class(dataset), "load_data_list", dict).__qualname__.partition(".")[0]


def check_data_sets(cfg: Config, split: str, heads: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """Check the content of the files of a split, 'train' or 'val', if they exist."""
    given = [] if check_paths(cfg, [split]) else list(data_sets(cfg, split))
    for dataset in given:
        remote = any("://" in path for path in _paths(dataset))
        kind = "" if remote else _data_format(dataset)
        if (
            kind == "CocoDataset" and dataset_class(dataset).COCOAPI.__name__ == "COCO"
        ):  # not panoptic
            found = check_coco(cfg, split, dataset)
        elif kind == "BaseSegDataset":
            found = check_maps(dataset, heads, decisive=split == "train" and len(given) == 1)
        else:
            found = iter(
                [note("", f"a {type_name(dataset)}{' on a server' * remote} is not checked")]
            )
        for finding in found:
            yield finding._replace(text=f"{split}: {finding.text}")


def check_overlap(cfg: Config, split: str) -> Iterator[Finding]:
    """Compare the files of a split, 'val' or 'test', with those of the training split."""
    if not check_paths(cfg, ("train", split)):  # another check reports them
        train, held_out = set(_images(cfg, "train")), set(_images(cfg, split))
        if train & held_out:
            text = f"{len(train & held_out)} of {len(held_out)} images of the {split} split are in the training split: "
            fix = f"{split} on other images: the scores are too high"
            yield note("D319", text + preview(sorted(train & held_out)), fix)


def _images(cfg: Config, split: str) -> list[str]:
    """Return the paths of a split's images, of the formats that are checked."""
    checked = [dataset for dataset in data_sets(cfg, split) if _data_format(dataset) in _FORMATS]
    return [image["img_path"] for dataset in checked for image in build_dataset(dataset).data_list]


def check_drawings(cfg: Config) -> Iterator[Finding]:
    """Check that `test --show-dir` draws every image: mmdet's hook names a drawing by the image's
    name alone.
    """
    names = Counter(
        map(os.path.basename, _images(cfg, "test") if cfg.get("default_scope") == "mmdet" else [])
    )
    if len(names) < names.total():
        text = f"{names.total() - len(names)} of {names.total()} images have the name of another, such as "
        text += f"{names.most_common(1)[0][0]}: mmdet's drawings with --show-dir replace each other"
        yield note("D320", text, "xcit-mm predict FOLDER --model MODEL")
