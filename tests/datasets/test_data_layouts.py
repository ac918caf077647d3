"""Layouts of data that people have: every image and label is used, or counted as left out."""

from collections.abc import Mapping

import pytest
from helpers.layouts import BOX, coco, write_files
from PIL import Image

from xcit_mm.datasets import read_maps, read_objects

NAMES = "names: [thing]\n"
LAYOUTS = {
    "YOLO below a folder that begins with images": (
        "images-2026/train/{0,1}.jpg images-2026/train/{0,1}.txt",
        {"images-2026/data.yaml": f"train: train\n{NAMES}"},
        "2 photos, 2 objects of 1 class",
    ),
    "YOLO with lists": (
        "images/train/{0,1}.jpg labels/train/{0,1}.txt",
        {
            "train.txt": "\ufeff./images/train/0.jpg\n./images/train/1.jpg\n",
            "data.yaml": "train: [train.txt]\nnames: {'0': thing}\n",
        },
        "2 photos, 2 objects of 1 class",
    ),
    "YOLO whose photos lie elsewhere": (
        "../elsewhere/images/train/{0,1}.jpg ../elsewhere/labels/train/{0,1}.txt",
        {"data.yaml": f"train: ../elsewhere/images/train\n{NAMES}"},
        "2 photos, 2 objects of 1 class",
    ),
    "YOLO in folders, with a photo and a label too many": (
        "images/train/{a/1,b/1,top}.jpg labels/train/{a/1,b/1,top,gone}.txt images/extra/1.jpg",
        {"data.yaml": f"train: images/train\n{NAMES}"},
        "3 photos, 3 objects of 1 class; left out: "
        "1 label without a photo (labels/train/gone.txt), 1 photo in no split (images/extra/1.jpg)",
    ),
    "YOLO with val and test": (
        "{train,val,test}/0.jpg {train,val,test}/0.txt",
        {"data.yaml": NAMES},
        "1 photo, 1 object of 1 class; held out 1 photo; "
        "left out: 1 photo of test, because val is held out (test/0.jpg)",
    ),
    "COCO with a missing image and a json of no split": (
        "images/0.jpg",
        {"train.json": coco("0.jpg", "none.jpg"), "all.json": coco("0.jpg")},
        "1 photo, 1 object of 1 class; left out: "
        "1 json of no split (all.json), 1 image of train.json that is missing (none.jpg), "
        "1 object of an image that is missing (id 2 of train.json)",
    ),
}


@pytest.mark.parametrize("patterns, texts, description", LAYOUTS.values(), ids=LAYOUTS)
def test_all_photos_and_boxes_of_a_layout_are_used(
    patterns: str, texts: Mapping[str, str], description: str, folder
):
    write_files(folder / "data", patterns, texts)
    dataset = read_objects(folder / "data")
    assert dataset.describe() == description
    for split in dataset.splits.values():
        assert all(image.path.is_file() for image in split.images)
        assert (split.objects.boxes == BOX).all()


def test_photos_of_a_test_without_maps_are_counted(folder):
    write_files(folder, "images/{train,val,test}/{0,1}.jpg map:masks/{train,val}/{0,1}.png")
    assert read_maps(folder).describe() == (
        "2 photos with maps of 2 classes; held out 2 photos; "
        "left out: 2 photos of test without a label (such as images/test/0.jpg)"
    )


def test_maps_without_photos_for_training_are_one_line(folder):
    write_files(folder, "images/test/0.jpg map:masks/test/0.png")
    with pytest.raises(ValueError, match="no photos for training, but 1 photo of test: docs"):
        read_maps(folder)


def test_maps_of_one_class_are_one_line_with_the_remedy(folder):
    write_files(folder, "images/0.jpg map:masks/0.png")
    Image.new("L", (32, 32), 255).save(folder / "masks/0.png")
    with pytest.raises(ValueError, match=r"has one class, .*: write the labels 0, 1"):
        read_maps(folder)
    (folder / "classes.txt").write_text("")
    with pytest.raises(ValueError, match=r"classes.txt is empty"):
        read_maps(folder)
