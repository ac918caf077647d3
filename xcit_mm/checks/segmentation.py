"""Checks of segmentation maps: the labels of all maps against classes and heads."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from ..datasets.dataset import IGNORED
from ..datasets.headers import read_all, read_headers
from ..utils.errors import counted
from .findings import Findings, fail, listed, note, ok
from .photos import check_photos
from .run_config import ConfiguredData, ConfiguredSplit

PathsByLabel = Mapping[int, list[str]]


def check_maps(
    dataset: ConfiguredData, heads: Mapping[str, Any], split: ConfiguredSplit
) -> Findings:
    """Check images, the files of their maps, and the labels against classes and heads."""
    built = dataset.built
    maps = {photo: image["seg_map_path"] for photo, image in dataset.list_photos().items()}
    if not maps:
        problem = f"no *{built.img_suffix} in {built.data_prefix['img_path']}"
        yield fail("D314", problem, "correct img_suffix")
        return
    paths = list(maps.values())
    headers = dict(zip(paths, read_headers(paths), strict=True))
    colored = [path for path, header in headers.items() if header.channels > 1]
    fix = "write maps of one channel or with a palette, or correct seg_map_suffix and data_prefix"
    yield from listed("FAIL", "D505", colored, "files are RGB images, not segmentation maps", fix)
    if colored:
        return
    sizes = {photo: (path, headers[path][:2]) for photo, path in maps.items()}
    yield from check_photos("D511", dataset.loading, sizes)
    if not dataset.may_change_labels:
        yield from _check_labels(dataset, paths, heads, split)
    yield ok(f"{len(maps)} images with maps")


def _check_labels(
    dataset: ConfiguredData, paths: list[str], heads: Mapping[str, Any], split: ConfiguredSplit
) -> Findings:
    """Check the labels of maps against heads, and against classes if they fit the heads."""
    maps = defaultdict(list)
    for path, values in zip(paths, read_all(_read_labels, paths), strict=True):
        for label in {_trained_label(value, dataset.built) for value in values}:
            maps[label].append(path)
    for name, head in heads.items():
        yield from _check_ignored_label(name, head, split)
        misfits = list(_check_range(name, head, maps))
        yield from misfits
        if misfits:
            return
    ignored = [_ignored_label(head) for head in heads.values()] or [IGNORED]
    maps.pop(ignored[-1], None)
    is_only_training_set = split.name == "train" and len(split.datasets) == 1
    yield from _check_presence(dataset.classes, maps, len(paths), is_only_training_set)


def _check_ignored_label(name: str, head: Any, split: ConfiguredSplit) -> Findings:
    scored = [metric.get("ignore_index", IGNORED) for metric in split.metrics]
    if {*scored} - {_ignored_label(head)}:
        problem = f"{name}.ignore_index is {_ignored_label(head)}, that of the metric {scored[0]}"
        yield note("D507", problem, "give both the same")


def _check_range(name: str, head: Any, maps: PathsByLabel) -> Findings:
    """Check that a head has a class for each label of the maps, or ignores it."""
    end = max(head.num_classes, 2)  # a single class has the background, label 0, beside it
    ignored = _ignored_label(head)
    beyond = [
        f"label {label} in {counted(len(maps[label]), 'map')} such as {maps[label][0]}"
        for label in sorted(maps)
        if label != ignored and not 0 <= label < end
    ]
    problem = f"labels are neither 0 to {end - 1}, of {name}, nor ignore_index={ignored}"
    fix = f"name their classes, write {ignored} into other pixels, or give "
    fix += "reduce_zero_label=True if labels count from 1"
    return listed("FAIL", "D506", beyond, problem, fix)


def _check_presence(
    classes: Sequence[str], maps: PathsByLabel, count: int, is_only_training_set: bool
) -> Findings:
    """Check that all classes have pixels in some maps.

    If at most one class has pixels, the only training set fails.
    """
    names = ("background", *classes) if len(classes) == 1 else classes
    absent = [name for label, name in enumerate(names) if label not in maps]
    level = "FAIL" if is_only_training_set and len(absent) >= len(names) - 1 else "note"
    problem = f"classes have no pixels in {count} segmentation maps"
    fix = "write 0, 1, ... into the maps, or correct classes or reduce_zero_label"
    return listed(level, "D513", absent, problem, fix)


def _ignored_label(head: Any) -> int:
    return getattr(head, "ignore_index", IGNORED)


def _read_labels(file: BinaryIO) -> list[int]:
    """Return the labels of the pixels of a map."""
    return np.unique(np.asarray(Image.open(file))).tolist()


def _trained_label(value: int, built: Any) -> int:
    """Return the label that mmseg makes of a map's value. Values below 0 or above 8 bits stay."""
    if not 0 <= value <= IGNORED:
        return IGNORED if value == 65535 else value
    if built.reduce_zero_label:
        value = IGNORED if value in (0, IGNORED) else value - 1
    return (built.label_map or {}).get(value, value) & IGNORED  # as 8 bits wrap
