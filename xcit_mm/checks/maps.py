"""Checks of data sets of segmentation maps: labels of all maps against classes and heads."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mmengine.registry import TRANSFORMS
from PIL import Image
from torch import nn

from ..datasets.headers import ImageInfo, read_infos
from ..utils.configs import find_step, part_class
from ..utils.errors import preview
from .findings import Finding, fail, listed, note, ok
from .images import STORED, Photos, build_dataset, check_images, sample
from .orientation import labels_match_stored

IGNORED = 255  # the label to which reduce_zero_label changes label 0 in mmseg
_LIBRARIES = {"mmcv", "mmseg", "xcit_mm"}
_MANY = 20  # maps among which a label that few maps have may be a slip


@dataclass
class Label:
    """Where a label occurs.

    Attributes:
        pixels: Number of pixels in all maps.
        maps: Paths of the maps that have it.
    """

    pixels: int = 0
    maps: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        count = f"{len(self.maps)} map{'s' if len(self.maps) > 1 else ''}"
        return f"({self.pixels} pixels in {count}, such as {self.maps[0]})"


def check_maps(
    dataset: dict, heads: Mapping[str, nn.Module], is_only_training_set: bool
) -> Iterator[Finding]:
    """Check images and segmentation maps.

    Args:
        heads: The heads that predict the classes, by name.
        is_only_training_set: Whether all classes of the training must be in it.
    """
    built = build_dataset(dataset)
    pairs = {}
    for image in built.data_list:  # `train --from` links to the user's maps
        pairs[image["img_path"]] = os.path.realpath(image["seg_map_path"])
    if not pairs:
        problem = f"no *{built.img_suffix} in {built.data_prefix['img_path']}"
        yield fail("D314", problem, "correct img_suffix")
        return
    missing = [path for path in pairs.values() if not os.path.isfile(path)]
    problem = f"of {len(pairs)} images have no segmentation map"
    fix = "add these files, or correct seg_map_suffix and data_prefix.seg_map_path"
    yield from listed("FAIL", "D314", missing, problem, fix)
    photos = Photos(dataset, list(pairs))
    yield from check_images(photos, {})
    if missing or _has_own_step(dataset):
        return
    maps = read_infos(list(pairs.values()), are_maps=True)
    labels = _merge_labels(built, maps)
    checks = [_check_files(maps), _check_places(photos, pairs, maps)]
    checks += [_check_head(name, head, labels, built) for name, head in heads.items()]
    failures = [failure for check in checks for failure in check]
    yield from failures
    if not failures:
        head = next(iter(heads.values()), None)
        labels.pop(getattr(head, "ignore_index", IGNORED), None)
        yield from _check_classes(built, labels, len(maps), is_only_training_set)
    yield ok(f"{len(pairs)} images with segmentation maps of {len(labels)} labels")


def _has_own_step(dataset: dict) -> bool:
    """Return whether a transform of the user, from another library, may read or change the maps."""
    if find_step(dataset["pipeline"], "LoadAnnotations") is None:
        return True
    transforms = [part_class(step, TRANSFORMS) for step in dataset["pipeline"]]
    libraries = {transform.__module__.partition(".")[0] for transform in transforms if transform}
    return not libraries <= _LIBRARIES


def _check_files(maps: Mapping[str, ImageInfo]) -> Iterator[Finding]:
    unreadable = [f"{path} ({info.problem})" for path, info in maps.items() if info.problem]
    problem = "segmentation maps cannot be read"
    yield from listed("FAIL", "D315", unreadable, problem, "replace these files")
    coloured = [path for path, info in maps.items() if info.channels > 1]
    problem = "segmentation maps have colours instead of labels"
    fix = "write maps of one channel, or with a palette, whose values are class numbers"
    yield from listed("FAIL", "D505", coloured, problem, fix)


def _check_places(
    photos: Photos, pairs: Mapping[str, str], maps: Mapping[str, ImageInfo]
) -> Iterator[Finding]:
    """Check that maps have the sizes of their photos, and their orientation."""
    shapes = {photo: maps[path].shape(is_turned=False) for photo, path in pairs.items()}
    misfits = {}
    for photo, path in pairs.items():
        expected = photos.shape(photo)
        if expected and shapes[photo] != expected and not maps[path].problem:
            misfits[photo] = f"{path} has {shapes[photo]} pixels, its image {expected}"
    turned = sorted(photos.turned) if photos.is_turned else []
    stored = [p for p in turned if photos.infos[p].shape(is_turned=False) == shapes[p]]
    # If a photo is stored upside down, the sizes are the same and the content decides.
    opened = ((photo, np.asarray(Image.open(pairs[photo]))) for photo in sample(stored))
    if not misfits.keys().isdisjoint(stored) or labels_match_stored(opened):
        problem = "maps were drawn over photos as stored, but mmcv turns them by EXIF"
        fix = f"{STORED}, or turn these maps as EXIF turns the photos"
        yield from listed("FAIL", "D511", stored, problem, fix)
        for photo in stored:
            misfits.pop(photo, None)
    problem = f"of {len(pairs)} maps have another size"
    fix = "write each map in the size of its image"
    yield from listed("FAIL", "D511", misfits.values(), problem, fix)


def _merge_labels(built: Any, maps: Mapping[str, ImageInfo]) -> dict[int, Label]:
    """Return the labels of all maps as training sees them. Labels above 8 bits stay as they are."""
    labels: dict[int, Label] = {}
    for path, info in maps.items():
        for value, pixels in info.labels:
            label = labels.setdefault(_trained_label(value, built), Label())
            label.pixels += pixels
            label.maps.append(path)
    return dict(sorted(labels.items()))


def _trained_label(value: int, built: Any) -> int:
    """Return the label that mmseg makes of a value of a map."""
    if value > IGNORED:
        return IGNORED if value == 65535 else value
    if built.reduce_zero_label:
        value = IGNORED if value in (0, IGNORED) else value - 1
    return (built.label_map or {}).get(value, value) & IGNORED


def _check_head(name: str, head: Any, labels: Mapping[int, Label], built: Any) -> Iterator[Finding]:
    """Check labels against a head."""
    number = head.num_classes
    end = number
    ignored = getattr(head, "ignore_index", IGNORED)
    has_sigmoid = getattr(getattr(head, "loss_decode", None), "use_sigmoid", False)
    if has_sigmoid and head.out_channels == 1:
        end = max(number, 2)  # a threshold separates a single class from the background, label 0
    beyond = [value for value in labels if value != ignored and (value >= end or value > IGNORED)]
    if beyond:
        held = preview([f"label {value} {labels[value]}" for value in beyond])
        problem = f"{name} has num_classes={number} and ignore_index={ignored}"
        fix = "correct the maps or num_classes, or give the label of unlabelled pixels"
        fix = f"{fix} as ignore_index"
        if beyond == [end] and not built.reduce_zero_label:
            fix = f"{fix}; reduce_zero_label=True in the data set if labels count from 1"
        yield fail("D506", f"{problem}, the segmentation maps hold {held}", fix)


def _check_classes(
    built: Any, labels: Mapping[int, Label], maps: int, is_only_training_set: bool
) -> Iterator[Finding]:
    """Check that classes have pixels, in so many maps that labels are not slips.

    Args:
        labels: Labels of all maps, without the ignored label.
        maps: Number of maps.
    """
    names = built.metainfo.get("classes") or ()
    if len(names) == 1:
        names = ("background", *names)
    absent = [name for value, name in enumerate(names) if value not in labels]
    if absent:
        problem = f"{maps} segmentation maps have no pixels of {preview(absent)}"
        fix = "write the numbers of the classes, 0, 1, ..., into the maps, not the ignored label"
        level = fail if is_only_training_set and len(absent) >= len(names) - 1 else note
        yield level("D513", problem, f"{fix}, or correct classes or reduce_zero_label")
    few = max(1, maps // 1000)
    rare = [
        f"{names[value]!r} {label}"
        for value, label in labels.items()
        if len(label.maps) <= few and value < len(names)
    ]
    if rare and maps >= _MANY:
        problem = f"of {maps} segmentation maps, few have {preview(rare)}"
        yield note("D513", problem, "correct these maps if the labels are slips")
