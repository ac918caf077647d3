"""Labels keep their meaning, whatever their format."""

import pytest
from helpers.layouts import POSE, annotated, coco, write_files

from xcit_mm.datasets import read_objects


def with_rotated_box(content: dict) -> None:
    content["annotations"][1]["attributes"] = dict(rotation=45.0)


def with_all_rotated(content: dict) -> None:
    for annotation in content["annotations"]:
        annotation["attributes"] = dict(rotation=45.0)


def with_one_photo_twice(content: dict) -> None:
    content["images"][1]["file_name"] = "0.jpg"


def with_unknown_category(content: dict) -> None:
    content["annotations"][1]["category_id"] = 9


def with_keypoints(content: dict) -> None:
    content["annotations"][0].update(keypoints=[13, 13, 2], num_keypoints=1)


# Files beside photos, and what is read of them: classes, and the description of the data set.
MEANT = {
    "names that YAML reads as truth values": (
        "0.jpg",
        {"data.yaml": "train: .\nnames: [no, 'on', ~, 1.0]\n", "0.txt": "1 .5 .5 .25 .25"},
        ("no", "on", "~", "1.0"),
        "1 photo, 1 object of 4 classes",
    ),
    "a folder of no split beside train": (
        "{train,val,more}/0.jpg {train,val,more}/0.txt",
        {"data.yaml": "names: [thing]"},
        ("thing",),
        "1 photo, 1 object of 1 class; held out 1 photo; left out: 1 photo in no split "
        "(more/0.jpg), 1 label of photos in no split (more/0.txt)",
    ),
    "keypoints": (
        "0.jpg",
        {"data.yaml": "train: .\nnames: [a]\nkpt_shape: [2, 3]\n", "0.txt": POSE},
        ("a",),
        "1 photo, 1 object of 1 class; left out: 1 set of keypoints (0.txt)",
    ),
    "keypoints of COCO": (
        "0.jpg",
        {"a.json": annotated(with_keypoints, "0.jpg")},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 set of keypoints (a.json)",
    ),
    "a rotated box": (
        "{0,1}.jpg",
        {"a.json": annotated(with_rotated_box, "0.jpg", "1.jpg")},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 photo with rotated boxes (1.jpg), "
        "1 object of photos with rotated boxes (id 2 of a.json)",
    ),
    "one photo under two ids": (
        "0.jpg",
        {"a.json": annotated(with_one_photo_twice, "0.jpg", "1.jpg")},
        ("thing",),
        "1 photo, 2 objects of 1 class; left out: "
        "1 image of a photo that is listed twice: both have its objects (0.jpg)",
    ),
    "photos of no json": (
        "{0,1}.jpg",
        {"a.json": coco("0.jpg")},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 photo that no json lists (1.jpg)",
    ),
    "polygons that begin in a corner": (
        "0.jpg",
        {"data.yaml": "names: [a]", "0.txt": "0 0 0 .5 0 .5 .5 0 .5 0 0\n"},
        ("a",),
        "1 photo, 1 object of 1 class",
    ),
    "a folder for tests that Roboflow names and does not have": (
        "{train,valid}/images/0.jpg {train,valid}/labels/0.txt",
        {
            "data.yaml": "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n"
            "names: [a]\n"
        },
        ("a",),
        "1 photo, 1 object of 1 class; held out 1 photo; "
        "left out: 1 folder of test that is missing (../test/images)",
    ),
    "an object of an unknown category": (
        "{0,1}.jpg",
        {"a.json": annotated(with_unknown_category, "0.jpg", "1.jpg")},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: "
        "1 photo with objects of an unknown category (1.jpg), "
        "1 object of photos with objects of an unknown category (id 2 of a.json)",
    ),
    "a photo of another split has the name of a missing one": (
        "train/0.jpg val/1.jpg",
        {"train.json": coco("0.jpg", "1.jpg")},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 image of train.json that is missing (1.jpg), "
        "1 object of an image that is missing (id 2 of train.json), "
        "1 photo that no json lists (val/1.jpg)",
    ),
    "a split whose photos are all left out": (
        "{0,1}.jpg",
        {"train.json": coco("0.jpg"), "val.json": annotated(with_all_rotated, "1.jpg")},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 photo with rotated boxes (1.jpg), "
        "1 object of photos with rotated boxes (id 1 of val.json), "
        "1 json of val whose photos are all left out (val.json)",
    ),
}


@pytest.mark.parametrize("patterns, texts, classes, description", MEANT.values(), ids=MEANT)
def test_labels_keep_their_meaning(patterns, texts, classes, description, folder):
    write_files(folder, patterns, texts)
    dataset = read_objects(folder)
    assert (dataset.classes, dataset.describe()) == (classes, description)
