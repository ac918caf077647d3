"""Checks of data sets: whether their files are there, and hold what the config says."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, TRANSFORMS
from torch import nn

from .coco_json import Coco
from .configs import dataset_class, evaluators, leaf_datasets, metainfo
from .findings import Finding, fail, few, note, ok, reason
from .preflight import check_data

__all__ = ["SPLITS", "check_classes", "check_data_sets", "data_sets"]

SPLITS = ("train", "val")
SAMPLE = 32  # images, spread over a data set, that are read
IGNORED = 255  # what mmseg makes of label 0 under reduce_zero_label


def data_sets(cfg: Config, split: str) -> Iterator[dict]:
    """The data sets of a split, out of their wrappers."""
    yield from filter(None, leaf_datasets((cfg.get(f"{split}_dataloader") or {}).get("dataset") or {}))


def check_classes(cfg: Config, heads: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """Check the classes of all data sets against each other and the heads' `num_classes`."""
    if cfg.get("default_scope") == "mmpretrain":
        yield note("mmpretrain takes classes from its data: not compared with the head's")
        return
    given: dict[tuple[str, ...], str] = {}
    for split in SPLITS:
        for dataset in data_sets(cfg, split):
            classes = metainfo(dataset).get("classes")
            if not classes or isinstance(classes, str):
                yield fail(f"classes={classes!r} in the {split} data set", "metainfo=dict(classes=('name', ...))")
            else:
                given.setdefault(tuple(classes), split)
    for classes, split in given.items():
        for name, head in heads.items():
            if head.num_classes != len(classes):
                yield fail(
                    f"{name}.num_classes is {head.num_classes}, the {split} data set has {len(classes)} classes",
                    f"--cfg-options model.{name}.num_classes={len(classes)}, or correct metainfo.classes",
                )
    if len(given) > 1:
        (first, split), (second, other) = list(given.items())[:2]
        differing = [f"{a} and {b}" for a, b in zip(first, second, strict=False) if a != b]
        yield fail(
            f"the {split} and {other} data sets have different classes: "
            + few(differing or [f"{len(first)} and {len(second)} of them"]),
            "give both the same metainfo",
        )
    yield ok(f"{len(next(iter(given), ()))} classes in data sets and heads")


def check_data_sets(
    cfg: Config, split: str, heads: Mapping[str, nn.Module], read: Callable[[str], Coco]
) -> Iterator[Finding]:
    """Check the files of a split, 'train' or 'val', and what is in them.

    Args:
        heads: The heads that know classes, by name.
        read: `coco.read_coco`, which may remember files.
    """
    try:
        check_data(cfg, [split])
    except FileNotFoundError as error:
        yield fail(*str(error).split(": ", 1))
        return
    for dataset in data_sets(cfg, split):
        # The class whose method lists the data tells their format.
        form = dataset_class(dataset).load_data_list.__qualname__.partition(".")[0]
        if "://" in (dataset.get("data_root") or ""):
            yield note(f"{split}: {dataset['data_root']} is remote storage, not looked at")
        elif form == "CocoDataset":
            yield from _check_coco(cfg, split, dataset, read)
        elif form == "BaseSegDataset":
            yield from _check_label_maps(split, dataset, heads)
        else:
            yield note(f"{split}: data sets of type {dataset['type']} are not looked at")


