"""The doctor reports errors of a COCO json, and annotations that mmdet drops without a message."""

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
    assert_named,
    edit_annotations,
    edit_json,
    failures,
    findings,
    oks,
    write_image,
)
from mmdet.datasets import CocoDataset
from mmdet.registry import DATASETS
from paths import CONFIGS, SHARED

from xcit_mm.checks.coco import BY_CLASS, IGNORED, NO_AREA, NO_CATEGORY, NO_IMAGE, OUTSIDE, THIN
from xcit_mm.checks.coco_json import read_coco
from xcit_mm.checks.findings import Finding

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
    annotation.update(bbox=[value / 5 for value in annotation["bbox"]], area=annotation["area"] / 25)


def change_each(change: Callable[[dict], object]) -> Callable[[], None]:
    return lambda: edit_annotations(TRAIN_JSON, change)


def change_json(change: Callable[[dict], object], path: Path = TRAIN_JSON) -> Callable[[], None]:
    return lambda: edit_json(path, change)


def set_all(**values: object) -> Callable[[], None]:
    return change_each(lambda annotation: annotation.update(values))


def test_images_in_the_current_folder_are_found():
    for number in range(3):
        write_image(Path(f"{number}.jpg"))
    options = ["data_root=None", f"ann_file={TRAIN_JSON}", "data_prefix.img=''"]
    options = [f"train_dataloader.dataset.{option}" for option in options]
    assert failures(MASK_RCNN, *options) == []
    Path("1.jpg").unlink()
    assert_named(failures(MASK_RCNN, *options), [("D314", "train", "1 of 3", "1.jpg")])


def test_images_in_remote_storage_are_a_note():
    option = "train_dataloader.dataset.data_prefix.img=s3://bucket/train"
    found = [finding for finding in findings(MASK_RCNN, option, level="note") if finding.code == "D312"]
    assert_named(found, [("D312", "train", "s3://bucket/train")])
    assert failures(MASK_RCNN, option) == []


@pytest.mark.parametrize(
    "values", [[[[1, 2], [3, 4]]], [[[[1, 2]]]], [5, [[6, 7]]], [[1, 2], [3, 4]]], ids=lambda value: str(value)
)
def test_lists_of_any_depth_beside_the_polygons_are_read(values):
    edit_annotations(TRAIN_JSON, lambda annotation: annotation.update(quad=values))
    assert failures(MASK_RCNN) == []
    assert {str(annotation["quad"]) for annotation in read_coco(str(TRAIN_JSON))["annotations"]} <= {
        str(values),
        "[[1, 2]]",
    }


