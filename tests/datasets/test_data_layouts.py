"""Layouts of data that people have: every image and label is used, or counted as left out."""

import json
from collections.abc import Mapping

import pytest
from helpers.layouts import BOX, RECTANGLE, coco, write_files
from PIL import Image

from xcit_mm.datasets import read_maps, read_objects

NAMES = "names: [thing]\n"
PAIRS = "images/{0,1}.jpg labels/{0,1}.txt"
PAIRS_OF_TRAIN = "images/train/{0,1}.jpg labels/train/{0,1}.txt"
IN_FOLDERS = "images/train/{a/1,b/1,top}.jpg labels/train/{a/1,b/1,top}.txt"
POINT = dict(label="thing", points=[[12, 12]], shape_type="point")
VOC_LISTS = {
    f"{year}/ImageSets/Main/{name}.txt": lines
    for year in ("VOC2007", "VOC2012")
    for name, lines in (("train", "0\n"), ("val", "1\n"), ("trainval", "0\n1\n"))
}
# Layouts of two photos with an object each.
PLAIN = {
    "YOLO below a folder that begins with images": (
        "images-2026/train/{0,1}.jpg images-2026/train/{0,1}.txt",
        {"images-2026/data.yaml": f"train: train\n{NAMES}"},
    ),
    "YOLO with lists": (
        PAIRS_OF_TRAIN,
        {
            "train.txt": "\ufeffdata\\images\\train\\0.jpg\ndata\\images\\train\\1.jpg\n",
            "data.yaml": "path: /home/someone/data\ntrain: [train.txt]\nnames: {'0': thing}\n",
        },
    ),
    "YOLO of another machine": (PAIRS, {"data.yaml": f"train: D:\\data\\images\n{NAMES}"}),
    "YOLO whose photos lie elsewhere": (
        "../elsewhere/images/train/{0,1}.jpg ../elsewhere/labels/train/{0,1}.txt",
        {"data.yaml": f"train: ../elsewhere/images/train\n{NAMES}"},
    ),
}
DESCRIBED = {
    "YOLO in folders, with a photo and a label too many": (
        f"{IN_FOLDERS} labels/train/gone.txt images/extra/1.jpg",
        {"data.yaml": f"train: images/train\n{NAMES}"},
        "3 photos, 3 objects of 1 class; left out: "
        "1 label without a photo (labels/train/gone.txt), 1 photo in no split (images/extra/1.jpg)",
    ),
    "VOC of two years": (
        "{VOC2007,VOC2012}/JPEGImages/{0,1}.jpg map:{VOC2007,VOC2012}/SegmentationClass/{0,1}.png "
        "{VOC2007,VOC2012}/Annotations/{0,1}.xml",
        VOC_LISTS,
        "2 photos, 2 objects of 1 class; held out 2 photos; left out: "
        "4 segmentation maps (such as VOC2007/SegmentationClass/0.png)",
    ),
    "VOC with val and test": (
        "{train,val,test}/0.jpg {train,val,test}/0.xml",
        {},
        "1 photo, 1 object of 1 class; held out 1 photo; "
        "left out: 1 photo of test, because val is held out (test/0.jpg)",
    ),
    "labelme": (
        "train/{0,1}.jpg train/0.json",
        {"train/1.json": json.dumps(dict(shapes=[RECTANGLE, POINT]))},
        "2 photos, 2 objects of 1 class; left out: 1 shape of the type point (train/1.json)",
    ),
    "COCO with a missing image and a json of no split": (
        "images/0.jpg",
        {"train.json": coco("0.jpg", "none.jpg"), "all.json": coco("0.jpg")},
        "1 photo, 1 object of 1 class; left out: "
        "1 json of no split (all.json), 1 image of train.json that is missing (none.jpg), "
        "1 object of an image that is missing (id 2 of train.json)",
    ),
}
OBJECTS = DESCRIBED | {
    name: (*layout, "2 photos, 2 objects of 1 class") for name, layout in PLAIN.items()
}


@pytest.mark.parametrize("patterns, texts, description", OBJECTS.values(), ids=OBJECTS)
def test_all_photos_and_boxes_of_a_layout_are_used(
    patterns: str, texts: Mapping[str, str], description: str, folder
):
    write_files(folder / "data", patterns, texts)
    dataset = read_objects(folder / "data")
    assert dataset.describe() == description
    for split in dataset.splits.values():
        assert all(image.path.is_file() for image in split.images)
        assert (split.objects.boxes == BOX).all()


WITH_VAL = "2 photos with maps of 2 classes; held out 2 photos"
MAPS = {
    "of Cityscapes": "leftImg8bit/{train,val}/a/{0,1}_leftImg8bit.png "
    "map:gtFine/{train,val}/a/{0,1}_gtFine_labelIds.png",
    "of mmseg": "img_dir/{train,val}/{0,1}.png map:ann_dir/{train,val}/{0,1}.png",
    "told apart by channels": "{train,val}/photo/{0,1}.png map:{train,val}/masks/photo/{0,1}.png",
}
COUNTED_MAPS = {
    "images/{train,val,test}/{0,1}.jpg map:masks/{train,val}/{0,1}.png": (
        f"{WITH_VAL}; left out: 2 photos of test without a label (such as images/test/0.jpg)"
    ),
    "VOC2012/JPEGImages/{0,1,2}.jpg map:VOC2012/SegmentationClass/{0,1,2}.png": (
        "1 photo with maps of 2 classes; held out 1 photo; left out: 1 photo in no split "
        "(VOC2012/JPEGImages/2.jpg), "
        "1 label of photos in no split (VOC2012/SegmentationClass/2.png)"
    ),
}


@pytest.mark.parametrize(
    "patterns, description",
    [*((patterns, WITH_VAL) for patterns in MAPS.values()), *COUNTED_MAPS.items()],
    ids=[*MAPS, "test photos without maps", "of Pascal VOC"],
)
def test_all_photos_with_maps_of_a_layout_are_used(patterns: str, description: str, folder):
    write_files(folder / "data", patterns)
    if "VOC2012" in patterns:
        lists = {"train.txt": "0\n", "val.txt": "1\n"}
        write_files(folder / "data/VOC2012/ImageSets/Segmentation", "", lists)
    dataset = read_maps(folder / "data")
    assert dataset.describe() == description
    training = dataset.training
    assert {Image.open(image.path).mode for image in training.images} == {"RGB"}
    assert {Image.open(path).mode for path in training.maps} == {"L"}


def test_maps_of_one_class_are_one_line_with_the_remedy(folder):
    write_files(folder, "images/0.jpg map:masks/0.png")
    Image.new("L", (32, 32), 255).save(folder / "masks/0.png")
    with pytest.raises(ValueError, match=r"has one class, .*: write the labels 0, 1"):
        read_maps(folder)
    (folder / "classes.txt").write_text("")
    with pytest.raises(ValueError, match=r"classes.txt is empty"):
        read_maps(folder)
