"""What mmdet makes of a COCO json without a word, the doctor names."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from doctor_data import (
    COCO,
    HEIGHT,
    MASK_RCNN,
    TRAIN_JSON,
    VAL_JSON,
    WIDTH,
    edit_annotations,
    edit_json,
    failures,
    lines,
    write_image,
)
from mmdet.datasets import CocoDataset
from mmdet.registry import DATASETS
from paths import CONFIGS, SHARED

from xcit_mm.checks.coco_json import read_coco

pytestmark = pytest.mark.usefixtures("doctors_place")

NUTS = CONFIGS / "demo" / "mask-rcnn_xcit-n12-p16_nuts.py"


def swap_categories(content: dict) -> None:
    categories = content["categories"]
    categories[0], categories[1] = categories[1], categories[0]


def to_corners(annotation: dict) -> None:
    x, y, width, height = annotation["bbox"]
    annotation["bbox"] = [x, y, x + width, y + height]


def to_centre(annotation: dict) -> None:
    x, y, width, height = annotation["bbox"]
    annotation["bbox"] = [x + width / 2, y + height / 2, width, height]


def to_relative(annotation: dict) -> None:
    x, y, width, height = annotation["bbox"]
    annotation["bbox"] = [x / WIDTH, y / HEIGHT, width / WIDTH, height / HEIGHT]


def to_smaller_copy(annotation: dict) -> None:
    annotation["bbox"] = [value / 5 for value in annotation["bbox"]]


def set_all(**values: object) -> Callable[[], None]:
    return lambda: edit_annotations(TRAIN_JSON, lambda one: one.update(values))


def test_images_in_the_current_folder_are_there():
    for number in range(3):
        write_image(Path(f"{number}.jpg"))
    options = ["data_root=None", f"ann_file={TRAIN_JSON}", "data_prefix.img=''"]
    options = [f"train_dataloader.dataset.{option}" for option in options]
    assert failures(MASK_RCNN, *options) == []
    Path("1.jpg").unlink()
    assert failures(MASK_RCNN, *options) == ["train: 1 of 3 images are missing: 1.jpg"]


def test_images_of_remote_storage_are_not_missed():
    option = "train_dataloader.dataset.data_prefix.img=s3://bucket/train"
    found = lines(MASK_RCNN, option)
    assert "note  train: s3://bucket/train is remote storage, not looked at" in found
    assert failures(MASK_RCNN, option) == []


@pytest.mark.parametrize(
    "values", [[[[1, 2], [3, 4]]], [[[[1, 2]]]], [5, [[6, 7]]], [[1, 2], [3, 4]]], ids=lambda value: str(value)
)
def test_lists_of_any_depth_beside_the_polygons(values):
    edit_annotations(TRAIN_JSON, lambda one: one.update(quad=values))
    assert failures(MASK_RCNN) == []
    assert {str(one["quad"]) for one in read_coco(str(TRAIN_JSON))["annotations"]} <= {str(values), "[[1, 2]]"}


# How a right data set is broken, and all that the doctor says of it.
BREAKS = {
    "no json": (TRAIN_JSON.unlink, [f"the train data are not at {TRAIN_JSON}"]),
    "not json": (
        lambda: TRAIN_JSON.write_text("images"),
        [f"ValueError: {TRAIN_JSON} is not JSON: Expecting value: line 1 column 1 (char 0)"],
    ),
    "no categories": (
        lambda: edit_json(VAL_JSON, lambda content: content.pop("categories")),
        [f"ValueError: {VAL_JSON} is not in COCO's format: KeyError: 'categories'"],
    ),
    "no annotations": (
        lambda: edit_json(TRAIN_JSON, lambda content: content.update(annotations=[])),
        [f"train: mmdet loads 0 of 0 annotations of {TRAIN_JSON}"],
    ),
    "categories in another order": (
        lambda: edit_json(TRAIN_JSON, swap_categories),
        [
            "train: mmdet numbers categories by the json, whose order is not that of the classes: "
            "it would show bicycle as person, person as bicycle"
        ],
    ),
    "category of another name": (
        lambda: edit_json(VAL_JSON, lambda content: content["categories"][15].update(name="Cat")),
        ["val: 1 of 80 classes are no category of the json: cat; left out are its Cat (1 annotations)"],
    ),
    "category ids that count from 0": (
        lambda: edit_annotations(TRAIN_JSON, lambda one: one.update(category_id=one["category_id"] - 2)),
        [f"train: mmdet loads 79 of 80 annotations of {TRAIN_JSON}: 1 with a category_id that no category has"],
    ),
    "image ids that count from 1": (
        lambda: edit_annotations(TRAIN_JSON, lambda one: one.update(image_id=one["image_id"] + 1)),
        [f"train: mmdet loads 54 of 80 annotations of {TRAIN_JSON}: 26 with an image_id that no image has"],
    ),
    "image id twice": (
        lambda: edit_json(TRAIN_JSON, lambda content: content["images"][1].update(id=0)),
        [f"ValueError: {TRAIN_JSON} has 1 images with the id of another one"],
    ),
    "annotation id twice": (
        lambda: edit_json(TRAIN_JSON, lambda content: content["annotations"][1].update(id=0)),
        [f"ValueError: {TRAIN_JSON} has 1 annotations with the id of another one"],
    ),
    "no height": (
        lambda: edit_json(TRAIN_JSON, lambda content: content["images"][1].pop("height")),
        [f"train: 1 images of {TRAIN_JSON} have no height"],
    ),
    "no segmentation": (
        lambda: edit_json(
            TRAIN_JSON, lambda content: [content["annotations"][place].pop("segmentation") for place in (0, 5)]
        ),
        [f"train: 2 annotations of {TRAIN_JSON} have no segmentation"],
    ),
    "a polygon instead of a list of them": (
        lambda: edit_annotations(TRAIN_JSON, lambda one: one.update(segmentation=one["segmentation"][0])),
        [f"train: 80 segmentations of {TRAIN_JSON} are no lists of polygons"],
    ),
    "bbox of three numbers": (
        set_all(bbox=[1, 2, 3]),
        [f"train: 80 annotations of {TRAIN_JSON} have a bbox such as [1, 2, 3]"],
    ),
    "NaN": (
        set_all(bbox=[1, 2, float("nan"), 3]),
        [f"train: 80 annotations of {TRAIN_JSON} have a bbox such as [1, 2, nan, 3]"],
    ),
    "relative boxes": (
        lambda: edit_annotations(TRAIN_JSON, to_relative),
        [f"train: mmdet loads 0 of 80 annotations of {TRAIN_JSON}: 80 with boxes less than a pixel wide or high"],
    ),
    "boxes as corners": (
        lambda: edit_annotations(TRAIN_JSON, to_corners),
        [f"train: 57 of 80 boxes reach beyond their image in {TRAIN_JSON}"],
    ),
    "boxes by their centre": (
        lambda: edit_annotations(TRAIN_JSON, to_centre),
        [f"train: 23 of 80 boxes reach beyond their image in {TRAIN_JSON}"],
    ),
    "boxes of a smaller copy": (
        lambda: edit_annotations(TRAIN_JSON, to_smaller_copy),
        [f"train: all 80 boxes lie in the upper left 19% of width and height in {TRAIN_JSON}"],
    ),
    "boxes outside the image": (
        set_all(bbox=[100, 100, 20, 20]),
        [f"train: mmdet loads 0 of 80 annotations of {TRAIN_JSON}: 80 outside their image"],
    ),
    "no area": (
        set_all(area=0),
        [f"train: mmdet loads 0 of 80 annotations of {TRAIN_JSON}: 80 without area"],
    ),
    "areas larger than boxes": (
        set_all(area=4000),
        [f"train: 80 of 80 areas, such as 4000 for 20x20, do not fit their box in {TRAIN_JSON}"],
    ),
    "relative areas": (
        set_all(area=0.13),
        [f"train: 80 of 80 areas, such as 0.13 for 20x20, do not fit their box in {TRAIN_JSON}"],
    ),
    "relative polygons": (
        set_all(segmentation=[[0.1, 0.1, 0.4, 0.1, 0.4, 0.4]]),
        [f"train: 80 of 80 polygons do not begin in their box in {TRAIN_JSON}"],
    ),
    "only crowds": (
        set_all(iscrowd=1),
        [f"train: all 80 annotations of {TRAIN_JSON} are iscrowd, from which nothing is learnt"],
    ),
    "all ignored": (
        set_all(ignore=1),
        [f"train: mmdet loads 0 of 80 annotations of {TRAIN_JSON}: 80 marked ignore"],
    ),
    "no image": ((COCO / "train2017/1.jpg").unlink, [f"train: 1 of 3 images are missing: {COCO}/train2017/1.jpg"]),
    "broken image": (
        lambda: (COCO / "val2017/2.jpg").write_bytes(b"no image"),
        [f"val: {COCO}/val2017/2.jpg cannot be read (AssertionError: failed to load image: {COCO}/val2017/2.jpg)"],
    ),
    "size of another image": (
        lambda: edit_json(TRAIN_JSON, lambda content: content["images"][0].update(height=64, width=72)),
        [f"train: {COCO}/train2017/0.jpg is of (48, 64), in the json of (64, 72) pixels"],
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_wrong_is_all_that_is_named(name):
    spoil, expected = BREAKS[name]
    spoil()
    assert failures(MASK_RCNN) == expected


def test_a_few_boxes_that_mmdet_drops_are_noted():
    edit_json(TRAIN_JSON, lambda content: content["annotations"][0].update(bbox=[5, 5, 0.5, 9]))
    found = lines(MASK_RCNN)
    message = f"note  train: mmdet loads 79 of 80 annotations of {TRAIN_JSON}: 1 with boxes less than a pixel wide or"
    assert sum(line.startswith(message) for line in found) == 1
    assert "ok    train: 3 of 3 images are used, with 79 objects" in found
    assert failures(MASK_RCNN) == []


def test_what_mmdet_uses_is_counted():
    edit_json(TRAIN_JSON, lambda content: content["annotations"][0].update(iscrowd=1))
    edit_json(TRAIN_JSON, lambda content: content["images"].append(dict(content["images"][0], id=9)))
    found = lines(MASK_RCNN)
    assert "ok    train: 3 of 4 images are used, with 79 objects and 1 crowds" in found
    assert any(line.startswith(f"note  train: {TRAIN_JSON} has no objects of person -- fix") for line in found)
    assert any(f"train: 1 images of {TRAIN_JSON} have the file of another one" in line for line in found)


def test_categories_left_out_are_noted():
    edit_json(TRAIN_JSON, lambda content: content["categories"].append(dict(id=500, name="unicorn")))
    edit_json(TRAIN_JSON, lambda content: content["annotations"][0].update(category_id=500))
    message = "note  train: categories that are no classes are left out: unicorn (1 annotations)"
    assert any(line.startswith(message) for line in lines(MASK_RCNN))
    assert failures(MASK_RCNN) == []


def test_rules_of_a_class_of_one_s_own_are_its_own(monkeypatch):
    class Halved(CocoDataset):
        def parse_data_info(self, raw_data_info: dict) -> dict:
            info = super().parse_data_info(raw_data_info)
            return dict(info, instances=info["instances"][::2])

    monkeypatch.setitem(DATASETS.module_dict, "Halved", Halved)
    found = lines(MASK_RCNN, "train_dataloader.dataset.type=Halved")
    message = f"note  train: mmdet loads 41 of 80 annotations of {TRAIN_JSON}: 39 left out by the data set's own class"
    assert any(line.startswith(message) for line in found)
    assert failures(MASK_RCNN, "train_dataloader.dataset.type=Halved") == []


def test_panoptic_data_are_not_taken_for_instances():
    found = lines(MASK_RCNN, "train_dataloader.dataset.type=CocoPanopticDataset")
    assert "note  train: data sets of type CocoPanopticDataset are not looked at" in found


def test_evaluator_of_other_images_is_named():
    edit_json(TRAIN_JSON, lambda content: [image.update(id=image["id"] + 10) for image in content["images"]])
    edit_annotations(TRAIN_JSON, lambda one: one.update(image_id=one["image_id"] + 10))
    found = failures(MASK_RCNN, f"val_evaluator.ann_file={TRAIN_JSON}")
    assert found == [f"val: images of {VAL_JSON} are not in the val_evaluator's {TRAIN_JSON}"]


def link_photos(name: str) -> None:
    """Put the photos of a shared data set at data/NAME, with a json that can be changed."""
    root = Path("data") / name
    shutil.rmtree(root, ignore_errors=True)
    (root / "annotations").mkdir(parents=True)
    for split in ("train2017", "val2017"):
        source = SHARED / "data" / ("coco8" if name == "coco" else name)
        (root / split).symlink_to(source / split)
        file = Path("annotations") / f"instances_{split}.json"
        (root / file).write_text((source / file).read_text())


needs_photos = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the photos beside a developer's checkout")


@needs_photos
def test_coco_is_not_complained_of():
    link_photos("coco")
    assert failures(MASK_RCNN) == []


@needs_photos
@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda one: None, []),
        (
            lambda one: one.update(category_id=one["category_id"] - 1),
            ["train: mmdet loads 79 of 134 annotations of %s: 55 with a category_id that no category has"],
        ),
        (to_corners, ["train: 97 of 134 boxes reach beyond their image in %s"]),
    ],
    ids=["right", "category ids", "corners"],
)
def test_photos(change, expected):
    link_photos("nuts")
    path = Path("data/nuts/annotations/instances_train2017.json")
    edit_annotations(path, change)
    assert failures(NUTS) == [line % path for line in expected]
