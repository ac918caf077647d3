"""Checks of segmentation maps: the labels of all maps against classes and heads."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from ..datasets.dataset import IGNORED
from ..datasets.headers import read_all, read_headers
from ..utils.errors import counted
from .findings import Findings, fail, listed, note, ok
from .photos import check_photos
from .run_config import ConfiguredData

_MapsOfLabels = Mapping[int, list[str]]  # the files in which a label occurs


def check_maps(dataset: ConfiguredData) -> Findings:
    """Check images, the files of their maps, and the labels against classes and heads."""
    built = dataset.built
    if len(dataset.classes) == 1:
        problem = "with one class IoUMetric counts every pixel as that class"
        fix = "name two classes, with num_classes=2 and out_channels=1 in the heads"
        yield note("D304", problem, fix)
    maps = {photo: image["seg_map_path"] for photo, image in dataset.list_photos().items()}
    if not maps:
        problem = f"no *{built.img_suffix} in {built.data_prefix['img_path']}"
        yield fail("D314", problem, "correct img_suffix")
        return
    headers = dict(zip(maps, read_headers(list(maps.values())), strict=True))
    colored = [maps[photo] for photo, header in headers.items() if header.channels > 1]
    fix = "write maps of one channel or with a palette, or correct seg_map_suffix and data_prefix"
    yield from listed("FAIL", "D505", colored, "files have several channels, not one", fix)
    if colored:
        return
    sizes = {photo: (header.width, header.height) for photo, header in headers.items()}
    yield from check_photos("D511", dataset.loading, sizes)
    if not dataset.may_change_labels:
        labels = _find_labels(dataset, list(maps.values()))
        for name, head in dataset.split.heads.items():
            yield from _check_head(name, head, labels, dataset)
        yield from _check_pixels(labels, len(maps), dataset)
    yield ok(f"{len(maps)} images with maps")


def _find_labels(dataset: ConfiguredData, paths: list[str]) -> _MapsOfLabels:
    """Return for each label, as mmseg trains it, the maps in which it occurs."""
    maps = defaultdict(list)
    for path, values in zip(paths, read_all(_read_values, paths), strict=True):
        for label in {_trained_label(value, dataset.built) for value in values}:
            maps[label].append(path)
    return maps


def _read_values(file: BinaryIO) -> list[int]:
    """Return the values that the pixels of a map have."""
    return np.unique(np.asarray(Image.open(file))).tolist()


def _trained_label(value: int, built: Any) -> int:
    """Return the label that mmseg makes from a value of a map."""
    if built.reduce_zero_label:
        value = IGNORED if value in (0, IGNORED) else value - 1
    return (built.label_map or {}).get(value, value)


def _check_head(name: str, head: Any, maps: _MapsOfLabels, dataset: ConfiguredData) -> Findings:
    """Check that a head has a class for each label, and ignores what the metrics ignore."""
    ignored = getattr(head, "ignore_index", IGNORED)
    for metric in dataset.split.metrics:
        scored = metric.get("ignore_index", IGNORED)
        if scored != ignored:
            problem = f"{name}.ignore_index is {ignored}, that of the metric {scored}"
            yield note("D507", problem, "give both the same")
    end = max(head.num_classes, 2)  # a single class has the background, label 0, beside it
    beyond = [
        f"label {label} in {counted(len(maps[label]), 'map')} such as {maps[label][0]}"
        for label in sorted(maps)
        if label != ignored and not 0 <= label < end
    ]
    problem = f"labels are neither 0 to {end - 1}, of {name}, nor ignore_index={ignored}"
    fix = f"name their classes, write {ignored} into other pixels, or give "
    fix += "reduce_zero_label=True if labels count from 1"
    yield from listed("FAIL", "D506", beyond, problem, fix)


def _check_pixels(maps: _MapsOfLabels, count: int, dataset: ConfiguredData) -> Findings:
    """Check that each class has pixels in some of the maps."""
    names = dataset.classes
    if len(names) == 1:
        names = ("background", *names)
    absent = [name for label, name in enumerate(names) if label not in maps]
    is_only_training_set = dataset.split.name == "train" and len(dataset.split.datasets) == 1
    level = "FAIL" if is_only_training_set and len(absent) >= len(names) - 1 else "note"
    problem = f"classes have no pixels in {count} segmentation maps"
    fix = "write 0, 1, ... into the maps, or correct classes or reduce_zero_label"
    yield from listed(level, "D513", absent, problem, fix)
