"""Checks of a user's own data set before anything is written for a training."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ..datasets import Dataset, Split
from ..datasets.headers import read_infos
from ..utils.errors import preview
from ..utils.images import TIFF_SUFFIXES
from .classes import check_names
from .data import OBJECT_CHECKS, check_labelled_photos
from .findings import Finding, fail
from .leaks import check_leaks
from .objects import CheckedObjects
from .segmentation import check_own_maps


def raise_failures(findings: Iterable[Finding]) -> None:
    """Raise ValueError for the first failure."""
    for finding in findings:
        if finding.level == "FAIL":
            raise ValueError(finding.message())


def check_dataset(dataset: Dataset, needs_masks: bool = True) -> Iterator[Finding]:
    """Check the photos of a data set, and its labels.

    Args:
        needs_masks: Whether the objects are trained with their masks.
    """
    held_out = "val" if "val" in dataset.splits else "test"  # a test split beside val is left out
    names = ["train", held_out] if dataset.held_out else ["train"]
    nameless = list(_check_nameless(dataset))
    yield from nameless or check_names(dataset.classes, "data set")
    for name in names:
        for finding in _check_split(dataset, name, needs_masks):
            yield finding._replace(text=f"{name}: {finding.text}")
    if dataset.held_out:
        photos = _list_photos(dataset.held_out)
        yield from check_leaks(held_out, photos, _list_photos(dataset.training))


def _list_photos(split: Split) -> list[str]:
    return [str(image.path) for image in split.images]


def _check_nameless(dataset: Dataset) -> Iterator[Finding]:
    """Check that the class of each object has a name."""
    if "" not in dataset.classes:
        return
    label = dataset.classes.index("")
    names = [
        split.name_object(row)
        for split in dataset.splits.values()
        if split.objects is not None
        for row in (split.objects.labels == label).nonzero()[0].tolist()
    ]
    if names:
        problem = f"{len(names)} of {dataset.count_labels()} objects have a class without a name"
        yield fail("D307", f"{problem}: {preview(names)}", "name their class")


def _check_split(dataset: Dataset, name: str, needs_masks: bool) -> Iterator[Finding]:
    split = dataset.splits[name]
    paths = _list_photos(split)
    yield from _check_bits(paths)
    if split.objects is None:
        pairs = dict(zip(paths, map(str, split.maps), strict=True))
        yield from check_own_maps(pairs, dataset.classes, name == "train")
        return
    source = split.label_files
    if not isinstance(source, Path) and dataset.inventory is not None:
        source = dataset.inventory.given
    objects = CheckedObjects(
        split,
        str(source),
        dataset.classes,
        is_training=name == "train",
        needs_masks=needs_masks and any(split.objects.masks),
    )
    for check in (*OBJECT_CHECKS, check_labelled_photos):
        yield from check(objects)


def _check_bits(photos: Iterable[str]) -> Iterator[Finding]:
    """Check that no TIFF has bits that OpenCV would drop in silence."""
    tifs = [path for path in photos if path.lower().endswith(TIFF_SUFFIXES)]
    for path, info in read_infos(tifs).items():
        if info.bits > 8 and not info.dropped_bands:
            problem = f"{path} has {info.bits} bits, which are not those of a photo"
            yield fail("D315", problem, "write a config as in docs/bands.md")
