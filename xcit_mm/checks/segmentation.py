"""Checks of segmentation maps: sizes, and the labels of all maps against classes and heads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..datasets import IGNORED
from ..datasets.old_headers import ImageInfo
from ..utils.errors import counted
from .findings import Finding, listed, ok
from .photos import Photos, check_photos, check_sizes


@dataclass
class CheckedMaps:
    """Segmentation maps, and how a run uses them.

    Attributes:
        maps: The path of the map of each photo.
        infos: Headers and labels of these maps, by path.
        heads: What learns the labels, by name, with `num_classes`.
        must_have_classes: Whether it is a failure if at most one class has pixels.
        built: The data set of mmseg, which may change labels.
    """

    photos: Photos
    maps: Sequence[str]
    infos: Mapping[str, ImageInfo]
    classes: Sequence[str]
    heads: Mapping[str, Any]
    must_have_classes: bool
    built: Any = None


@dataclass
class _Label:
    """Where a label occurs: the number of pixels in all maps, and the maps that have it."""

    pixels: int = 0
    maps: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"({self.pixels} pixels in {counted(len(self.maps), 'map')}, such as {self.maps[0]})"


def check_maps(checked: CheckedMaps) -> Iterator[Finding]:
    """Check photos, the files of maps, and their labels."""
    yield from check_photos(checked.photos)
    labels = _count_labels(checked)
    failures = list(_check_files(checked))
    for name in checked.heads:
        failures += _check_head(checked, name, labels)
    yield from failures
    if not failures:
        first_head = next(iter(checked.heads.values()), None)
        labels.pop(getattr(first_head, "ignore_index", IGNORED), None)  # not a class
        yield from _check_pixels(checked, labels)
    yield ok(f"{len(checked.maps)} images with maps of {counted(len(labels), 'label')}")


def _check_files(checked: CheckedMaps) -> Iterator[Finding]:
    """Check that maps hold labels, and have the sizes of their photos."""
    infos = checked.infos
    wrong = [f"{path} {info.map_problem}" for path, info in infos.items() if info.map_problem]
    fix = "replace these files, or correct seg_map_suffix"
    yield from listed("FAIL", "D505", wrong, "files are not segmentation maps", fix)
    sizes = [
        (photo, path, infos[path].shape(is_turned=False))
        for photo, path in zip(checked.photos.paths, checked.maps, strict=True)
        if not infos[path].problem
    ]
    yield from check_sizes("D511", checked.photos, sizes)


def _count_labels(checked: CheckedMaps) -> dict[int, _Label]:
    """Return the pixels and maps of each label that is trained, by label."""
    labels: dict[int, _Label] = {}
    for path, info in checked.infos.items():
        for value, pixels in info.labels:
            label = labels.setdefault(_trained_label(value, checked.built), _Label())
            label.pixels += pixels
            label.maps.append(path)
    return dict(sorted(labels.items()))


def _trained_label(value: int, built: Any) -> int:
    """Return the label that mmseg makes of a map's value. Values below 0 or above 8 bits stay."""
    if built is None or value < 0:
        return value
    if value > IGNORED:
        return IGNORED if value == 65535 else value
    if built.reduce_zero_label:
        value = IGNORED if value in (0, IGNORED) else value - 1
    return (built.label_map or {}).get(value, value) & IGNORED  # as 8 bits wrap


def _check_head(checked: CheckedMaps, name: str, labels: Mapping[int, _Label]) -> list[Finding]:
    """Check that a head has a class for each label."""
    head = checked.heads[name]
    end = head.num_classes
    ignored = getattr(head, "ignore_index", IGNORED)
    has_sigmoid = getattr(getattr(head, "loss_decode", None), "use_sigmoid", False)
    if has_sigmoid and head.out_channels == 1:
        end = max(end, 2)  # a threshold separates a single class from the background, label 0
    beyond = [
        f"label {value} {label}"
        for value, label in labels.items()
        if value != ignored and (not 0 <= value < end or value > IGNORED)
    ]
    limit = f"{name} has num_classes={head.num_classes} and ignore_index={ignored}"
    problem = f"labels in segmentation maps are of no class, as {limit}"
    fix = "correct the maps, num_classes or classes.txt, or give the label of unlabelled pixels as "
    fix = f"{fix}ignore_index; reduce_zero_label=True if labels count from 1"
    return listed("FAIL", "D506", beyond, problem, fix)


def _check_pixels(checked: CheckedMaps, labels: Mapping[int, _Label]) -> list[Finding]:
    """Check that classes have pixels."""
    classes = checked.classes
    names = ["background", *classes] if len(classes) == 1 else classes
    absent = [name for value, name in enumerate(names) if value not in labels]
    level = "FAIL" if checked.must_have_classes and len(absent) >= len(names) - 1 else "note"
    problem = f"classes have no pixels in {len(checked.maps)} segmentation maps"
    fix = "write the numbers of the classes, 0, 1, ..., into the maps, not the ignored label, or "
    fix = f"{fix}correct classes or reduce_zero_label"
    return listed(level, "D513", absent, problem, fix)
