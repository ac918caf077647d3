"""What a folder holds is what is read and what is left out, however it is written."""

import os
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from helpers.random_data import (
    WRITERS,
    Columns,
    add_extra_files,
    data_sets,
    meaning,
    replace_by_link,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from xcit_mm.datasets import Dataset, read_objects


def read_columns(dataset: Dataset) -> Columns:
    """Return what was read."""
    columns: Columns = {}
    for split in dataset.splits.values():
        of_images = [Counter() for _ in split.images]
        objects = split.objects
        for index, label, box, area in zip(
            objects.images, objects.labels, objects.boxes, objects.areas, strict=True
        ):
            values = [round(float(value), 1) for value in (*box, area)]
            of_images[index][(dataset.classes[label], *values)] += 1
        paths = [os.path.realpath(image.path) for image in split.images]
        columns.update(zip(paths, of_images, strict=True))
    return columns


def unexplained(dataset: Dataset, root: Path) -> set[str]:
    """Return the files that are neither in the data set nor left out, except those of systems."""
    explained = {*dataset.left_out.files, *dataset.descriptions}
    for split in dataset.splits.values():
        explained |= split.files
    found = []
    for folder, _, names in os.walk(root, followlinks=True):
        if "__MACOSX" not in folder:
            shown = [name for name in names if not name.startswith((".", "Thumbs"))]
            found += [os.path.join(folder, name) for name in shown]
    return {os.path.realpath(path) for path in found} - {os.path.realpath(p) for p in explained}


@pytest.mark.parametrize("data_format", WRITERS)
@given(data=data_sets(), random=st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True, max_examples=12)
def test_objects_are_read_as_they_were_meant(data_format: str, data: dict, random: Random):
    with TemporaryDirectory() as folder:
        root = Path(folder, "data")
        root.mkdir()
        photos = WRITERS[data_format](data, root, random)
        add_extra_files(root, random)
        candidates = sorted(path for path in root.rglob("*"))
        for path in random.sample(candidates, random.choice([0, 0, 1])):
            replace_by_link(path, Path(folder, "elsewhere"))
        dataset = read_objects(root)
        assert read_columns(dataset) == meaning(photos)
        assert not dataset.left_out.count("object")
        counts = {split: len(photos) for split, photos in data.items()}
        assert {name: len(split.images) for name, split in dataset.splits.items()} == counts
        assert unexplained(dataset, root) == set()
