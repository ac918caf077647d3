"""The doctor reports errors of a COCO json, and annotations that mmdet drops without a message."""

import json
import re
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
    write_image,
)
from helpers.pages import blocks
from helpers.paths import ROOT
from mmdet.datasets import CocoDataset

from xcit_mm.checks.findings import Finding

pytestmark = pytest.mark.usefixtures("doctors_place")


def swap_categories(content: dict) -> None:
    categories = content["categories"]
    categories[0], categories[1] = categories[1], categories[0]


def to_corners(annotation: dict) -> None:
    x, y, width, height = annotation["bbox"]
    annotation["bbox"] = [x, y, x + width, y + height]
    draw_box(annotation)


def to_centre(annotation: dict) -> None:
    x, y, width, height = annotation["bbox"]
    annotation["bbox"] = [x + width / 2, y + height / 2, width, height]
    draw_box(annotation)


def to_relative(annotation: dict) -> None:
    x, y, width, height = annotation["bbox"]
    annotation["bbox"] = [x / WIDTH, y / HEIGHT, width / WIDTH, height / HEIGHT]


def draw_box(annotation: dict) -> None:
    """Draw the mask as its box."""
    x, y, width, height = annotation["bbox"]
    right = x + width
    bottom = y + height
    annotation["segmentation"] = [[x, y, right, y, right, bottom, x, bottom]]


def change_each(change: Callable[[dict], object]) -> Callable[[], None]:
    return lambda: edit_annotations(TRAIN_JSON, change)


def change_json(change: Callable[[dict], object], path: Path = TRAIN_JSON) -> Callable[[], None]:
    return lambda: edit_json(path, change)


def set_all(**values: object) -> Callable[[], None]:
    return change_each(lambda annotation: annotation.update(values))


def set_id(value: object, path: Path = TRAIN_JSON) -> Callable[[], None]:
    return change_json(lambda content: content["annotations"][1].update(id=value), path)


