"""Checks of segmentation maps: sizes, and the labels of all maps against classes and heads."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mmengine.registry import TRANSFORMS
from PIL import Image
from torch import nn

from ..datasets import IGNORED
from ..datasets.headers import ImageInfo, read_infos
from ..utils.configs import part_class
from ..utils.errors import counted, preview
from .findings import Finding, fail, listed, note, ok
from .orientation import check_orientation
from .photos import STORED, Photos, by_width, check_photos
from .run_config import ConfiguredData

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
        return f"({self.pixels} pixels in {counted(len(self.maps), 'map')}, such as {self.maps[0]})"


Labels = Mapping[int, Label]


def check_configured_maps(
    dataset: ConfiguredData, heads: Mapping[str, nn.Module], is_only_training_set: bool
) -> Iterator[Finding]:
    """Check images and segmentation maps of a config.

    Args:
        heads: The heads that predict the classes, by name.
        is_only_training_set: Whether all classes of the training must be in it.
    """
    built = dataset.built
    # `train --from` links to the user's maps.
    pairs = {
        image["img_path"]: os.path.realpath(image["seg_map_path"]) for image in built.data_list
    }
    if not pairs:
        problem = f"no *{built.img_suffix} in {built.data_prefix['img_path']}"
        yield fail("D314", problem, "correct img_suffix")
        return
    missing = [path for path in pairs.values() if not os.path.isfile(path)]
    problem = f"of {len(pairs)} images have no segmentation map"
    fix = "add these files, or correct seg_map_suffix and data_prefix.seg_map_path"
    yield from listed("FAIL", "D314", missing, problem, fix)
    photos = Photos(list(pairs), dataset.loading)
    yield from check_photos(photos, {})
    if missing or _has_own_step(dataset):
        return
    infos = read_infos(list(pairs.values()), are_maps=True)
    labels = _merge_labels(infos, built)
    failures = list(check_map_files(photos, pairs, infos))
    for name, head in heads.items():
        failures += _check_head(name, head, labels, built)
    yield from failures
    if not any(failure.level == "FAIL" for failure in failures):
        first_head = next(iter(heads.values()), None)
        labels.pop(getattr(first_head, "ignore_index", IGNORED), None)
        names = built.metainfo.get("classes") or ()
        yield from check_pixels(names, labels, len(infos), is_only_training_set)
    yield ok(f"{len(pairs)} images with segmentation maps of {counted(len(labels), 'label')}")


def check_own_maps(
    pairs: Mapping[str, str], classes: Sequence[str], is_training: bool
) -> Iterator[Finding]:
    """Check the photos and maps of a user's data set, given the map of each photo."""
    photos = Photos(list(pairs))
    yield from check_photos(photos, {})
    infos = read_infos(list(pairs.values()), are_maps=True)
    yield from check_map_files(photos, pairs, infos)
    labels = _merge_labels(infos)
    labels.pop(IGNORED, None)
    beyond = [value for value in labels if value >= len(classes)]
    if beyond:
        problem = f"there are {counted(len(classes), 'class')}"
        fix = "correct the maps, or name these labels in classes.txt"
        yield _name_beyond(problem, beyond, labels, fix)
    yield from check_pixels(classes, labels, len(infos), is_training)


def _has_own_step(dataset: ConfiguredData) -> bool:
    """Return whether a transform of the user, from another library, may read or change the maps."""
    if not dataset.annotation_step:
        return True
    transforms = [part_class(step, TRANSFORMS) for step in dataset.options["pipeline"]]
    libraries = {transform.__module__.partition(".")[0] for transform in transforms if transform}
    return not libraries <= _LIBRARIES


