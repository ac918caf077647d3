"""The doctor reports errors of a COCO json, and annotations that mmdet drops without a message."""

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.doctor_data import (
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
)
from mmdet.datasets import CocoDataset

from xcit_mm.checks.findings import Finding

pytestmark = pytest.mark.usefixtures("doctors_place")

PHOTOS = COCO / "train2017"


def swap_categories(content: dict) -> None:
    categories = content["categories"]
    categories[0], categories[1] = categories[1], categories[0]


def move_boxes(change: Callable[..., list[float]]) -> Callable[[], None]:
    """Change the boxes of the training, from x, y, width and height, and draw their masks."""

    def move(annotation: dict) -> None:
        x, y, width, height = change(*annotation["bbox"])
        polygon = [x, y, x + width, y, x + width, y + height, x, y + height]
        annotation.update(bbox=[x, y, width, height], segmentation=[polygon])

    return lambda: edit_annotations(TRAIN_JSON, move)


def change_json(change: Callable[[dict], object], path: Path = TRAIN_JSON) -> Callable[[], None]:
    return lambda: edit_json(path, change)


def set_all(**values: object) -> Callable[[], None]:
    return lambda: edit_annotations(TRAIN_JSON, lambda annotation: annotation.update(values))


def change_second(part: str, path: Path = TRAIN_JSON, **values: object) -> Callable[[], None]:
    """Change the second image, annotation or category."""
    return lambda: edit_json(path, lambda content: content[part][1].update(values))


# How to break a correct data set, and the code and values of the only failure that follows, in the
# training split.
BREAKS = {
    "not json": (lambda: TRAIN_JSON.write_text("images"), "D401", "line 1 column 1"),
    "no height": (
        change_json(lambda content: content["images"][1].pop("height")),
        *("D401", "height"),
    ),
    "annotation id twice": (change_second("annotations", id=1), "D418", "1 annotations"),
    "annotation id 0": (change_second("annotations", id=0), "D418", "0"),
    "annotation id as text": (change_second("annotations", id="ann-2"), "D418", "'ann-2'"),
    "category of another name": (
        change_second("categories", name="Bike"),
        *("D405", "1 of 80", "bicycle", "Bike"),
    ),
    "categories in another order": (
        change_json(swap_categories),
        *("D406", "bicycle as person, person as bicycle"),
    ),
    "two categories of a name, as Roboflow exports": (
        change_json(lambda content: content["categories"].insert(0, dict(id=0, name="person"))),
        *("D406", "2 categories", "'person'", "0, 1"),
    ),
    "no annotations": (change_json(lambda content: content.update(annotations=[])), "D408"),
    "unknown images": (
        change_second("annotations", image_id=3),
        *("D408", "1 of 80", "unknown image_id", "id 2 (image 3)"),
    ),
    "relative boxes": (
        move_boxes(lambda x, y, w, h: [x / WIDTH, y / HEIGHT, w / WIDTH, h / HEIGHT]),
        *("D408", "80 of 80", "no area"),
    ),
    "boxes as corners": (
        move_boxes(lambda x, y, w, h: [x, y, x + w, y + h]),
        *("D411", "57 of 80"),
    ),
    "masks elsewhere than boxes": (
        set_all(segmentation=[[0, 0, 5, 0, 5, 5]]),
        *("D412", "80 of 80", "id 1 (image 0.jpg)"),
    ),
    "no image": ((PHOTOS / "1.jpg").unlink, "D314", "1 of 3", PHOTOS / "1.jpg"),
    "size of another image": (
        change_second("images", height=64, width=72),
        *("D315", PHOTOS / "1.jpg", f"{WIDTH} x {HEIGHT}", "72 x 64"),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_error_of_the_data_is_the_only_failure(name):
    break_data, code, *values = BREAKS[name]
    break_data()
    assert_named(failures(MASK_RCNN), [(code, "train", *values)])


@pytest.mark.parametrize("value", ["2", 2.0, 2**53, -2])
def test_ids_that_score_correctly_pass(value):
    change_second("annotations", id=value)()
    assert failures(MASK_RCNN) == []


def test_fix_of_other_categories_in_the_validation_works():
    edit_json(VAL_JSON, lambda content: content["categories"].reverse())
    (failure,) = failures(MASK_RCNN)
    classes = CocoDataset.METAINFO["classes"]
    assert str(VAL_JSON) in failure.fix and str(classes) in failure.fix
    listed = [dict(id=2 * number + 1, name=name) for number, name in enumerate(classes)]
    edit_json(VAL_JSON, lambda content: content.update(categories=listed))
    assert failures(MASK_RCNN) == []


def test_categories_of_the_training_may_name_the_classes():
    edit_json(TRAIN_JSON, swap_categories)
    (failure,) = failures(MASK_RCNN)
    assert failure.fix.startswith("metainfo=dict(classes=('bicycle', 'person', 'car',")


def test_ids_of_the_json_that_scores_are_checked_too():
    copy = Path("scored.json")
    copy.write_text(VAL_JSON.read_text())
    change_second("annotations", copy, id=0)()
    assert_named(failures(MASK_RCNN, f"val_evaluator.ann_file={copy}"), [("D418", "val", copy)])


def noted(code: str) -> list[Finding]:
    """Return the notes of a code. Nothing else is wrong."""
    assert failures(MASK_RCNN) == []
    return [finding for finding in findings(MASK_RCNN, level="note") if finding.code == code]


def add_unicorn(content: dict) -> None:
    content["categories"].append(dict(id=500, name="unicorn"))
    content["annotations"][0]["category_id"] = 500


NOTES = {
    "boxes that the border may cut off": (
        move_boxes(lambda x, y, w, h: [x + w / 2, y + h / 2, w, h]),
        *("D411", "23 of 80", TRAIN_JSON),
    ),
    "width and height exchanged": (
        change_second("images", height=WIDTH, width=HEIGHT),
        *("D315", f"{WIDTH} x {HEIGHT}", f"{HEIGHT} x {WIDTH}"),
    ),
    "a box that mmdet drops": (
        change_second("annotations", bbox=[5, 5, 0.5, 9]),
        *("D408", "1 of 80", TRAIN_JSON),
    ),
    "a category outside the classes": (change_json(add_unicorn), "D405", "unicorn"),
}


@pytest.mark.parametrize("name", NOTES)
def test_doubtful_data_are_a_note(name):
    break_data, code, *values = NOTES[name]
    break_data()
    assert_named(noted(code), [(code, "train", *values)])


@pytest.mark.parametrize(
    "option", ["data_prefix.img=s3://bucket/train", "type=CocoPanopticDataset"]
)
def test_remote_and_panoptic_data_are_not_checked(option):
    notes = findings(MASK_RCNN, f"train_dataloader.dataset.{option}", level="note")
    assert any("is not checked" in finding.text for finding in notes)
