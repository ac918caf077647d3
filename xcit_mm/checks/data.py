"""Checks of data sets: whether their files are there, and hold what the config says."""

import functools
from collections.abc import Iterator, Mapping

from mmengine.config import Config
from torch import nn

from ..models.backbone import XCiT
from ..utils.configs import backbone_class, dataset_class, leaf_datasets, metainfo, type_name
from ..utils.errors import preview
from .coco import check_coco
from .coco_json import read_coco
from .findings import Finding, fail, note, ok
from .preflight import missing_data
from .segmentation_maps import check_segmentation_maps

__all__ = ["SPLITS", "check_classes", "check_data_sets", "data_sets"]

SPLITS = ("train", "val")


def data_sets(cfg: Config, split: str) -> Iterator[dict]:
    """The data sets of a split, out of their wrappers."""
    yield from filter(None, leaf_datasets((cfg.get(f"{split}_dataloader") or {}).get("dataset") or {}))


def check_classes(cfg: Config, heads: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """Check the classes of all data sets against each other and the heads' `num_classes`."""
    if cfg.get("default_scope") == "mmpretrain":
        yield note("D301", "mmpretrain takes classes from its data: compare their number with the head's num_classes")
        return
    given: dict[tuple[str, ...], str] = {}
    for split in SPLITS:
        for dataset in data_sets(cfg, split):
            classes = metainfo(dataset).get("classes")
            if not classes or isinstance(classes, str):
                yield fail(
                    "D302", f"classes={classes!r} in the {split} data set", "metainfo=dict(classes=('name', ...))"
                )
            else:
                given.setdefault(tuple(classes), split)
    for classes, split in given.items():
        for name, head in heads.items():
            if head.num_classes != len(classes):
                yield fail(
                    "D303",
                    f"{name}.num_classes is {head.num_classes}, the {split} data set has {len(classes)} classes",
                    f"--cfg-options model.{name}.num_classes={len(classes)}, or correct metainfo.classes",
                )
        if len(classes) == 1 and cfg.get("default_scope") == "mmseg":
            yield note(
                "D304",
                f"{split}: with one class IoUMetric counts every pixel as that class",
                "metainfo=dict(classes=('background', 'name')), num_classes=2 and out_channels=1 in the heads",
            )
    if len(given) > 1:
        (first, split), (second, other) = list(given.items())[:2]
        differing = [f"{a} and {b}" for a, b in zip(first, second, strict=False) if a != b]
        yield fail(
            "D305",
            f"the {split} and {other} data sets have different classes: "
            + preview(differing or [f"{len(first)} and {len(second)} classes"]),
            "give both data sets the same metainfo",
        )
    yield ok(f"{len(next(iter(given), ()))} classes in data sets and heads")


def _channels(cfg: Config) -> int | None:
    """The channels that the model takes; None of a backbone that is not ours."""
    return cfg.model.backbone.get("in_channels", 3) if backbone_class(cfg) is XCiT else None


def _paths(dataset: dict) -> list[str]:
    """Where a data set's files are, as the config says it."""
    prefix = dataset.get("data_prefix") or {}
    given = (
        dataset.get("data_root"),
        dataset.get("ann_file"),
        *(prefix.values() if isinstance(prefix, dict) else [prefix]),
    )
    return [path for path in given if path]


def check_data_sets(cfg: Config, split: str, heads: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """Check the files of a split, 'train' or 'val', and what is in them.

    Args:
        heads: The heads that know classes, by name.
    """
    missing = next(missing_data(cfg, split), None)
    if missing:
        yield missing
        return
    read = functools.cache(read_coco)  # for one split: a json takes a gigabyte once parsed
    for dataset in data_sets(cfg, split):
        kind = dataset_class(dataset)
        # The class whose method lists the data tells their format.
        form = kind.load_data_list.__qualname__.partition(".")[0]
        remote = [path for path in _paths(dataset) if "://" in path]
        if remote:
            yield note("D312", f"{split}: {remote[0]} is remote storage, which the doctor does not read")
        elif form == "CocoDataset" and kind.COCOAPI.__name__ == "COCO":  # not COCO's panoptic format
            yield from check_coco(cfg, split, dataset, read)
        elif form == "BaseSegDataset":
            yield from check_segmentation_maps(split, dataset, heads, _channels(cfg))
        else:
            yield note("D313", f"{split}: the doctor cannot check data sets of type {type_name(dataset)}")
