"""The doctor reports segmentation maps that do not fit images, classes or heads, and masks of
objects that mmdet drops, that end a validation in a traceback, or that lie elsewhere than their
boxes.
"""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.doctor_data import (
    HEIGHT,
    MAPS,
    MASK_RCNN,
    RETINANET,
    SEMANTIC_FPN,
    SHAPES,
    SIDE,
    TRAIN_JSON,
    VAL_JSON,
    WIDTH,
    assert_named,
    edit_annotations,
    edit_json,
    failures,
    findings,
    write_image,
    write_map,
    write_segmentation_maps,
)

from xcit_mm.utils.coco import encode_mask

pytestmark = pytest.mark.usefixtures("doctors_place")


MAP = MAPS / "0.png"
MAP_BREAKS = {
    "label of no class": (
        lambda: write_map(MAP, [1, 200]),
        *("D506", "decode_head", "num_classes=150", "ignore_index=255", "label 199 (1536 pixels"),
    ),
    "broken map": (lambda: MAP.write_bytes(b"no image"), "D505", MAP, "not an image"),
    "colours": (lambda: write_image(MAP), "D505", MAP),
}


@pytest.mark.parametrize("name", MAP_BREAKS)
def test_wrong_segmentation_map_is_the_only_failure(name):
    break_data, *expected = MAP_BREAKS[name]
    break_data()
    assert_named(failures(SEMANTIC_FPN), [(*expected, "train")])


def test_labels_from_0_with_reduce_zero_label_lack_the_last_class():
    """A rare last class, as in LoveDA and Potsdam, looks the same in a sample."""
    write_segmentation_maps(Path("data/shapes"), [0, 1, 2, 3, 4])
    found = [finding for finding in findings(SHAPES, level="note") if finding.code.startswith("D5")]
    assert_named(found, [("D513", split, "star") for split in ("train", "val")])
    assert all("reduce_zero_label" in finding.fix for finding in found)


MASKS = """
model = dict(decode_head=dict({head}))
metainfo = dict(classes={classes}, palette=[(9, 9, 9)] * len({classes}))
train_dataloader = dict(dataset=dict(metainfo=metainfo, reduce_zero_label=False))
val_dataloader = dict(dataset=dict(metainfo=metainfo, reduce_zero_label=False))
test_dataloader = dict(dataset=dict(metainfo=metainfo, reduce_zero_label=False))
"""
TWO_CLASSES = MASKS.format(classes=("ground", "shape"), head="num_classes=2")
SHAPES_MAPS = Path("data/shapes/annotations/training")


@pytest.mark.parametrize("last_label, codes", [(255, ["D513"]), (1, [])])
def test_masks_of_0_and_255_do_not_train(own_config, last_label, codes):
    config = own_config(TWO_CLASSES)
    write_segmentation_maps(Path("data/shapes"), [0, 255])
    write_map(SHAPES_MAPS / "2.png", [last_label])
    assert [finding.code for finding in failures(config)] == codes


def test_class_may_be_in_another_data_set_of_the_split(own_config):
    write_segmentation_maps(Path("data/shapes"), [0, 1])
    write_segmentation_maps(Path("data/empty"), [0])
    both = """
data = dict(_base_.train_dataloader.dataset, metainfo=metainfo, reduce_zero_label=False)
both = [dict(data, data_root=root) for root in ('data/shapes', 'data/empty')]
train_dataloader = dict(dataset=dict(_delete_=True, type='ConcatDataset', datasets=both))
"""
    assert failures(own_config(f"{TWO_CLASSES}\n{both}")) == []


@pytest.mark.parametrize("size", [(HEIGHT * 2, WIDTH * 2), (WIDTH, HEIGHT)])
def test_maps_of_another_size_than_their_images_are_a_failure(size):
    file = SHAPES_MAPS / "0.png"
    cv2.imwrite(str(file), np.resize(np.array([1, 2, 3, 4, 5], np.uint8), size))
    named = f"{size[1]} x {size[0]}"
    assert_named(failures(SHAPES), [("D511", "train", file, named, f"{WIDTH} x {HEIGHT}")])


@pytest.mark.parametrize("label, codes", [(256, ["D506"]), (65535, [])])
def test_labels_of_16_bits_that_8_bits_change_are_a_failure(label, codes):
    labels = np.resize(np.array([1, 2, 3, 4, 5, label], np.uint16), (HEIGHT, WIDTH))
    cv2.imwrite(str(SHAPES_MAPS / "0.png"), labels)
    assert [finding.code for finding in failures(SHAPES)] == codes


def test_segmentor_of_one_class_has_the_labels_0_and_1(own_config):
    head = "num_classes=1, threshold=0.5, loss_decode=dict(use_sigmoid=True)"
    config = own_config(MASKS.format(classes=("shape",), head=head))
    write_segmentation_maps(Path("data/shapes"), [0, 1])
    assert failures(config) == []
    assert "D304" in [finding.code for finding in findings(config, level="note")]
    write_segmentation_maps(Path("data/shapes"), [0, 1, 2])
    label = ("decode_head", "num_classes=1", "ignore_index=255", "label 2 (3072 pixels")
    assert_named(failures(config), [("D506", "train", *label), ("D506", "val", *label)])


def compressed(annotation: dict) -> dict:
    """Draw the box of an annotation as RLE."""
    x, y, _, _ = annotation["bbox"]
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[y : y + SIDE, x : x + SIDE] = True
    return encode_mask(mask)


NO_MASKS = {
    "an empty polygon": [[]],
    "two points": [[20, 20, 60, 20]],
    "an odd number of values": [[20, 20, 60, 20, 60, 60, 20]],
    "nested pairs": [[[20, 20], [60, 20], [60, 60]]],
    "a part that is a box first": [[20, 20, 60, 20], [20, 20, 60, 20, 60, 60]],
    "RLE without counts": dict(size=[HEIGHT, WIDTH]),
    "RLE of another size": dict(size=[WIDTH, HEIGHT], counts="0"),
    "RLE of too few pixels": dict(size=[HEIGHT, WIDTH], counts=[10, 10]),
    "RLE of texts": dict(size=[HEIGHT, WIDTH], counts=["10", "10"]),
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
    "mask, problem",
    [
        ([[4, 4, 24, 4, 24, 24, 4, 24], [1, 2, 3, 4]], "fewer than three points"),
        ([[4, 4, 24, 24, 4, 4]], "without area"),
        ([[40, 30, 60, 30, 60, 47]], "elsewhere"),
        ([[4, 4, 24, 4, 24, float("nan")]], "without area"),
        (dict(size=[HEIGHT, WIDTH], counts=[HEIGHT * WIDTH - 400, 400]), "elsewhere"),
        (dict(size=[HEIGHT, WIDTH], counts="no RLE"), "elsewhere"),
    ],
)
def test_doubtful_mask_of_one_object_is_a_note(mask, problem):
    edit_json(TRAIN_JSON, lambda content: content["annotations"][0].update(segmentation=mask))
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