# How to break a correct data set, and the codes and values of all failures that follow.
BREAKS = {
    "no json": (TRAIN_JSON.unlink, [("D311", "train", TRAIN_JSON)]),
    "not json": (
        lambda: TRAIN_JSON.write_text("images"),
        [("D401", "train", TRAIN_JSON, "JSON", "line 1 column 1")],
    ),
    "no categories": (
        change_json(lambda content: content.pop("categories"), VAL_JSON),
        [("D401", "val", VAL_JSON, "categories")],
    ),
    "no annotations": (
        change_json(lambda content: content.update(annotations=[])),
        [("D408", "train", "0 of 0", TRAIN_JSON)],
    ),
    "categories in another order": (
        change_json(swap_categories),
        [("D406", "train", "bicycle as person, person as bicycle")],
    ),
    "category of another name": (
        change_json(lambda content: content["categories"][15].update(name="Cat"), VAL_JSON),
        [("D405", "val", "1 of 80", "cat", "Cat (1 annotations")],
    ),
    "two categories of a name, as Roboflow exports": (
        change_json(lambda content: content["categories"].insert(0, dict(id=0, name="person"))),
        [("D417", "train", "id 0 is person, id 1 is person")],
    ),
    "category ids that count from 0": (
        change_each(lambda annotation: annotation.update(category_id=annotation["category_id"] - 2)),
        [("D408", "train", "79 of 80", TRAIN_JSON, f"1 {NO_CATEGORY}")],
    ),
    "image ids that count from 1": (
        change_each(lambda annotation: annotation.update(image_id=annotation["image_id"] + 1)),
        [("D408", "train", "54 of 80", TRAIN_JSON, f"26 {NO_IMAGE}")],
    ),
    "image id twice": (
        change_json(lambda content: content["images"][1].update(id=0)),
        [("D401", "train", TRAIN_JSON, "1 images")],
    ),
    "annotation id twice": (
        change_json(lambda content: content["annotations"][1].update(id=0)),
        [("D401", "train", TRAIN_JSON, "1 annotations")],
    ),
    "no height": (
        change_json(lambda content: content["images"][1].pop("height")),
        [("D402", "train", "1 images", TRAIN_JSON, "height")],
    ),
    "no segmentation": (
        change_json(lambda content: [content["annotations"][place].pop("segmentation") for place in (0, 5)]),
        [("D402", "train", "2 annotations", TRAIN_JSON, "segmentation")],
    ),
    "a polygon instead of a list of polygons": (
        change_each(lambda annotation: annotation.update(segmentation=annotation["segmentation"][0])),
        [("D404", "train", 80, TRAIN_JSON)],
    ),
    "bbox of three numbers": (set_all(bbox=[1, 2, 3]), [("D403", "train", 80, TRAIN_JSON, "[1, 2, 3]")]),
    "NaN": (set_all(bbox=[1, 2, float("nan"), 3]), [("D403", "train", 80, TRAIN_JSON, "[1, 2, nan, 3]")]),
    "relative boxes": (change_each(to_relative), [("D408", "train", "0 of 80", TRAIN_JSON, f"80 {THIN}")]),
    "boxes as corners": (change_each(to_corners), [("D411", "train", "57 of 80", TRAIN_JSON)]),
    "boxes outside the image": (
        set_all(bbox=[100, 100, 20, 20]),
        [("D408", "train", "0 of 80", TRAIN_JSON, f"80 {OUTSIDE}")],
    ),
    "no area": (set_all(area=0), [("D408", "train", "0 of 80", TRAIN_JSON, f"80 {NO_AREA}")]),
    "relative polygons": (
        set_all(segmentation=[[0.1, 0.1, 0.4, 0.1, 0.4, 0.4]]),
        [("D413", "train", "80 of 80", TRAIN_JSON)],
    ),
    "only crowds": (set_all(iscrowd=1), [("D409", "train", 80, TRAIN_JSON)]),
    "all ignored": (set_all(ignore=1), [("D408", "train", "0 of 80", TRAIN_JSON, f"80 {IGNORED}")]),
    "no image": ((COCO / "train2017/1.jpg").unlink, [("D314", "train", "1 of 3", COCO / "train2017/1.jpg")]),
    "broken image": (
        lambda: (COCO / "val2017/2.jpg").write_bytes(b"no image"),
        [("D315", "val", COCO / "val2017/2.jpg", "AssertionError")],
    ),
    "size of another image": (
        change_json(lambda content: content["images"][0].update(height=64, width=72)),
        [("D315", "train", COCO / "train2017/0.jpg", "(48, 64)", "(64, 72)")],
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_error_of_the_data_is_the_only_failure(name):
    spoil, expected = BREAKS[name]
    spoil()
    assert_named(failures(MASK_RCNN), expected)


UNUSUAL = {
    "boxes by their centre, or of objects that the border cuts off": (to_centre, ("D411", "23 of 80")),
    "boxes of a smaller copy, or of objects in a corner": (to_smaller_copy, ("D412", 80, "19%")),
    "areas larger than boxes": (lambda entry: entry.update(area=4000), ("D414", "80 of 80", "4000 for 20x20")),
    "placeholders instead of areas": (lambda entry: entry.update(area=1), ("D414", "80 of 80", "1 for 20x20")),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_data_that_may_be_right_are_a_note(name):
    change, (code, *values) = UNUSUAL[name]
    edit_annotations(TRAIN_JSON, change)
    edit_annotations(TRAIN_JSON, lambda annotation: annotation.update(segmentation=[annotation["bbox"][:2] * 3]))
    assert_named(noted(), [(code, "train", *values, TRAIN_JSON)])
    assert failures(MASK_RCNN) == []


def test_large_boxes_that_reach_beyond_the_image_are_no_corners():
    edit_annotations(TRAIN_JSON, lambda annotation: annotation.update(bbox=[9, 9, WIDTH - 4, HEIGHT - 4]))
    assert failures(MASK_RCNN) == []


def test_images_that_mmdet_does_not_use_need_no_file():
    edit_json(TRAIN_JSON, lambda content: content["images"].append(dict(content["images"][0], id=9, file_name="9.jpg")))
    assert failures(MASK_RCNN) == []


def test_photo_that_exif_turns_is_a_note():
    edit_json(TRAIN_JSON, lambda content: content["images"][0].update(height=WIDTH, width=HEIGHT))
    found = [finding for finding in findings(MASK_RCNN, level="note") if finding.code == "D318"]
    assert_named(found, [("D318", "train", (HEIGHT, WIDTH), (WIDTH, HEIGHT))])
    assert failures(MASK_RCNN) == []


def test_fix_of_two_categories_of_a_name_works():
    edit_json(TRAIN_JSON, lambda content: content["categories"].insert(0, dict(id=0, name="person")))
    (finding,) = failures(MASK_RCNN)
    assert finding.fix.startswith("remove category 0 from the json")
    edit_json(TRAIN_JSON, lambda content: content["categories"].pop(0))
    assert failures(MASK_RCNN) == []


def noted(*options: str) -> list[Finding]:
    """Return the notes about the json."""
    return [finding for finding in findings(MASK_RCNN, *options, level="note") if finding.code.startswith("D4")]


def test_few_boxes_that_mmdet_drops_are_a_note():
    edit_json(TRAIN_JSON, lambda content: content["annotations"][0].update(bbox=[5, 5, 0.5, 9]))
    (dropped, *_) = noted()
    assert_named([dropped], [("D408", "train", "79 of 80", TRAIN_JSON, f"1 {THIN}")])
    assert "train: 3 of 3 images are used, with 79 objects" in oks(MASK_RCNN)
    assert failures(MASK_RCNN) == []


def test_used_images_objects_and_crowds_are_counted():
    edit_json(TRAIN_JSON, lambda content: content["annotations"][0].update(iscrowd=1))
    edit_json(TRAIN_JSON, lambda content: content["images"].append(dict(content["images"][0], id=9)))
    assert "train: 3 of 4 images are used, with 79 objects and 1 crowds" in oks(MASK_RCNN)
    assert_named(noted(), [("D410", "train", TRAIN_JSON, "person"), ("D415", "train", "1 images", TRAIN_JSON)])


def test_categories_outside_the_classes_are_a_note():
    edit_json(TRAIN_JSON, lambda content: content["categories"].append(dict(id=500, name="unicorn")))
    edit_json(TRAIN_JSON, lambda content: content["annotations"][0].update(category_id=500))
    assert_named(noted()[:1], [("D407", "train", "unicorn (1 annotations")])
    assert failures(MASK_RCNN) == []


def test_annotations_that_a_derived_class_drops_are_a_note(monkeypatch):
    class Halved(CocoDataset):
        def parse_data_info(self, raw_data_info: dict) -> dict:
            info = super().parse_data_info(raw_data_info)
            return dict(info, instances=info["instances"][::2])

    monkeypatch.setitem(DATASETS.module_dict, "Halved", Halved)
    found = noted("train_dataloader.dataset.type=Halved")
    assert_named(found[:1], [("D408", "train", "41 of 80", TRAIN_JSON, f"39 {BY_CLASS}")])
    assert failures(MASK_RCNN, "train_dataloader.dataset.type=Halved") == []


def test_panoptic_data_are_not_checked_as_instances():
    found = findings(MASK_RCNN, "train_dataloader.dataset.type=CocoPanopticDataset", level="note")
    assert_named([finding for finding in found if finding.code == "D313"], [("D313", "train", "CocoPanopticDataset")])


def test_evaluator_of_other_images_is_a_failure():
    edit_json(TRAIN_JSON, lambda content: [image.update(id=image["id"] + 10) for image in content["images"]])
    edit_annotations(TRAIN_JSON, lambda annotation: annotation.update(image_id=annotation["image_id"] + 10))
    found = failures(MASK_RCNN, f"val_evaluator.ann_file={TRAIN_JSON}")
    assert_named(found, [("D416", "val", VAL_JSON, f"val_evaluator.ann_file={TRAIN_JSON}")])


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
@pytest.mark.parametrize(
    "name, change, expected",
    [
        ("coco", None, []),
        ("nuts", None, []),
        (
            "nuts",
            lambda annotation: annotation.update(category_id=annotation["category_id"] - 1),
            [("D408", "train", "79 of 134", f"55 {NO_CATEGORY}")],
        ),
        ("nuts", to_corners, [("D411", "train", "97 of 134")]),
    ],
    ids=["COCO", "nuts", "category ids", "corners"],
)
def test_errors_of_photos_are_the_only_failures(name, change, expected):
    link_photos(name)
    path = Path(f"data/{name}/annotations/instances_train2017.json")
    if change:
        edit_annotations(path, change)
    found = failures(NUTS if name == "nuts" else MASK_RCNN)
    assert_named(found, [(*values, path) for values in expected])
