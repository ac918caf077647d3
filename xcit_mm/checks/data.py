"""Checks of the data sets of a config: whether their files exist, and hold what the config says."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from torch import nn

from ..datasets.coco_json import CocoJson
from ..utils.configs import type_name
from .categories import check_categories, check_ids, check_unknown, to_split
from .findings import Finding, fail, note, ok
from .leaks import check_leaks
from .masks import check_masks
from .objects import CheckedObjects, check_counts, check_objects
from .orientation import check_orientation
from .photos import Photos, check_photos
from .run_config import ConfiguredData, ConfiguredSplit
from .segmentation import check_configured_maps

OBJECT_CHECKS: tuple[Callable[[CheckedObjects], Iterator[Finding]], ...] = (
    check_objects,
    check_counts,
    check_masks,
)
_EXPORT = "export the file again with this key, or with one id for each entry"


def check_paths(splits: Iterable[ConfiguredSplit]) -> list[Finding]:
    """Find the first path of each split that does not exist."""
    keys = "data_root, data_prefix and ann_file of data set and evaluator"
    fix = f"put or link the data set there, or correct {keys}"
    missing = {split.name: split.find_missing() for split in splits}
    return [
        fail("D311", f"the {name} data are not at {path}", fix)
        for name, path in missing.items()
        if path
    ]


def check_data_sets(split: ConfiguredSplit, heads: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """Check the content of the files of a split, if they exist and are scored or trained on."""
    if split.find_missing():
        return
    if split.is_only_formatted:
        problem = "with format_only nothing is scored, and labels are not checked"
        yield note("", f"{split.name}: {problem}")
        return
    for dataset in split.datasets:
        if dataset.data_format == "COCO":
            findings = _check_jsons(split, dataset)
        elif dataset.data_format == "maps":
            is_only_training_set = split.name == "train" and len(split.datasets) == 1
            findings = check_configured_maps(dataset, heads, is_only_training_set)
        else:
            where = " on a server" if any("://" in path for path in dataset.paths) else ""
            findings = iter([note("", f"a {type_name(dataset.options)}{where} is not checked")])
        for finding in findings:
            yield finding._replace(text=f"{split.name}: {finding.text}")


def _check_jsons(split: ConfiguredSplit, dataset: ConfiguredData) -> Iterator[Finding]:
    """Check the json and the images of a data set, and other jsons that its split is scored by."""
    needs_masks = split.scores_masks or dataset.annotation_step.get("with_mask", False)
    for path in dict.fromkeys([dataset.json_path, *map(os.path.realpath, split.scored_jsons)]):
        try:
            coco = dataset.read_json(path)
        except ValueError as error:
            yield fail("D401", str(error), _EXPORT)
            return
        failures = list(check_ids(coco))
        yield from failures
        if failures or isinstance(dataset.classes, str):  # another check reports such classes
            return
        yield from check_categories(coco, dataset.classes, split.name)
        yield from check_unknown(coco)
        objects = CheckedObjects(
            to_split(coco, dataset),
            path,
            dataset.classes,
            is_training=split.name == "train",
            needs_masks=needs_masks,
            loading=dataset.loading,
            poly2mask=dataset.annotation_step.get("poly2mask", True),
            has_meant_crowds=_is_of_coco(coco),
        )
        for check in OBJECT_CHECKS:
            yield from check(objects)
        if path == dataset.json_path:
            yield from check_labelled_photos(objects)


def _is_of_coco(coco: CocoJson) -> bool:
    """Return whether a json is one of COCO's own, in which crowds are meant."""
    info = coco.info if isinstance(coco.info, dict) else {}
    return any(str(value).startswith("COCO") for value in info.values())


def check_labelled_photos(objects: CheckedObjects) -> Iterator[Finding]:
    """Check the photos of a split against its objects and the sizes that its labels state."""
    split = objects.split
    stated = {str(image.path): (image.height, image.width) for image in split.images}
    photos = Photos([str(image.path) for image in split.images], objects.loading)
    yield from check_photos(photos, stated)
    indices = {str(image.path): index for index, image in enumerate(split.images)}

    def draw_boxes(path: str) -> np.ndarray:
        labels = np.zeros(stated[path], int)
        rows = np.flatnonzero(objects.is_loaded & (objects.columns.images == indices[path]))
        for row in rows.tolist():
            left, top, right, bottom = objects.corners[row].round().astype(int).clip(0)
            labels[top:bottom, left:right] = row + 1
        return labels

    yield from check_orientation("D315", photos, draw_boxes)
    yield ok(f"{len(split.images)} images; {split.count_empty()} have no object")


def check_overlaps(splits: Mapping[str, ConfiguredSplit]) -> Iterator[Finding]:
    """Compare the photos of each split with those of the training. Other checks report failures."""
    training = splits["train"]
    if training.find_missing():
        return
    trained = training.list_photos()
    for name, split in splits.items():
        if name != "train" and not split.find_missing():
            yield from check_leaks(name, split.list_photos(), trained)
