"""Layouts of data that people have: every image and label is used, or counted as left out."""

from collections.abc import Mapping

import pytest
from helpers.layouts import BOX, coco, write_files
from PIL import Image

from xcit_mm.datasets import read_maps, read_objects

NAMES = "names: [thing]\n"
PAIRS = "images/{0,1}.jpg labels/{0,1}.txt"
PAIRS_OF_TRAIN = "images/train/{0,1}.jpg labels/train/{0,1}.txt"
IN_FOLDERS = "images/train/{a/1,b/1,top}.jpg labels/train/{a/1,b/1,top}.txt"
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
VOC_LISTS = {
    f"{year}/ImageSets/Segmentation/{name}.txt": lines
    for year in ("VOC2007", "VOC2012")
    for name, lines in (("train", "0\n"), ("val", "1\n"), ("trainval", "0\n1\n"))
}
LISTED_MAPS = "JPEGImages/{0,1}.jpg map:SegmentationClass/{0,1}.png"
ONE_OF_TWO = "1 photo with maps of 2 classes; held out 1 photo"
# Photos with maps, lists of photos, and what is read.
WITH_LISTS = {
    "of Pascal VOC in two years": (
        "{VOC2007,VOC2012}/JPEGImages/{0,1}.jpg map:{VOC2007,VOC2012}/SegmentationClass/{0,1}.png",
        VOC_LISTS,
        WITH_VAL,
    ),
    "CVAT's list of all photos": (
        LISTED_MAPS,
        {"ImageSets/Segmentation/default.txt": "0\n1\n"},
        "2 photos with maps of 2 classes; left out: 1 other file "
        "(ImageSets/Segmentation/default.txt)",
    ),
    "with quotes, folders, suffixes and a missing photo": (
        "JPEGImages/a/{0,1,2}.jpg map:SegmentationClass/a/{0,1,2}.png",
        {
            "ImageSets/Segmentation/trainVal.txt": '"a/0.jpg"\na\\1\na/2',
            "ImageSets/Segmentation/VAL.txt": "a/2\n7.jpg",
        },
        "2 photos with maps of 2 classes; held out 1 photo; "
        "left out: 1 photo of a list that is missing (7)",
    ),
    "beside lists of another task": (
        LISTED_MAPS,
        {
            "ImageSets/Main/train.txt": "0\n1\n",
            "ImageSets/Segmentation/train.txt": "0\n",
            "ImageSets/Segmentation/val.txt": "1\n",
        },
        f"{ONE_OF_TWO}; left out: 1 other file (ImageSets/Main/train.txt)",
    ),
    "of another machine, in a folder of small letters": (
        LISTED_MAPS,
        {"imagesets/train.txt": "/data/JPEGImages/0.jpg\n", "imagesets/val.txt": "C:\\x\\1.jpg\n"},
        ONE_OF_TWO,
    ),
    "of photos with maps": (
        "train/images/{0,1}.jpg map:train/labels/{0,1}.png",
        {
            "train_list.txt": "images/0.jpg labels/0.png\n",
            "val_list.txt": "images/1.jpg labels/1.png\n",
            "test.txt": "a note",
        },
        f"{ONE_OF_TWO}; left out: 1 other file (test.txt)",
    ),
    "beside folders of splits": (
        "{train,val}/0.jpg map:{train,val}/0_mask.png",
        {"train.txt": "train/0.jpg"},
        f"{ONE_OF_TWO}; left out: 1 other file (train.txt)",
    ),
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


@pytest.mark.parametrize("patterns, texts, description", WITH_LISTS.values(), ids=WITH_LISTS)
def test_lists_divide_photos_with_maps(patterns, texts, description, folder):
    write_files(folder / "data", patterns, texts)
    assert read_maps(folder / "data").describe() == description


@pytest.mark.parametrize(
    "patterns, texts, counts",
    [
        (
            "JPEGImages/0.jpg map:SegmentationClass/0.png",
            {"ImageSets/Segmentation/train.txt": "0;1"},
            r"1 photo of a list that is missing \(0;1\), 1 photo in no split",
        ),
        ("images/test/0.jpg map:masks/test/0.png", {}, "1 photo of test: docs"),
    ],
    ids=["lists that name no photo", "only photos of a test"],
)
def test_maps_without_photos_for_training_are_one_line(patterns, texts, counts, folder):
    write_files(folder, patterns, texts)
    with pytest.raises(ValueError, match=f"no photos for training, but {counts}"):
        read_maps(folder)


def test_maps_of_one_class_are_one_line_with_the_remedy(folder):
    write_files(folder, "images/0.jpg map:masks/0.png")
    Image.new("L", (32, 32), 255).save(folder / "masks/0.png")
    with pytest.raises(ValueError, match=r"has one class, .*: write the labels 0, 1"):
        read_maps(folder)
    (folder / "classes.txt").write_text("")
    with pytest.raises(ValueError, match=r"classes.txt is empty"):
        read_maps(folder)
