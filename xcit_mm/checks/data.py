"""Checks of the data sets of a config: whether their files exist, and hold what the config says."""

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from torch import nn

from ..datasets.coco import CocoFile, read_coco
from .classes import check_categories
from .findings import Findings, fail, listed, note, ok
from .objects import check_objects
from .photos import check_photos
from .run_config import ConfiguredData, ConfiguredSplit
from .segmentation import check_maps


def check_data(split: ConfiguredSplit, heads: Mapping[str, nn.Module]) -> Findings:
    """Check that the files of a split exist, and their content in a known format."""
    for dataset in split.datasets:
        for finding in _check_dataset(dataset, heads):
            yield finding._replace(text=f"{split.name}: {finding.text}")


def _check_dataset(dataset: ConfiguredData, heads: Mapping[str, nn.Module]) -> Findings:
    paths = [*dataset.paths, *dataset.split.scored_jsons]
    missing = [path for path in paths if "://" not in path and not os.path.exists(path)]
    if missing:
        fix = "put or link the data set there, or correct the path"
        return [fail("D311", f"no data at {missing[0]}", fix)]
    if dataset.data_format == "COCO":
        return _check_jsons(dataset)
    if dataset.data_format == "maps":
        return check_maps(dataset, heads)
    return [note("", f"a {type(dataset.built).__name__} like this is not checked")]


def _check_jsons(dataset: ConfiguredData) -> Findings:
    """Check the json and the photos of a data set, and other jsons that its split is scored by."""
    local = [path for path in dataset.split.scored_jsons if "://" not in path]
    scored_jsons = [os.path.realpath(path) for path in local]
    for path in dict.fromkeys([dataset.json_path, *scored_jsons]):
        coco = dataset.coco if path == dataset.json_path else read_coco(Path(path))
        yield from check_categories(path, coco, dataset)
        if path in scored_jsons:
            yield from _check_ids(path, coco)
        yield from check_objects(path, coco, dataset)
    photos = dataset.list_photos()
    sizes = {path: (path, (image.width, image.height)) for path, image in photos.items()}
    yield from check_photos("D315", dataset.loading, sizes)
    labelled = {annotation.image_id for annotation in dataset.coco.annotations}
    name = os.path.basename(dataset.json_path)
    yield ok(f"{len(photos)} images in {name}; {len(photos) - len(labelled)} have no object")


def _check_ids(path: str, coco: CocoFile) -> Findings:
    counts = Counter(annotation.id for annotation in coco.annotations)
    wrong = [number for number, count in counts.items() if number == 0 or count > 1]
    problem = f"ids in {path} are 0 or occur twice, which pycocotools confuses"
    return listed("FAIL", "D418", wrong, problem, "number annotations 1, 2, 3, ...")


def check_overlap(train: ConfiguredSplit, split: ConfiguredSplit) -> Findings:
    """Compare the photos of a split with those of the training. Other checks report exceptions."""
    with suppress(Exception):
        trained = {path for dataset in train.datasets for path in dataset.list_photos()}
        photos = [path for dataset in split.datasets for path in dataset.list_photos()]
        leaks = [path for path in photos if path in trained]
        problem = f"of {len(photos)} images of the {split.name} split are in the training split"
        fix = f"take other images for {split.name}: the scores are too high"
        yield from listed("note", "D319", leaks, problem, fix)
