"""Labels keep their meaning, whatever their format."""

from collections.abc import Callable

import pytest
from helpers.layouts import POSE, YOLO, annotated, coco, with_name, write_files

from xcit_mm.datasets import read_objects


def with_ids(*ids: str) -> Callable[[dict], None]:
    """Return a change of a COCO json that gives its images, each with an object, other ids."""

    def change(content: dict) -> None:
        for name, image, annotation in zip(
            ids, content["images"], content["annotations"], strict=True
        ):
            image["id"] = name
            annotation["image_id"] = name

    return change


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
    "lists beside names": (
        "obj/{0,1}.jpg obj/{0,1}.txt",
        {
            "data.yaml": "names: [thing]",
            "train.txt": "d/obj/0.jpg\n",
            "test.txt": "d/obj/1.jpg\n",
        },
        ("thing",),
        "1 photo, 1 object of 1 class; held out 1 photo",
    ),
    "names of LabelImg beside data.yaml": (
        "0.jpg 0.txt",
        {"data.yaml": "names: [thing]", "classes.txt": "dog"},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 other file (classes.txt)",
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
    "an xml of GDAL beside YOLO": (
        "0.jpg",
        {"data.yaml": "names: [thing]", "0.txt": YOLO, "0.jpg.aux.xml": "<PAMDataset/>"},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 other file (0.jpg.aux.xml)",
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
    "null as name": (
        "0.jpg",
        {"a.json": annotated(with_name(None), "0.jpg")},
        ("null",),
        "1 photo, 1 object of 1 class",
    ),
    "photos of no json": (
        "{0,1}.jpg",
        {"a.json": coco("0.jpg")},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 photo that no json lists (1.jpg)",
    ),
    "a description in capital letters, with null for no split": (
        "0.jpg 0.txt",
        {"DATA.YAML": "train: .\nval: null\ntest: ~\nnames: [a]\n", "x.yaml": "hostnames: [b]"},
        ("a",),
        "1 photo, 1 object of 1 class; left out: 1 other file (x.yaml)",
    ),
    "one description by two names": (
        "0.jpg 0.txt",
        {"store/0.yaml": "train: .\nnames: [a]\n", "data.yaml": "-> store/0.yaml"},
        ("a",),
        "1 photo, 1 object of 1 class",
    ),
    "a polygon in the middle, whose first points may be a box": (
        "0.jpg",
        {"data.yaml": "names: [a]", "0.txt": "0 .4 .4 .6 .4 .6 .6 .4 .6\n"},
        ("a",),
        "1 photo, 1 object of 1 class",
    ),
    "polygons that begin in a corner": (
        "0.jpg",
        {"data.yaml": "names: [a]", "0.txt": "0 0 0 .5 0 .5 .5 0 .5 0 0\n"},
        ("a",),
        "1 photo, 1 object of 1 class",
    ),
    "a list beside folders of splits": (
        "{train,val}/0.jpg {train,val}/0.txt",
        {"data.yaml": "names: [thing]", "train.txt": "train/0.jpg"},
        ("thing",),
        "1 photo, 1 object of 1 class; held out 1 photo; left out: 1 other file (train.txt)",
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
    "capital letters of CVAT": (
        "images/{0,1}.jpg labels/{0,1}.txt",
        {
            "data.yaml": "Train: a.txt\nValidation: b.txt\nNames: [a]\n",
            "a.txt": "images/0.jpg",
            "b.txt": "images/1.jpg",
        },
        ("a",),
        "1 photo, 1 object of 1 class; held out 1 photo",
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
    "a photo of another folder and machine has the name of a missing one": (
        "cam1/0.jpg",
        {"a.json": coco("D:\\data\\cam1\\0.jpg", "D:\\data\\cam2\\0.jpg")},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 image of a.json that is missing "
        "(D:\\data\\cam2\\0.jpg), 1 object of an image that is missing (id 2 of a.json)",
    ),
    "a preview in the folder of the data has the name of a photo": (
        "0.jpg train/{0,1}.jpg",
        {"annotations/instances_train.json": coco("0.jpg", "1.jpg")},
        ("thing",),
        "2 photos, 2 objects of 1 class; left out: 1 photo that no json lists (0.jpg)",
    ),
    "text ids that Python would read as one number": (
        "{0,1}.jpg",
        {"a.json": annotated(with_ids("1_11", "11_1"), "0.jpg", "1.jpg")},
        ("thing",),
        "2 photos, 2 objects of 1 class",
    ),
    "instances of one split beside another json": (
        "{0,1,2}.jpg",
        {
            "person_keypoints_train.json": coco("0.jpg"),
            "instances_val.json": coco("1.jpg"),
            "captions_val.json": coco("1.jpg"),
            "instances_default.json": coco("2.jpg"),
        },
        ("thing",),
        "1 photo, 1 object of 1 class; held out 1 photo; left out: "
        "1 json of no split (instances_default.json), 1 photo that no json lists (2.jpg), "
        "1 other file (captions_val.json)",
    ),
    "results of Ultralytics": (
        "images/0.jpg labels/0.txt runs/{detect,train}/exp/{0.jpg,labels/0.txt}",
        {"data.yaml": "names: [a]", "runs/train/exp/opt.yaml": "epochs: 3"},
        ("a",),
        "1 photo, 1 object of 1 class; left out: 2 folders of results (such as runs/detect/exp)",
    ),
    "lists of label files": (
        "images/{0,1}.jpg labels/{0,1}.txt",
        {
            "data.yaml": "names: [thing]",
            "train.txt": "labels/0.txt",
            "val.txt": "labels/1.txt",
        },
        ("thing",),
        "1 photo, 1 object of 1 class; held out 1 photo",
    ),
    "a split whose photos are all left out": (
        "{0,1}.jpg",
        {"train.json": coco("0.jpg"), "val.json": annotated(with_all_rotated, "1.jpg")},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 photo with rotated boxes (1.jpg), "
        "1 object of photos with rotated boxes (id 1 of val.json), "
        "1 json of val whose photos are all left out (val.json)",
    ),
    "photos of one name, each beside its label": (
        "{photos,images}/0.jpg {photos,images}/0.txt",
        {"data.yaml": "names: [thing]"},
        ("thing",),
        "2 photos, 2 objects of 1 class",
    ),
    "a photo whose name ends as that of a label": (
        "man.jpg man_mask.jpg man_mask.txt",
        {"data.yaml": "names: [a]"},
        ("a",),
        "2 photos, 1 without objects, 1 object of 1 class",
    ),
    "a stray description": (
        "0.jpg",
        {"a.json": coco("0.jpg"), "data.yaml": "train: .\nnames: [car]\n"},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 file of YOLO without objects (data.yaml)",
    ),
}


@pytest.mark.parametrize("patterns, texts, classes, description", MEANT.values(), ids=MEANT)
def test_labels_keep_their_meaning(patterns, texts, classes, description, folder):
    links = {name: text for name, text in texts.items() if text.startswith("-> ")}
    write_files(folder / "d", patterns, {name: texts[name] for name in texts if name not in links})
    for name, target in links.items():
        (folder / "d" / name).symlink_to(target.removeprefix("-> "))
    dataset = read_objects(folder / "d")
    assert (dataset.classes, dataset.describe()) == (classes, description)