# How to break a correct data set, and the code and values of the only failure that follows, in the
# training split.
BREAKS = {
    "not json": (lambda: TRAIN_JSON.write_text("images"), "D401", "line 1 column 1"),
    "no height": (
        change_json(lambda content: content["images"][1].pop("height")),
        "D401",
        "height",
    ),
    "no segmentation": (
        change_json(lambda content: content["annotations"][5].update(segmentation=[])),
        *("D412", "1 of 80", TRAIN_JSON, "id 6 (image 2.jpg)"),
    ),
    "image id twice": (
        change_json(lambda content: content["images"][1].update(id=0)),
        "D401",
        "2 images with the id 0",
    ),
    "NaN": (set_all(bbox=[1, 2, float("nan"), 3]), "D401", "[1, 2, nan, 3]"),
    "annotation id twice": (set_id(1), "D418", "1 annotations"),
    "annotation id 0": (set_id(0), "D418", "0"),
    "annotation id as text": (set_id("ann-2"), "D418", "'ann-2'"),
    "category of another name": (
        change_json(lambda content: content["categories"][15].update(name="Cat")),
        *("D405", "1 of 80", "cat", "Cat"),
    ),
    "categories in another order": (
        change_json(swap_categories),
        "D406",
        "bicycle as person, person as bicycle",
    ),
    "two categories of a name, as Roboflow exports": (
        change_json(lambda content: content["categories"].insert(0, dict(id=0, name="person"))),
        *("D406", "2 categories", "'person'", "0, 1"),
    ),
    "no annotations": (
        change_json(lambda content: content.update(annotations=[])),
        "D408",
        "no annotations",
    ),
    "image ids that count from 1": (
        change_each(lambda annotation: annotation.update(image_id=annotation["image_id"] + 1)),
        *("D408", "26 of 80", "unknown image_id", "id 3 (image 3)"),
    ),
    "relative boxes": (change_each(to_relative), "D408", "80 of 80", "no area"),
    "only crowds": (
        change_json(
            lambda c: (c.pop("info"), [each.update(iscrowd=1) for each in c["annotations"]])
        ),
        *("D409", "80 of 80"),
    ),
    "boxes as corners": (change_each(to_corners), "D411", "57 of 80"),
    "masks elsewhere than boxes": (
        change_each(lambda each: each.update(segmentation=[[0, 0, 5, 0, 5, 5]])),
        *("D412", "80 of 80", "id 1 (image 0.jpg)"),
    ),
    "no image": ((COCO / "train2017/1.jpg").unlink, "D314", "1 of 3", COCO / "train2017/1.jpg"),
    "broken image": (
        lambda: (COCO / "train2017/2.jpg").write_bytes(b"no image"),
        *("D315", COCO / "train2017/2.jpg", "not an image"),
    ),
    "size of another image": (
        change_json(lambda content: content["images"][0].update(height=64, width=72)),
        *("D315", COCO / "train2017/0.jpg", "(48, 64)", "(64, 72)"),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_error_of_the_data_is_the_only_failure(name):
    break_data, code, *values = BREAKS[name]
    break_data()
    path = [TRAIN_JSON] * (code in ("D401", "D418"))
    assert_named(failures(MASK_RCNN), [(code, "train", *path, *values)])


@pytest.mark.parametrize("value", ["2", 2.0, 2**53, -2])
def test_ids_that_score_correctly_pass(value):
    set_id(value)()
    assert failures(MASK_RCNN) == []


@pytest.mark.parametrize(
    "break_data",
    [
        lambda content: content["categories"].reverse(),
        lambda content: (content["categories"].pop(79), content["annotations"].pop(79)),
        lambda content: content["categories"][15].update(name="Cat"),
    ],
    ids=["another order", "a class less", "another name"],
)
def test_fix_of_other_categories_in_the_validation_works(break_data):
    edit_json(VAL_JSON, break_data)
    (failure,) = failures(MASK_RCNN)
    assert failure.fix.startswith(f"list the categories of {VAL_JSON} as (")
    classes = CocoDataset.METAINFO["classes"]
    assert str(classes) in failure.fix
    ids = {name: 2 * number + 1 for number, name in enumerate(classes)}
    listed = [dict(id=number, name=name) for name, number in ids.items()]
    edit_json(VAL_JSON, lambda content: content.update(categories=listed))
    assert failures(MASK_RCNN) == []


def test_categories_of_the_training_may_name_the_classes():
    edit_json(TRAIN_JSON, swap_categories)
    (failure,) = failures(MASK_RCNN)
    assert failure.fix.startswith("metainfo=dict(classes=('bicycle', 'person', 'car',")


def test_ids_of_the_json_that_scores_are_checked_too():
    copy = Path("scored.json")
    copy.write_text(VAL_JSON.read_text())
    set_id(0, copy)()
    assert_named(failures(MASK_RCNN, f"val_evaluator.ann_file={copy}"), [("D418", "val", copy)])


def write_perfect(first: int, number: int) -> None:
    """Write a json of one image, and perfect predictions."""
    boxes = [
        dict(
            id=k + first,
            image_id=1,
            category_id=1,
            bbox=[k % 20 * 20, k // 20 * 20, 14, 14],
            area=196,
            iscrowd=0,
        )
        for k in range(number)
    ]
    image = dict(id=1, file_name="a", width=400, height=400)
    content = dict(info={}, images=[image], annotations=boxes, categories=[dict(id=1, name="o")])
    Path("annotations.json").write_text(json.dumps(content))
    Path("predictions").mkdir(exist_ok=True)
    Path("predictions/predictions.json").write_text(
        json.dumps([dict(box, score=0.9) for box in boxes])
    )


@pytest.mark.parametrize(
    "first, number, scores", [(0, 2, (0.25, 0.25)), (1, 2, (1, 1)), (1, 300, (0.34, 1))]
)
def test_scores_of_the_page_show_why_ids_and_numbers_of_objects_are_checked(
    first, number, scores, capsys
):
    write_perfect(first, number)
    (code,) = (code for _, code in blocks(ROOT / "docs" / "prediction.md") if "COCOeval" in code)
    exec(code, {})
    printed = capsys.readouterr().out
    at_100, at_1000 = re.search(r"maxDets=100 \] = ([\d.]+)", printed)[1], printed.split()[-1]
    assert (float(at_100), float(at_1000)) == pytest.approx(scores, abs=0.01)


def noted(*options: str) -> list[Finding]:
    """Return the notes about the json."""
    return [
        finding
        for finding in findings(MASK_RCNN, *options, level="note")
        if finding.code.startswith("D4")
    ]


def test_boxes_that_the_border_may_cut_off_are_a_note():
    edit_annotations(TRAIN_JSON, to_centre)
    assert_named(noted(), [("D411", "train", "23 of 80", TRAIN_JSON)])
    assert failures(MASK_RCNN) == []


def test_photo_that_exif_turns_is_a_note():
    edit_json(TRAIN_JSON, lambda content: content["images"][0].update(height=WIDTH, width=HEIGHT))
    found = [finding for finding in findings(MASK_RCNN, level="note") if finding.code == "D315"]
    assert_named(found, [("D315", "train", (HEIGHT, WIDTH), (WIDTH, HEIGHT))])


def test_few_boxes_that_mmdet_drops_and_absent_classes_are_notes():
    edit_json(TRAIN_JSON, lambda content: content["annotations"][0].update(bbox=[5, 5, 0.5, 9]))
    assert_named(
        noted(),
        [("D408", "train", "1 of 80", TRAIN_JSON), ("D410", "train", TRAIN_JSON, "person")],
    )
    assert failures(MASK_RCNN) == []


def test_crowds_are_a_note_unless_they_are_cocos_own():
    edit_json(TRAIN_JSON, lambda content: content["annotations"][0].update(iscrowd=1))
    assert "D409" not in [finding.code for finding in noted()]
    edit_json(TRAIN_JSON, lambda content: content.pop("info"))
    assert_named(noted()[:1], [("D409", "train", "1 of 80", TRAIN_JSON)])


def test_more_objects_than_mAP_counts_are_a_note():
    def repeat(content: dict) -> None:
        content["annotations"] = [
            dict(each, id=2 * each["id"] - k) for each in content["annotations"] for k in (0, 1)
        ]
        for annotation in content["annotations"]:
            annotation["image_id"] = 0

    edit_json(VAL_JSON, repeat)
    assert_named(noted(), [("D419", "val", "160 objects", "100 best")])


def test_categories_outside_the_classes_are_a_note():
    edit_json(
        TRAIN_JSON, lambda content: content["categories"].append(dict(id=500, name="unicorn"))
    )
    edit_json(TRAIN_JSON, lambda content: content["annotations"][0].update(category_id=500))
    assert_named(noted()[:1], [("D405", "train", "unicorn")])
    assert failures(MASK_RCNN) == []


def test_images_in_the_current_folder_are_found():
    for number in range(3):
        write_image(Path(f"{number}.jpg"))
    options = ["data_root=None", f"ann_file={TRAIN_JSON}", "data_prefix.img=''"]
    options = [f"train_dataloader.dataset.{option}" for option in options]
    assert failures(MASK_RCNN, *options) == []
    Path("1.jpg").unlink()
    assert_named(failures(MASK_RCNN, *options), [("D314", "train", "1 of 3", "1.jpg")])


@pytest.mark.parametrize(
    "option", ["data_prefix.img=s3://bucket/train", "type=CocoPanopticDataset"]
)
def test_remote_and_panoptic_data_are_not_checked(option):
    notes = findings(MASK_RCNN, f"train_dataloader.dataset.{option}", level="note")
    assert any("is not checked" in finding.text for finding in notes)
