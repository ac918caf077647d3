"""The doctor reports errors of a COCO json, and annotations that mmdet drops without a message."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.doctor_data import (
    HEIGHT,
    MASK_RCNN,
    RETINANET,
    SIDE,
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

from xcit_mm.datasets.coco import encode_mask

pytestmark = pytest.mark.usefixtures("doctors_place")


def move_boxes(change: Callable[..., list[float]]) -> Callable[[], None]:
    """Change the boxes of the training, from x, y, width and height."""

    def move(annotation: dict) -> None:
        annotation["bbox"] = change(*annotation["bbox"])

    return lambda: edit_annotations(TRAIN_JSON, move)


def change_second(part: str, path: Path = TRAIN_JSON, **values: object) -> Callable[[], None]:
    """Change the second image, annotation or category."""
    return lambda: edit_json(path, lambda content: content[part][1].update(values))


# How to break a correct data set of the training, and code and values of the failure.
BREAKS = {
    "a category of another name": (
        change_second("categories", name="Bike"),
        *("D405", "train", "1 of 80", "bicycle"),
    ),
    "boxes in fractions of the image": (
        move_boxes(lambda x, y, w, h: [x / WIDTH, y / HEIGHT, w / WIDTH, h / HEIGHT]),
        *("D408", "train", "80 of 80", "id 1 (image 0.jpg)"),
    ),
    "boxes as corners": (
        move_boxes(lambda x, y, w, h: [x, y, x + w, y + h]),
        *("D411", "train", "57 of 80"),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_error_of_the_data_is_the_only_failure(name):
    break_data, *expected = BREAKS[name]
    break_data()
    assert_named(failures(MASK_RCNN), [tuple(expected)])


def test_objects_that_do_not_train_are_notes():
    def change(content: dict) -> None:
        content["categories"].append(dict(id=500, name="unicorn"))
        content["annotations"][0]["category_id"] = 500
        content["annotations"][1]["bbox"] = [5, 5, 0.5, 9]
        content["annotations"][2]["bbox"] = [5, 5, WIDTH, 9]

    edit_json(TRAIN_JSON, change)
    found = findings(MASK_RCNN, "auto_scale_lr.enable=True")
    expected = [
        ("D405", "train", "unicorn", TRAIN_JSON),
        ("D408", "train", "1 of 79", TRAIN_JSON, "id 2 (image 1.jpg)"),
        ("D411", "train", "1 of 79", TRAIN_JSON, "id 3 (image 2.jpg)"),
    ]
    assert_named([finding for finding in found if finding.level != "ok"], expected)
    assert not any(finding.level == "FAIL" for finding in found)


def test_fix_of_other_categories_in_the_validation_works():
    edit_json(VAL_JSON, lambda content: content["categories"].reverse())
    (failure,) = failures(MASK_RCNN)
    assert failure.code == "D406"
    classes = CocoDataset.METAINFO["classes"]
    assert str(VAL_JSON) in failure.fix and str(classes) in failure.fix
    listed = [dict(id=2 * number + 1, name=name) for number, name in enumerate(classes)]
    edit_json(VAL_JSON, lambda content: content.update(categories=listed))
    assert failures(MASK_RCNN) == []


def test_ids_that_confuse_pycocotools_fail_the_validation_alone():
    for number in (0, 1):
        change_second("annotations", VAL_JSON, id=number)()
        assert_named(failures(MASK_RCNN), [("D418", "val", VAL_JSON, number)])
    change_second("annotations", VAL_JSON, id=2)()
    change_second("annotations", id=0)()
    assert failures(MASK_RCNN) == []


@pytest.mark.parametrize(
    "option",
    [
        "dataloader.dataset.data_prefix.img=s3://bucket/val",
        "dataloader.dataset.type=CocoPanopticDataset",
        "evaluator.ann_file=s3://bucket/val.json",
    ],
)
def test_remote_and_panoptic_data_are_not_checked(option):
    found = findings(MASK_RCNN, f"val_{option}")
    assert [finding for finding in found if finding.text.endswith("is not checked")]
    failed = {finding.code for finding in found if finding.level == "FAIL"}
    assert failed <= {"D305"}  # panoptic data have more classes


def test_a_class_of_crowds_alone_is_a_failure_and_other_crowds_are_a_note():
    """As CVAT's brush writes all objects. In tiles of a raster, edges make crowds of objects."""

    def mark(content: dict) -> None:
        first = content["annotations"][0]
        first["iscrowd"] = 1
        content["annotations"].append(first | dict(id=81, iscrowd=0))

    edit_json(TRAIN_JSON, mark)
    note = ("D409", "train", "1 of 81", "iscrowd=1")
    assert_named(findings(MASK_RCNN, "auto_scale_lr.enable=True", level="note"), [note])
    edit_json(TRAIN_JSON, lambda content: content["annotations"].pop())
    assert_named(failures(MASK_RCNN), [("D409", "train", "1 of 80", "all of person")])
    assert failures(MASK_RCNN, "raster.tile=512") == []


def rle(annotation: dict) -> dict:
    """Draw the box of an annotation as RLE."""
    x, y, _, _ = annotation["bbox"]
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[y : y + SIDE, x : x + SIDE] = True
    return encode_mask(mask)


NO_MASKS = [
    [],
    [[20, 20, 60, 20, 60, 60, 20]],
    [[20, 20, 60, 20], [20, 20, 60, 20, 60, 60]],  # pycocotools takes all for boxes
    dict(size=[WIDTH, HEIGHT], counts="0"),
]


def test_masks_that_cannot_be_read_are_named_with_their_images():
    """mmdet drops them in a training, and pycocotools ends the validation in a traceback."""

    def change(content: dict) -> None:
        for annotation, mask in zip(content["annotations"], NO_MASKS, strict=False):
            annotation["segmentation"] = mask

    for path in (TRAIN_JSON, VAL_JSON):
        edit_json(path, change)
    named = [("train", TRAIN_JSON), ("val", VAL_JSON)]
    expected = [("D412", *names, "4 of 80", "id 1 (image 0.jpg)") for names in named]
    assert_named(failures(MASK_RCNN), expected)


def test_rle_under_poly2mask_false_is_a_failure():
    """mmdet ignores every such object, and the loss is 0."""
    edit_annotations(TRAIN_JSON, lambda entry: entry.update(segmentation=rle(entry)))
    assert failures(MASK_RCNN) == []
    option = "train_dataloader.dataset.pipeline.1.poly2mask=False"
    assert_named(failures(MASK_RCNN, option), [("D412",)])


def test_boxes_need_no_masks():
    for path in (TRAIN_JSON, VAL_JSON):
        edit_annotations(path, lambda entry: entry.pop("segmentation"))
    assert failures(RETINANET) == []
