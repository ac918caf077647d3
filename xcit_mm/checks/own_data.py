"""Checks of a user's own data set before anything is written for a training."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

from ..datasets import Dataset
from ..datasets.old_headers import ImageInfo, read_infos
from .data import check_labels
from .findings import Finding
from .leaks import check_leaks
from .objects import CheckedObjects
from .photos import Photos
from .segmentation import CheckedMaps, check_maps


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
    photos = {name: [str(image.path) for image in dataset.splits[name].images] for name in names}
    # All at once, as the reader of maps did: the first path names the cache.
    splits = [split for split in dataset.splits.values() if split.objects is None]
    maps = read_infos([str(path) for split in splits for path in split.maps], are_maps=True)
    for name in names:
        for finding in _check_split(dataset, name, Photos(photos[name]), maps, needs_masks):
            yield finding._replace(text=f"{name}: {finding.text}")
    if dataset.held_out:
        yield from check_leaks(held_out, photos[held_out], photos["train"])


def _check_split(
    dataset: Dataset,
    name: str,
    photos: Photos,
    map_infos: Mapping[str, ImageInfo],
    needs_masks: bool,
) -> Iterator[Finding]:
    split = dataset.splits[name]
    if split.objects is None:
        # The data set takes the place of heads.
        heads = {"the data set": SimpleNamespace(num_classes=len(dataset.classes))}
        maps = list(map(str, split.maps))
        infos = {path: map_infos[path] for path in maps}
        is_training = name == "train"
        yield from check_maps(CheckedMaps(photos, maps, infos, dataset.classes, heads, is_training))
        return
    owner = split.label_files
    if not isinstance(owner, Path) and dataset.inventory is not None:
        owner = dataset.inventory.data
    has_masks = any(split.objects.masks)
    objects = CheckedObjects(split, str(owner), needs_masks=needs_masks and has_masks)
    yield from check_labels(objects, photos)