def check_map_files(
    photos: Photos, pairs: Mapping[str, str], infos: Mapping[str, ImageInfo]
) -> Iterator[Finding]:
    """Check that maps can be read, and have the sizes of their photos and their orientation."""
    unreadable = [f"{path} ({info.problem})" for path, info in infos.items() if info.problem]
    problem = "segmentation maps cannot be read"
    yield from listed("FAIL", "D315", unreadable, problem, "replace these files")
    coloured = [path for path, info in infos.items() if info.channels > 1]
    problem = "segmentation maps have colours instead of labels"
    fix = "write maps of one channel, or with a palette, whose values are class numbers"
    yield from listed("FAIL", "D505", coloured, problem, fix)
    stored: list[str] = []
    misfits: list[str] = []
    for photo, path in pairs.items():
        expected = photos.shape(photo)
        shape = infos[path].shape(is_turned=False)
        if not expected or shape == expected or infos[path].problem:
            continue
        difference = f"{path} has {by_width(shape)} pixels, its image {by_width(expected)}"
        is_stored = photos.is_stored_shape(photo, shape)
        (stored if is_stored else misfits).append(difference)
    problem = "maps were drawn over photos as stored, but mmcv turns them by EXIF"
    fix = f"{STORED}, or turn these maps as EXIF turns the photos"
    yield from listed("FAIL", "D511", stored, problem, fix)
    problem = f"of {len(pairs)} maps have another size"
    fix = "write each map in the size of its image"
    yield from listed("FAIL", "D511", misfits, problem, fix)
    if not (unreadable or coloured):
        yield from check_orientation(
            "D511", photos, lambda photo: np.asarray(Image.open(pairs[photo]))
        )


def _merge_labels(infos: Mapping[str, ImageInfo], built: Any = None) -> dict[int, Label]:
    """Return the labels of all maps, as a training on a built data set sees them. Labels above 8
    bits stay as they are.
    """
    labels: dict[int, Label] = {}
    for path, info in infos.items():
        for value, pixels in info.labels:
            trained = _trained_label(value, built) if built else value
            label = labels.setdefault(trained, Label())
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


def _check_head(name: str, head: Any, labels: Labels, built: Any) -> Iterator[Finding]:
    """Check labels against a head."""
    number = head.num_classes
    end = number
    ignored = getattr(head, "ignore_index", IGNORED)
    has_sigmoid = getattr(getattr(head, "loss_decode", None), "use_sigmoid", False)
    if has_sigmoid and head.out_channels == 1:
        end = max(number, 2)  # a threshold separates a single class from the background, label 0
    beyond = [value for value in labels if value != ignored and (value >= end or value > IGNORED)]
    if beyond:
        problem = f"{name} has num_classes={number} and ignore_index={ignored}"
        fix = "correct the maps or num_classes, or give the label of unlabelled pixels"
        fix = f"{fix} as ignore_index"
        if beyond == [end] and not built.reduce_zero_label:
            fix = f"{fix}; reduce_zero_label=True in the data set if labels count from 1"
        yield _name_beyond(problem, beyond, labels, fix)


def _name_beyond(problem: str, beyond: Sequence[int], labels: Labels, fix: str) -> Finding:
    """Name labels that are no class, with their maps."""
    held = preview([f"label {value} {labels[value]}" for value in beyond])
    return fail("D506", f"{problem}, the segmentation maps hold {held}", fix)


def check_pixels(
    names: Sequence[str], labels: Labels, maps: int, must_have_classes: bool
) -> Iterator[Finding]:
    """Check that classes have pixels, in so many maps that labels are not slips.

    Args:
        names: Names of the classes.
        labels: Labels of all maps, without the ignored label.
        maps: Number of maps.
        must_have_classes: Whether it is a failure if at most one class has pixels.
    """
    if len(names) == 1:
        names = ("background", *names)
    absent = [name for value, name in enumerate(names) if value not in labels]
    if absent:
        problem = f"{maps} segmentation maps have no pixels of {preview(absent)}"
        fix = "write the numbers of the classes, 0, 1, ..., into the maps, not the ignored label"
        level = fail if must_have_classes and len(absent) >= len(names) - 1 else note
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
