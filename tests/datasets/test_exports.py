"""What tools export is read as it is, and a fault in it is one line."""

import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from helpers.doctor_data import edit_json
from helpers.exports import CLASSES, EXPORTS, OBJECTS, copy_shape_maps, write_export
from hypothesis import given, settings
from hypothesis import strategies as st
from yaml import YAMLError

from xcit_mm.datasets import CocoFile, Dataset, read_dataset, write_dataset
from xcit_mm.utils.errors import reason

SHAPES = ("none", "ground", "circle", "square", "triangle", "star")
NAMES = {"", *CLASSES, *SHAPES, "'date',", "'fig'],"}


def read_export(arguments: list[str]) -> Dataset:
    data, *options = arguments
    pairs = zip(options[::2], options[1::2], strict=True)
    files = {name.removeprefix("--"): Path(value) for name, value in pairs}
    return read_dataset(Path(data), is_detector=True, **files)


def write_and_list(dataset: Dataset, folder: Path) -> dict[str, dict[str, list]]:
    """Write a data set, and return class and box of the objects of each photo of each split."""
    write_dataset(dataset, folder)
    splits: dict[str, dict[str, list]] = {}
    for path in folder.glob("*.json"):
        coco = json.loads(path.read_text())
        names = {category["id"]: category["name"] for category in coco["categories"]}
        photos = {image["id"]: Path(image["file_name"]).stem for image in coco["images"]}
        splits[path.stem] = {photo: [] for photo in photos.values()}
        for part in coco["annotations"]:
            box = tuple(round(value) for value in part["bbox"])
            objects = splits[path.stem][photos[part["image_id"]]]
            objects.append((names[part["category_id"]], box))
    return splits


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_is_read_as_it_is(name, tmp_path):
    dataset = read_export(write_export(name, tmp_path / "nuts"))
    assert dataset.classes == CLASSES
    splits = ["train", "val"] if dataset.val else ["train"]
    written = write_and_list(dataset, tmp_path / "written")
    assert written == {split: OBJECTS[split] for split in splits}
    assert "3 images, 1 without objects, 3 objects, 2 classes" in dataset.describe()
    has_masks = "COCO" in name or "Segmentation" in name
    assert {part.has_mask for part in dataset.train.annotations} == {has_masks}
    first = dataset.train.images[0]
    assert os.path.isfile(first.file_name) and (first.width, first.height) == (40, 30)


def test_objects_of_the_validation_that_are_of_no_class_are_counted(tmp_path):
    options = write_export("Roboflow COCO", tmp_path)
    val = tmp_path / "valid/_annotations.coco.json"
    edit_json(val, lambda coco: coco["annotations"][0].update(category_id=0))
    dataset = read_export(options)
    assert dataset.describe().endswith(", left out 1 object of other classes")
    assert len(dataset.val.annotations) == 1
    with pytest.raises(ValueError, match=r"give val too$"):
        read_dataset(tmp_path / "a.json", is_detector=True, val_images=tmp_path)
    edit_json(val, lambda coco: coco["annotations"].pop())
    with pytest.raises(ValueError, match=r"valid/.*json: no image .* object of the classes"):
        read_export(options)
    edit_json(val, lambda coco: coco["categories"].pop())
    with pytest.raises(ValueError, match=r"_annotations\.coco\.json has no category fig"):
        read_export(options)


@pytest.mark.parametrize(
    "file, old, new, message",
    [
        ("data.yaml", "names:", "kpt_shape: [2, 3]\nnames:", "array` - at `$.kpt_shape`"),
        ("data.yaml", "1: fig", "1: date", "two classes are named 'date'"),
        ("data.yaml", "images/val", "images/dev", "images/dev does not exist"),
        ("data.yaml", "0: date", "date", "mapping values"),
        ("labels/train/b.txt", "0 0.5", "2 0.5", "b.txt, line 1: '2 0.5"),
        ("labels/train/b.txt", "\n", " 0.9", "give a class of `names` and a box"),
        ("labels/train/b.txt", "1.000000", "nan", "a polygon in fractions of the image"),
    ],
)
def test_what_a_data_yaml_or_its_labels_must_not_hold(file, old, new, message, tmp_path):
    options = write_export("Ultralytics", tmp_path)
    path = tmp_path / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises((ValueError, OSError, YAMLError)) as error:
        read_export(options)
    assert message in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("labels/val", "labels/valid", "no image for validation has an object"),
        ("images/train/b.jpg", "images/train/b.heic", "has no photos for the labels b"),
    ],
)
def test_labels_that_lack_their_photos_are_named(old, new, message, tmp_path):
    options = write_export("Ultralytics", tmp_path)
    (tmp_path / old).rename(tmp_path / new)
    with pytest.raises(ValueError, match=message):
        read_export(options)