def _check_coco(cfg: Config, split: str, dataset: dict, read: Callable[[str], Coco]) -> Iterator[Finding]:
    root = dataset.get("data_root") or ""
    path = os.path.join(root, dataset["ann_file"])
    coco = read(path)
    classes = list(metainfo(dataset)["classes"])
    yield from _check_categories(split, coco, classes)
    wanted = {number for number, name in coco.names.items() if name in classes}
    annotated = {image for image, category in coco.labels if category in wanted} & coco.images.keys()
    if not annotated:
        yield fail(f"{split}: no image of {path} has annotations of the classes", "annotate them, or correct ann_file")
    with_mask = (_step(dataset, "LoadAnnotations") or {}).get("with_mask")
    for key in ["bbox", "area"] + ["segmentation"] * bool(with_mask) + ["iscrowd"] * (split == "val"):
        if coco.lacking[key]:
            yield fail(f"{split}: {coco.lacking[key]} annotations of {path} have no {key}", "add it, mmdet needs it")
    for evaluator in evaluators(cfg, split):
        if evaluator.get("ann_file") and not coco.images.keys() <= read(evaluator["ann_file"]).images.keys():
            yield fail(
                f"{split}: images of {path} are not in the {split}_evaluator's {evaluator['ann_file']}",
                f"--cfg-options {split}_evaluator.ann_file={path}",
            )
    folder = os.path.join(root, dataset["data_prefix"]["img"])
    images = [
        dict(img_path=os.path.join(folder, image["file_name"]), shape=(image["height"], image["width"]))
        for image in coco.images.values()
    ]
    yield from _check_images(split, dataset, images)
    yield ok(f"{split}: {len(images)} images, {len(annotated)} of them annotated, {len(coco.labels)} annotations")


def _check_categories(split: str, coco: Coco, classes: list[str]) -> Iterator[Finding]:
    """mmdet takes the categories whose names are classes, and numbers them as they come in the json."""
    names = list(coco.names.values())
    learnt = [name for name in names if name in classes]
    counts = Counter(coco.names.get(category) for _, category in coco.labels)
    left_out = [f"{name} ({counts[name]} annotations)" for name in names if name not in classes and counts[name]]
    absent = [name for name in classes if name not in names]
    if absent:
        yield fail(
            f"{split}: {len(absent)} of {len(classes)} classes are no category of the json: {few(absent)}"
            + (f"; left out are its {few(left_out)}" if left_out else ""),
            f"metainfo=dict(classes={tuple(names)}), the json's categories in its order, or add these to the json",
        )
    elif learnt != classes:
        swapped = [f"{theirs} as {ours}" for theirs, ours in zip(learnt, classes, strict=False) if theirs != ours]
        yield fail(
            f"{split}: mmdet numbers categories by the json, whose order is not that of the classes: it would show "
            + few(swapped or learnt),
            f"metainfo=dict(classes={tuple(dict.fromkeys(learnt))}), the json's order",
        )
    elif left_out:
        yield note(f"{split}: categories that are no classes are left out: {few(left_out)}", "add them to the classes")


def _check_label_maps(split: str, dataset: dict, heads: Mapping[str, nn.Module]) -> Iterator[Finding]:
    built = DATASETS.build({**dataset, "pipeline": [], "serialize_data": False})
    images = built.data_list
    if not images:
        yield fail(f"{split}: no *{built.img_suffix} in {built.data_prefix['img_path']}", "correct img_suffix")
        return
    unlabelled = _missing([image["seg_map_path"] for image in images])
    if unlabelled:
        yield fail(
            f"{split}: {len(unlabelled)} of {len(images)} images have no segmentation map: {few(unlabelled)}",
            "add it, or correct seg_map_suffix and data_prefix.seg_map_path",
        )
    yield from _check_images(split, dataset, images)
    step = _step(dataset, "LoadAnnotations") or dict(type="LoadAnnotations")
    if step.get("reduce_zero_label") not in (None, built.reduce_zero_label):
        yield fail(
            f"{split}: reduce_zero_label={built.reduce_zero_label} in the data set, not in its LoadAnnotations",
            "remove it from LoadAnnotations, which follows the data set",
        )
        return
    counts = np.zeros(256, np.int64)
    unreadable = []
    for image, loaded in _load(step, [one for one in _spread(images) if one["seg_map_path"] not in unlabelled]):
        path = image["seg_map_path"]
        if isinstance(loaded, Exception):
            unreadable.append(f"{path} cannot be read ({reason(loaded)})")
        elif loaded["gt_seg_map"].ndim != 2:
            yield fail(
                f"{split}: {path} has {loaded['gt_seg_map'].shape[-1]} channels: colours instead of labels",
                "write segmentation maps of one channel, or with a palette, whose values are class numbers",
            )
            return
        else:
            counts += np.bincount(loaded["gt_seg_map"].ravel(), minlength=256)
    if unreadable:
        yield fail(f"{split}: {few(unreadable)}", "replace them, and look at the others: a sample was read")
    if not counts.any():
        return
    for name, head in heads.items():
        yield from _check_labels(f"{split}: {name}", head, counts, built.reduce_zero_label)
    last = counts[:IGNORED].nonzero()[0].max(initial=0)
    share = counts[IGNORED] / counts.sum()
    yield ok(
        f"{split}: {len(images)} images with segmentation maps; in a sample labels up to {last}, {share:.1%} {IGNORED}"
    )


