"""What a folder holds is what is read and what is left out, however it is written."""

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from helpers.random_data import (
    EXTRA_FILES,
    WRITERS,
    Columns,
    Photo,
    add_extra_files,
    map_sets,
    meaning,
    object_sets,
    replace_by_link,
    write_maps,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from xcit_mm.checks.own_data import check_dataset, raise_failures
from xcit_mm.datasets import Dataset, read_maps, read_objects


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
    """Return the files that are neither in the data set nor left out, except those of systems.
    Photos and labels must not be left out as other files.
    """
    others = [root / name for name in dataset.left_out.reasons.get(("other file", ""), [])]
    lost = {path for path in others if path.name not in EXTRA_FILES}
    explained = {*dataset.left_out.files, *dataset.descriptions} - lost
    for split in dataset.splits.values():
        explained |= split.files
    found = []
    for folder, _, names in os.walk(root, followlinks=True):
        if "__MACOSX" not in folder:
            shown = [name for name in names if not name.startswith((".", "Thumbs"))]
            found += [os.path.join(folder, name) for name in shown]
    return {os.path.realpath(path) for path in found} - {os.path.realpath(p) for p in explained}


def add_files_and_links(root: Path, random: Random) -> None:
    """Write files that no training needs, and perhaps replace a file or a folder by a link."""
    add_extra_files(root, random)
    candidates = sorted(path for path in root.rglob("*"))
    for path in random.sample(candidates, random.choice([0, 0, 1])):
        replace_by_link(path, root.parent / "elsewhere")


def count_photos(dataset: Dataset) -> dict[str, int]:
    """Return the number of photos of each split."""
    return {name: len(split.images) for name, split in dataset.splits.items()}


@pytest.mark.parametrize("data_format", WRITERS)
@given(data=object_sets(), random=st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True, max_examples=12)
def test_objects_are_read_as_they_were_meant(data_format: str, data: dict, random: Random):
    with TemporaryDirectory() as folder:
        root = Path(folder, "data")
        root.mkdir()
        photos = WRITERS[data_format](data, root, random)
        add_files_and_links(root, random)
        dataset = read_objects(root)
        assert read_columns(dataset) == meaning(photos)
        assert "object" not in [noun for noun, _ in dataset.left_out.reasons]
        assert count_photos(dataset) == {split: len(photos) for split, photos in data.items()}
        assert unexplained(dataset, root) == set()


def real_pairs(dataset: Dataset) -> dict[str, str]:
    """Return the map of each photo."""
    return {
        os.path.realpath(image.path): os.path.realpath(path)
        for split in dataset.splits.values()
        for image, path in zip(split.images, split.maps, strict=True)
    }


def meant_pairs(photos: list[Photo]) -> dict[str, str]:
    return {os.path.realpath(photo.path): os.path.realpath(photo.label) for photo in photos}


@given(data=map_sets(), random=st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_maps_are_read_as_they_were_meant(data: dict, random: Random):
    with TemporaryDirectory() as folder:
        root = Path(folder, "data")
        root.mkdir()
        photos, classes = write_maps(data, root, random)
        add_files_and_links(root, random)
        dataset = read_maps(root)
        assert dataset.classes == classes
        assert real_pairs(dataset) == meant_pairs(photos)
        assert count_photos(dataset) == {split: len(photos) for split, photos in data.items()}
        assert unexplained(dataset, root) == set()


def write_label(photo: Photo) -> None:
    """Give a pixel the label 7, which is of no class."""
    labels = np.array(Image.open(photo.label))
    labels[0, 0] = 7
    Image.fromarray(labels).save(photo.label)


def enlarge(photo: Photo) -> None:
    Image.open(photo.label).resize((64, 48), Image.Resampling.NEAREST).save(photo.label)


# Of each fault of a map, what is left out: photos, labels; None if the data set is refused.
FAULTS: dict[str, tuple[Callable[[Photo], object], list[str] | None]] = {
    "a label of no class": (write_label, None),
    "another size": (enlarge, None),
    "another name": (
        lambda photo: photo.label.rename(photo.label.with_stem("other")),
        ["label", "photo"],
    ),
    "no map": (lambda photo: photo.label.unlink(), ["photo"]),
    "no photo": (lambda photo: photo.path.unlink(), ["label"]),
    "a map too many": (
        lambda photo: shutil.copy(photo.label, photo.label.with_stem("more_mask")),
        ["label"],
    ),
    "a photo too many": (
        lambda photo: shutil.copy(photo.path, photo.path.with_stem("more")),
        ["photo"],
    ),
}


@pytest.mark.parametrize("spoil, left_out", FAULTS.values(), ids=FAULTS)
@given(data=map_sets(), random=st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True, max_examples=6)
def test_one_fault_of_maps_is_refused_or_all_that_is_left_out(
    spoil: Callable, left_out: list[str] | None, data: dict, random: Random
):
    with TemporaryDirectory() as folder:
        root = Path(folder, "data")
        root.mkdir()
        photos, classes = write_maps(data, root, random)
        (root / "classes.txt").write_text("\n".join(classes))
        # A test split beside validation is not checked.
        checked = [photo for photo in photos if photo.split != "test" or "val" not in data]
        spoilt = random.choice(checked)
        spoil(spoilt)
        is_last = spoilt.split == "train" and len(data["train"]) == 1
        if left_out is None:
            with pytest.raises(ValueError) as error:
                raise_failures(check_dataset(read_maps(root)))
            assert str(spoilt.label) in str(error.value)
        elif is_last and not (spoilt.path.is_file() and spoilt.label.is_file()):
            with pytest.raises(ValueError, match=r"training|has no labels"):
                read_maps(root)
        else:
            dataset = read_maps(root)
            raise_failures(check_dataset(dataset))
            whole = [photo for photo in photos if photo.path.is_file() and photo.label.is_file()]
            assert real_pairs(dataset) == meant_pairs(whole)
            reasons = dataset.left_out.reasons.items()
            names = [
                noun for (noun, reason), names in reasons for _ in names if "val is" not in reason
            ]
            assert sorted(noun for noun in names if noun != "other file") == left_out
            assert unexplained(dataset, root) == set()
