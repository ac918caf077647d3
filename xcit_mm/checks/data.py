"""Checks of the data sets of a config: whether their files exist, and hold what the config says."""

import os
from contextlib import suppress

from .coco_json import check_coco
from .findings import Findings, fail, listed, note
from .run_config import ConfiguredData, ConfiguredSplit
from .segmentation import check_maps


def check_data(split: ConfiguredSplit) -> Findings:
    """Check that the files of a split exist, and check their content if the format is known."""
    for dataset in split.datasets:
        for finding in _check_dataset(dataset):
            yield finding._replace(text=f"{split.name}: {finding.text}")


def _check_dataset(dataset: ConfiguredData) -> Findings:
    unchecked = note("", f"the content of this {type(dataset.built).__name__} is not checked")
    paths = [*dataset.paths, *dataset.split.scored_jsons]
    if any("://" in path for path in paths):  # on a server
        return [unchecked]
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        fix = "put or link the data set there, or correct the path"
        return [fail("D311", f"no data at {missing[0]}", fix)]
    if dataset.data_format == "COCO":
        return check_coco(dataset)
    if dataset.data_format == "maps":
        return check_maps(dataset)
    return [unchecked]


def check_overlap(train: ConfiguredSplit, split: ConfiguredSplit) -> Findings:
    """Compare the photos of a split with the training photos. Other checks report exceptions."""
    with suppress(Exception):
        trained = {path for dataset in train.datasets for path in dataset.list_photos()}
        photos = [path for dataset in split.datasets for path in dataset.list_photos()]
        leaks = [path for path in photos if path in trained]
        problem = f"of {len(photos)} images of the {split.name} split are in the training split"
        fix = f"take other images for {split.name}: the scores are too high"
        yield from listed("note", "D319", leaks, problem, fix)
