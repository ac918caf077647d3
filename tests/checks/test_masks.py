"""The doctor reports masks that mmdet drops, that end a validation in a traceback, or that lie
elsewhere than their boxes.
"""

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

from xcit_mm.checks.findings import Finding
from xcit_mm.utils.coco import encode_mask

pytestmark = pytest.mark.usefixtures("doctors_place")


def draw(annotation: dict, height: int = HEIGHT, width: int = WIDTH) -> dict:
    """Draw the box of an annotation as RLE."""
    x, y, _, _ = annotation["bbox"]
    mask = np.zeros((height, width), bool)
    mask[y : y + SIDE, x : x + SIDE] = True
    return encode_mask(mask)


def mask_findings(level: str, *options: str) -> list[Finding]:
    found = findings(MASK_RCNN, *options, level=level)
    return [finding for finding in found if finding.code == "D412"]


NO_MASKS = {
    "none": None,
    "an empty list": [],
    "an empty polygon": [[]],
    "two points": [[20, 20, 60, 20]],
    "an odd number of values": [[20, 20, 60, 20, 60, 60, 20]],
    "text": "20 20 60 20 60 60",
    "values as text": [["20", "20", "60", "20", "60", "60"]],
    "a flat list": [20, 20, 60, 20, 60, 60, 20, 60],
    "nested pairs": [[[20, 20], [60, 20], [60, 60]]],
    "a part that is a box first": [[20, 20, 60, 20], [20, 20, 60, 20, 60, 60]],
    "RLE without counts": dict(size=[HEIGHT, WIDTH]),
    "RLE of another size": dict(size=[WIDTH, HEIGHT], counts="0"),
    "RLE of too few pixels": dict(size=[HEIGHT, WIDTH], counts=[10, 10]),
}


@pytest.mark.parametrize("mask", NO_MASKS.values(), ids=NO_MASKS)
def test_mask_that_cannot_be_read_is_named_with_its_image(mask):
    """mmdet drops it in a training, and pycocotools ends the validation in a traceback."""
    for path in (TRAIN_JSON, VAL_JSON):
        edit_json(path, lambda content: content["annotations"][3].update(segmentation=mask))
    named = [("train", TRAIN_JSON), ("val", VAL_JSON)]
    expected = [("D412", *names, "1 of 80", "id 4 (image 0.jpg)") for names in named]
    assert_named(failures(MASK_RCNN), expected)


@pytest.mark.parametrize(
    "polygons, problem",
    [
        ([[4, 4, 24, 4, 24, 24, 4, 24], [1, 2, 3, 4]], "fewer than three points"),
        ([[4, 4, 24, 24, 4, 4]], "without area"),
        ([[40, 30, 60, 30, 60, 47]], "elsewhere"),
    ],
)
def test_doubtful_mask_of_one_object_is_a_note(polygons, problem):
    edit_json(TRAIN_JSON, lambda content: content["annotations"][0].update(segmentation=polygons))
    assert_named(mask_findings("note"), [("D412", "train", "1 of 80", problem, "id 1")])
    assert failures(MASK_RCNN) == []


def compressed(annotation: dict) -> dict:
    return draw(annotation)


def uncompressed(annotation: dict) -> dict:
    x, y, _, _ = annotation["bbox"]
    before = x * HEIGHT + y
    counts = [before, *[SIDE, HEIGHT - SIDE] * (SIDE - 1), SIDE]
    return dict(size=[HEIGHT, WIDTH], counts=[*counts, HEIGHT * WIDTH - sum(counts)])


@pytest.mark.parametrize("encode", [compressed, uncompressed])
@pytest.mark.parametrize("poly2mask, codes", [(True, []), (False, ["D412"])])
def test_rle_under_poly2mask_false_is_a_failure(encode: Callable, poly2mask, codes, tmp_path):
    """mmdet ignores every such object, and the loss is 0."""
    edit_annotations(TRAIN_JSON, lambda each: each.update(segmentation=encode(each)))
    config = Path(tmp_path, "config.py")
    step = f"dict(type='LoadAnnotations', with_bbox=True, with_mask=True, poly2mask={poly2mask})"
    config.write_text(
        f"_base_ = {str(MASK_RCNN)!r}\n"
        "pipeline = _base_.train_dataloader.dataset.pipeline\n"
        f"pipeline[1] = {step}\n"
        "train_dataloader = dict(dataset=dict(pipeline=pipeline))\n"
    )
    assert [finding.code for finding in failures(config)] == codes


def test_boxes_need_no_masks():
    edit_annotations(TRAIN_JSON, lambda each: each.pop("segmentation"))
    edit_annotations(VAL_JSON, lambda each: each.pop("segmentation"))
    assert failures(RETINANET) == []
