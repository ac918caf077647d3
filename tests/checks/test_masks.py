"""The doctor reports masks that mmdet drops, that end a validation in a traceback, or that lie
elsewhere than their boxes.
"""

from collections.abc import Callable

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

from xcit_mm.utils.coco import encode_mask

pytestmark = pytest.mark.usefixtures("doctors_place")


def compressed(annotation: dict) -> dict:
    """Draw the box of an annotation as RLE."""
    x, y, _, _ = annotation["bbox"]
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[y : y + SIDE, x : x + SIDE] = True
    return encode_mask(mask)


NO_MASKS = {
    "none": None,
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
    assert failures(MASK_RCNN) == []
    notes = [note for note in findings(MASK_RCNN, level="note") if note.code == "D412"]
    assert_named(notes, [("D412", "train", "1 of 80", problem, "id 1")])


def uncompressed(annotation: dict) -> dict:
    x, y, _, _ = annotation["bbox"]
    before = x * HEIGHT + y
    counts = [before, *[SIDE, HEIGHT - SIDE] * (SIDE - 1), SIDE]
    return dict(size=[HEIGHT, WIDTH], counts=[*counts, HEIGHT * WIDTH - sum(counts)])


@pytest.mark.parametrize("encode", [compressed, uncompressed])
@pytest.mark.parametrize("poly2mask, codes", [(True, []), (False, ["D412"])])
def test_rle_under_poly2mask_false_is_a_failure(encode: Callable, poly2mask, codes):
    """mmdet ignores every such object, and the loss is 0."""
    edit_annotations(TRAIN_JSON, lambda entry: entry.update(segmentation=encode(entry)))
    option = f"train_dataloader.dataset.pipeline.1.poly2mask={poly2mask}"
    assert [finding.code for finding in failures(MASK_RCNN, option)] == codes


def test_boxes_need_no_masks():
    for path in (TRAIN_JSON, VAL_JSON):
        edit_annotations(path, lambda entry: entry.pop("segmentation"))
    assert failures(RETINANET) == []
