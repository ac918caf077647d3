"""Checks of data sets: whether their files exist, and hold what the config says."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS
from mmengine.utils import is_abs
from torch import nn

from ..utils.configs import data_sets, dataset_class, evaluators, metainfo, type_name
from ..utils.errors import preview
from .coco import check_coco, read_coco
from .findings import Finding, check, fail, note, ok
from .maps import check_maps

SPLITS = ("train", "val")


def check_paths(cfg: Config, splits: Iterable[str]) -> list[Finding]:
    """Check that the folders and annotation files of the splits exist. Remote storage (s3://...) is not checked."""
    found = []
    for split in splits:
        paths = [path for dataset in data_sets(cfg, split) for path in _paths(dataset)]
        paths += [evaluator["ann_file"] for evaluator in evaluators(cfg, split) if evaluator.get("ann_file")]
        fix = f"put or link the data set there, or set {split}_dataloader.dataset.data_root"
        if any(evaluator.get("ann_file") for evaluator in evaluators(cfg, split)):
            fix += f" and {split}_evaluator.ann_file"
        missing = [path for path in paths if "://" not in path and not Path(path).exists()]
        found += [fail("D311", f"the {split} data are not at {path}", fix) for path in missing]
    return found


def _paths(dataset: dict) -> Iterator[str]:
    """Yield the paths of a data set's folders and annotation file, as mmengine joins them."""
    root, prefix = dataset.get("data_root") or "", dataset.get("data_prefix") or {}
    parts = [*(prefix.values() if isinstance(prefix, dict) else [prefix]), dataset.get("ann_file")]
    yield from [root] * bool(root) + [part if is_abs(part) else os.path.join(root, part) for part in parts if part]


@check
def check_classes(cfg: Config, heads: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """Check the classes of all data sets against each other and against `num_classes` of the heads."""
    if cfg.get("default_scope") == "mmpretrain":  # which takes classes from its data
        return
    given: dict[tuple[str, ...], str] = {}
    palettes: set[str] = set()
    for split, dataset in [(each, dataset) for each in (*SPLITS, "test") for dataset in data_sets(cfg, each)]:
        info = metainfo(dataset)
        classes, palette = info.get("classes"), info.get("palette")
        if classes and not isinstance(classes, str):
            if str(palette) not in palettes:
                yield from _check_palette(split, palette, classes, cfg.default_scope)
            palettes.add(str(palette))
            if split in SPLITS:
                given.setdefault(tuple(classes), split)
        elif split in SPLITS and _data_format(dataset) in (
            "CocoDataset",
            "BaseSegDataset",
        ):  # others may read the names
            yield fail("D302", f"classes={classes!r} in the {split} data set", "metainfo=dict(classes=('name', ...))")
    for classes, split in given.items():
        for name, head in heads.items():
            if head.num_classes != len(classes):
                text = f"{name}.num_classes is {head.num_classes}, the {split} data set has {len(classes)} classes"
                fix = f"--cfg-options model.{name}.num_classes={len(classes)}, or correct metainfo.classes"
                yield fail("D303", text, fix)
        if len(classes) == 1 and cfg.get("default_scope") == "mmseg":
            fix = "metainfo=dict(classes=('background', 'name')), num_classes=2 and out_channels=1 in the heads"
            yield note("D304", f"{split}: with one class IoUMetric counts every pixel as that class", fix)
    if len(given) > 1:
        (first, split), (second, other) = list(given.items())[:2]
        pairs = [(a, b) for a, b in zip(first, second, strict=False) if a != b]
        differing = [f"{a} and {b}" for a, b in pairs] or [f"{len(first)} and {len(second)} classes"]
        renamed = len(first) == len(second) and all(b not in first for _, b in pairs)
        text = f"the {split} and {other} data sets have different classes: {preview(differing)}"
        yield (note if renamed else fail)("D305", text, "give both data sets the same metainfo")
    yield ok(f"{len(next(iter(given), ()))} classes in data sets and heads")


def _check_palette(split: str, palette: Any, classes: Sequence[str], library: str) -> Iterator[Finding]:
    """Check that the visualizers of the library, with which `test --show-dir` draws, take a palette."""
    if not palette or isinstance(palette, str):  # random colours, or those of a known data set
        return
    rows = tuple if library == "mmdet" else Sequence
    is_list = isinstance(palette, list) or library != "mmdet"
    colours = all(isinstance(row, rows) and len(row) == 3 and all(0 <= c <= 255 for c in row) for row in palette)
    if not (is_list and colours and len(palette) >= len(classes)):
        text = f"{split}: palette={str(palette)[:40]} for {len(classes)} classes, which test --show-dir cannot draw"
        yield fail("D306", text, "palette=[(red, green, blue), ...], a tuple of 0 to 255 for each class")


def _data_format(dataset: dict) -> str:
    """Return the name of the class that defines how the data set's class reads its files."""
    return getattr(dataset_class(dataset), "load_data_list", dict).__qualname__.partition(".")[0]


@check
def check_data_sets(cfg: Config, split: str, heads: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """Check the files of a split, 'train' or 'val', and their content."""
    missing = check_paths(cfg, [split])
    yield from missing[:1]
    given = [] if missing else list(data_sets(cfg, split))
    for dataset in given:
        data_format, remote = _data_format(dataset), [path for path in _paths(dataset) if "://" in path]
        found: Iterable[Finding] = [note("", f"data sets of type {type_name(dataset)} are not checked")]
        if remote:
            found = [note("", f"{remote[0]} is remote storage, which is not checked")]
        elif data_format == "CocoDataset" and dataset_class(dataset).COCOAPI.__name__ == "COCO":  # not panoptic
            found = check_coco(cfg, split, dataset)
        elif data_format == "BaseSegDataset":
            found = check_maps(dataset, heads, decisive=split == "train" and len(given) == 1)
        for finding in found:
            yield finding._replace(text=f"{split}: {finding.text}")


@check
def check_overlap(cfg: Config, split: str) -> Iterator[Finding]:
    """Compare the files of a split, 'val' or 'test', with those of the training split."""
    if check_paths(cfg, ("train", split)):
        return  # another check reports them
    train, held_out = ({path for data in data_sets(cfg, each) for path in images_of(data)} for each in ("train", split))
    if train & held_out:
        text = f"{len(train & held_out)} of {len(held_out)} images of the {split} split are in the training split: "
        fix = f"{split} on other images: the scores are too high"
        yield note("D319", text + preview(sorted(train & held_out)), fix)


def images_of(dataset: dict) -> list[str]:
    """Return the paths of a data set's images, of the formats that are checked."""
    if _data_format(dataset) == "CocoDataset":
        root = dataset.get("data_root") or ""
        folder = os.path.join(root, (dataset.get("data_prefix") or {}).get("img") or "")
        return [
            os.path.join(folder, image["file_name"]) for image in read_coco(Path(root, dataset["ann_file"]))["images"]
        ]
    if _data_format(dataset) == "BaseSegDataset":
        built = DATASETS.build({**dataset, "pipeline": [], "serialize_data": False})
        return [image["img_path"] for image in built.data_list]
    return []


@check
def check_drawings(cfg: Config) -> Iterator[Finding]:
    """Check that `test --show-dir` draws every image: mmdet's hook names a drawing by the image's name alone."""
    if cfg.get("default_scope") == "mmdet":
        names = Counter(os.path.basename(path) for dataset in data_sets(cfg, "test") for path in images_of(dataset))
        if len(names) < names.total():
            text = f"{names.total() - len(names)} of {names.total()} images have the name of another, such as "
            text += f"{names.most_common(1)[0][0]}: mmdet's drawings with --show-dir replace each other"
            yield note("D320", text, "xcit-mm predict FOLDER --model MODEL")