def test_labels_beside_photos_in_a_folder_images_are_read(tmp_path):
    options = write_export("Ultralytics", tmp_path)
    whole = read_export(options).describe()
    shutil.copytree(tmp_path / "labels", tmp_path / "images", dirs_exist_ok=True)
    with pytest.raises(
        ValueError, match=r"labels/.*txt and .*images/.*txt have the labels of one image"
    ):
        read_export(options)
    shutil.rmtree(tmp_path / "labels")
    assert read_export(options).describe() == whole


def test_maps_in_linked_folders_are_counted(shapes, tmp_path):
    root = copy_shape_maps(shapes, tmp_path / "shapes")
    whole = read_dataset(root, is_detector=False).describe()
    for kind in ("images", "masks"):
        (root / kind / "train").rename(tmp_path / kind)
        (root / kind / "train").mkdir()
        (root / kind / "train" / "linked").symlink_to(tmp_path / kind)
    assert read_dataset(root, is_detector=False).describe() == whole


def test_a_folder_without_photos_is_missing_or_empty(tmp_path):
    (tmp_path / "classes.txt").write_text("none\nnut\n")
    with pytest.raises(FileNotFoundError, match=r"images/train is missing or has no images"):
        read_dataset(tmp_path, is_detector=False)


def test_a_format_without_a_reader_names_the_recipe(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no data at .*a\.xml: correct the path"):
        read_export([str(tmp_path / "a.xml")])
    (tmp_path / "a.xml").touch()
    with pytest.raises(ValueError, match=r"not .*a\.xml: .* docs/recipes\.md"):
        read_export([str(tmp_path / "a.xml")])


def test_names_stay_as_they_are_written(tmp_path):
    options = write_export("Ultralytics", tmp_path)
    path = tmp_path / "data.yaml"
    path.write_text(path.read_text().replace("0: date", "0: no").replace("1: fig", "1: 007"))
    assert read_export(options).classes == ("no", "007")


def spoil_json(content: Any, random: Random) -> None:
    """Remove one value of a json, or replace it by one of another type."""
    while isinstance(content, dict | list) and content:
        keys = list(content) if isinstance(content, dict) else range(len(content))
        key = random.choice(keys)
        if not isinstance(content[key], dict | list) or random.random() < 0.1:
            if random.random() < 0.3 and isinstance(content, dict) and key != "annotations":
                del content[key]
            elif isinstance(content[key], str):
                content[key] = random.choice([7, None, [], {}])
            else:
                content[key] = random.choice(["x", None, [[]], {}])
            return
        content = content[key]


def spoil(root: Path, random: Random) -> None:
    """Spoil one value, name or file. Labels may lack, a photo without labels may go or change its
    name, and a class may have any name: these are no faults.
    """
    paths = sorted(path for path in root.rglob("*.*") if path.is_file() and path.stem != "c")
    path = random.choice(paths)
    way = random.choice(["value", "name", "file"])
    if way == "name":
        path.rename(path.with_stem(f"{path.stem}x"))
    elif path.suffix in (".jpg", ".png"):
        path.unlink()
    elif path.suffix == ".json":
        content = json.loads(path.read_text())
        spoil_json(content, random)
        path.write_text(json.dumps(content))
    else:
        words = re.split(r"(\s+)", path.read_text())
        places = [place for place, word in enumerate(words) if word.strip() not in NAMES]
        if places:
            words[random.choice(places)] = random.choice(["x", "7", "-1", "\0", "1 1"])
        path.write_text("".join(words))


def describe(read: Callable[[], Dataset], folder: str) -> Any:
    """Return what a training reads: names, files, objects; or the error."""
    try:
        dataset = read()
    except (ValueError, OSError, YAMLError) as error:
        return error
    if isinstance(dataset.train, CocoFile):
        return dataset.classes, write_and_list(dataset, Path(folder, "written"))
    return dataset


@pytest.mark.parametrize("name", [*EXPORTS, "maps"])
@given(random=st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True, max_examples=12)
def test_one_spoilt_thing_is_one_line_or_changes_nothing(name, shapes, random):
    with TemporaryDirectory() as folder:
        root = Path(folder, "nuts")
        if name == "maps":
            copy_shape_maps(shapes, root)
            read = partial(read_dataset, root, is_detector=False)
        else:
            read = partial(read_export, write_export(name, root))
        whole = describe(read, folder)
        assert not isinstance(whole, Exception)
        spoil(root, random)
        spoilt = describe(read, folder)
        if isinstance(spoilt, Exception):
            assert str(root) in reason(spoilt)
        else:
            assert spoilt == whole