def _check_labels(where: str, head: Any, counts: np.ndarray, reduced: bool) -> Iterator[Finding]:
    """Check the number of pixels of each label, as training sees them, against a head."""
    number, ignored = head.num_classes, getattr(head, "ignore_index", IGNORED)
    beyond = [label for label in range(number, 256) if counts[label] and label != ignored]
    shifted = not reduced and beyond == [number]
    if beyond:
        yield fail(
            f"{where} has num_classes={number} and ignore_index={ignored}, the segmentation maps hold "
            + few([f"label {label} ({counts[label]} pixels)" for label in beyond]),
            "correct num_classes, or give the label of unlabelled pixels as ignore_index"
            + ("; reduce_zero_label=True in the data set if labels count from 1" if shifted else ""),
        )
    elif reduced and counts[IGNORED] and counts[: number - 1].all() and not counts[number - 1]:
        yield fail(
            f"{where}: the segmentation maps hold 0 to {number - 1}, of which reduce_zero_label=True ignores 0 and "
            "leaves the last class without pixels",
            "reduce_zero_label=False in the data set and its LoadAnnotations, unless 0 is unlabelled",
        )
    elif not reduced and not counts[0]:
        yield note(f"{where}: no label 0 in a sample", "reduce_zero_label=True in the data set if labels count from 1")


def _check_images(split: str, dataset: dict, images: Sequence[dict]) -> Iterator[Finding]:
    """Check that images are there and that the pipeline reads a sample of them, of the `shape` given."""
    missing = _missing([image["img_path"] for image in images])
    if missing:
        yield fail(
            f"{split}: {len(missing)} of {len(images)} images are missing: {few(missing)}",
            "add them, or correct data_prefix",
        )
    step = _step(dataset, "LoadImageFromFile") or dict(type="LoadImageFromFile")
    wrong = []
    for image, loaded in _load(step, [one for one in _spread(images) if one["img_path"] not in missing]):
        if isinstance(loaded, Exception):
            wrong.append(f"{image['img_path']} cannot be read ({reason(loaded)})")
        elif loaded["img_shape"] != image.get("shape", loaded["img_shape"]):
            wrong.append(f"{image['img_path']} is of {loaded['img_shape']}, in the json of {image['shape']} pixels")
    if wrong:
        yield fail(f"{split}: {few(wrong)}", "replace them, and look at the others: a sample was read")


def _load(step: dict, images: Sequence[dict]) -> Iterator[tuple[dict, dict | Exception]]:
    """Each image with what a pipeline's step makes of it."""
    load = TRANSFORMS.build(step)
    for image in images:
        try:
            yield image, load(dict(image, seg_fields=[]))
        except Exception as error:  # each decoder has its own
            yield image, error


def _step(dataset: dict, name: str) -> dict | None:
    """The first step of this type in a data set's pipeline."""
    return next((step for step in dataset.get("pipeline", []) if step["type"].rpartition(".")[2] == name), None)


def _missing(paths: Sequence[str]) -> dict[str, None]:
    """The paths where nothing is, in order; to list a folder once is faster than to look at each file."""
    folders = {os.path.dirname(path) for path in paths}
    there = {folder: set(os.listdir(folder)) if os.path.isdir(folder) else set() for folder in folders}
    return dict.fromkeys(path for path in paths if os.path.basename(path) not in there[os.path.dirname(path)])


def _spread(items: Sequence) -> list:
    """At most `SAMPLE` items, evenly from the first to the last."""
    return [items[place] for place in np.linspace(0, len(items) - 1, min(SAMPLE, len(items))).astype(int)]
