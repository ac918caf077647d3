"""The doctor reports segmentation maps that do not fit images, classes or heads."""

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.doctor_data import (
    HEIGHT,
    MAPS,
    SEMANTIC_FPN,
    SHAPES,
    WIDTH,
    assert_named,
    failures,
    findings,
    write_image,
    write_map,
    write_segmentation_maps,
)

pytestmark = pytest.mark.usefixtures("doctors_place")


MAP = MAPS / "0.png"
MAP_BREAKS = {
    "label of no class": (
        lambda: write_map(MAP, [1, 200]),
        *("D506", "decode_head", "num_classes=150", "ignore_index=255", "label 199 (1536 pixels"),
    ),
    "no map": (MAP.unlink, "D314", "1 of 3", MAP),
    "broken map": (lambda: MAP.write_bytes(b"no image"), "D315", MAP, "not an image"),
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


def copy_training_images(number: int) -> None:
    """Copy the first image and its map, until they are more than the doctor's sample."""
    for files, suffix in (("images", "jpg"), ("annotations", "png")):
        folder = Path("data/shapes", files, "training")
        for copy in range(number):
            shutil.copy(folder / f"0.{suffix}", folder / f"copy{copy:03}.{suffix}")


@pytest.mark.parametrize("last_label, codes", [(255, ["D513"]), (1, [])])
def test_masks_of_0_and_255_do_not_train_whatever_their_number(own_config, last_label, codes):
    config = own_config(TWO_CLASSES)
    write_segmentation_maps(Path("data/shapes"), [0, 255])
    copy_training_images(40)
    write_map(SHAPES_MAPS / "copy030.png", [last_label])
    assert [finding.code for finding in failures(config)] == codes


def test_class_may_be_in_another_data_set_of_the_split(own_config):
    write_segmentation_maps(Path("data/shapes"), [0, 1])
    write_segmentation_maps(Path("data/empty"), [0])
    both = """
prefix = dict(img_path='images/training', seg_map_path='annotations/training')
values = dict(type='BaseSegDataset', img_suffix='.jpg', metainfo=metainfo, data_prefix=prefix)
values.update(pipeline=_base_.train_pipeline)
both = [dict(values, data_root=root) for root in ('data/shapes', 'data/empty')]
train_dataloader = dict(dataset=dict(_delete_=True, type='ConcatDataset', datasets=both))
"""
    assert failures(own_config(f"{TWO_CLASSES}\n{both}")) == []


@pytest.mark.parametrize("size", [(HEIGHT * 2, WIDTH * 2), (WIDTH, HEIGHT)])
def test_maps_of_another_size_than_their_images_are_a_failure(size):
    file = SHAPES_MAPS / "0.png"
    cv2.imwrite(str(file), np.resize(np.array([1, 2, 3, 4, 5], np.uint8), size))
    assert_named(failures(SHAPES), [("D511", "train", file, size, (HEIGHT, WIDTH))])


@pytest.mark.parametrize("label, codes", [(256, ["D506"]), (65535, []), (3, [])])
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


def test_stray_label_of_one_map_is_named_with_its_file(own_config):
    write_segmentation_maps(Path("data/shapes"), [0, 1])
    copy_training_images(40)
    write_map(SHAPES_MAPS / "copy030.png", [0, 1, 2])
    classes = MASKS.format(classes=("ground", "shape", "slip"), head="num_classes=3")
    found = [each for each in findings(own_config(classes), level="note") if each.code == "D513"]
    stray = ("'slip'", "1024 pixels in 1 map", SHAPES_MAPS / "copy030.png")
    assert_named(found[:1], [("D513", "train", "43 segmentation maps", *stray)])
    write_map(SHAPES_MAPS / "copy030.png", [0, 1, 200])
    label = ("D506", "train", "label 200 (1024 pixels in 1 map", SHAPES_MAPS / "copy030.png")
    assert_named(failures(own_config(classes)), [label])
