"""The doctor reads the headers of all photos, and all segmentation maps."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.doctor_data import (
    COCO,
    HEIGHT,
    MAPS,
    MASK_RCNN,
    SEMANTIC_FPN,
    SHAPES,
    TRAIN_JSON,
    WIDTH,
    assert_named,
    edit_json,
    failures,
    findings,
    write_image,
    write_map,
    write_segmentation_maps,
)
from PIL import Image

pytestmark = pytest.mark.usefixtures("doctors_place")

PHOTO = COCO / "train2017" / "1.jpg"
SHAPES_MAPS = Path("data/shapes/annotations/training")


def write_pixels(path: Path, suffix: str, pixels: np.ndarray) -> None:
    """Write pixels in the format of a suffix to a path that may have another."""
    path.write_bytes(cv2.imencode(suffix, pixels)[1].tobytes())


MAP = MAPS / "0.png"
# A config, how to break a correct file, and level, code and values of the finding.
BREAKS = {
    "written on Windows": (
        MASK_RCNN,
        lambda: edit_json(TRAIN_JSON, lambda coco: coco["images"][1].update(file_name="a\\1.jpg")),
        *("FAIL", "D314", "train", "1 of 3", "a\\1.jpg"),
    ),
    "four bands": (
        MASK_RCNN,
        lambda: write_pixels(PHOTO, ".tif", np.full((HEIGHT, WIDTH, 4), 99, np.uint8)),
        *("FAIL", "", PHOTO, "4 bands"),
    ),
    "another size": (
        MASK_RCNN,
        lambda: write_pixels(PHOTO, ".jpg", np.zeros((9, 7, 3), np.uint8)),
        *("FAIL", "D315", "train", PHOTO, f"{WIDTH} x {HEIGHT} in its labels, 7 x 9 loaded"),
    ),
    "16 bits": (
        MASK_RCNN,
        lambda: write_pixels(PHOTO, ".png", np.full((HEIGHT, WIDTH, 3), 999, np.uint16)),
        *("note", "D315", "train", PHOTO, "8 bits"),
    ),
    "label of no class": (
        SEMANTIC_FPN,
        lambda: write_map(MAP, [1, 200]),
        *("FAIL", "D506", "0 to 149", "decode_head", "ignore_index=255", "label 199 in 1 map", MAP),
    ),
    "colours": (SEMANTIC_FPN, lambda: write_image(MAP), "FAIL", "D505", MAP),
    "cut off": (
        SEMANTIC_FPN,
        lambda: MAP.write_bytes(MAP.read_bytes()[:-40]),
        *("FAIL", "", MAP, "cannot be read"),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_file_that_does_not_load_as_configured_is_the_only_finding(name):
    config, break_file, level, *expected = BREAKS[name]
    break_file()
    found = findings(config, "auto_scale_lr.enable=True", level=level)
    assert_named(found, [tuple(expected)])


def turn_maps() -> None:
    for path in SHAPES_MAPS.glob("*.png"):
        Image.open(path).transpose(Image.Transpose.ROTATE_270).save(path)


def turn_sizes() -> None:
    def turn(content: dict) -> None:
        for image in content["images"]:
            image.update(width=HEIGHT, height=WIDTH)

    edit_json(TRAIN_JSON, turn)


LABELS = {
    "maps": (SHAPES, Path("data/shapes/images/training"), turn_maps, "D511"),
    "boxes": (MASK_RCNN, PHOTO.parent, turn_sizes, "D315"),
}


@pytest.mark.parametrize("config, photos, turn_labels, code", LABELS.values(), ids=LABELS)
def test_labels_drawn_over_stored_photos_are_named_and_the_fix_works(
    config, photos, turn_labels, code
):
    exif = Image.Exif()
    exif[0x0112] = 6
    for path in photos.glob("*.jpg"):
        Image.open(path).copy().save(path, exif=exif)
    (failure,) = failures(config)
    assert_named([failure], [(code, "train", f"{WIDTH} x {HEIGHT}", f"{HEIGHT} x {WIDTH}")])
    option = "color_type=color_ignore_orientation"
    assert option.replace("=", "='") in failure.fix
    loading = [f"{split}_dataloader.dataset.pipeline.0" for split in ("train", "val", "test")]
    assert failures(config, *[f"{step}.{option}" for step in loading]) == []
    turn_labels()
    assert failures(config) == []
    for path in photos.glob("*.jpg"):
        Image.open(path).resize((WIDTH // 2, HEIGHT // 2)).save(path, exif=exif)
    assert failures(config, *[f"{step}.{option}" for step in loading])[0].code == code


def test_labels_from_0_with_reduce_zero_label_lack_the_last_class():
    write_segmentation_maps(Path("data/shapes"), [0, 1, 2, 3, 4])
    found = [finding for finding in findings(SHAPES, level="note") if finding.code.startswith("D5")]
    assert_named(found, [("D513", split, "star") for split in ("train", "val")])
    assert all("reduce_zero_label" in finding.fix for finding in found)


CONFIG = """
model = dict(decode_head=dict({head}))
metainfo = dict(classes={classes}, palette=[(9, 9, 9)] * len({classes}))
train_dataloader = dict(dataset=dict(metainfo=metainfo, reduce_zero_label=False))
val_dataloader = dict(dataset=dict(metainfo=metainfo, reduce_zero_label=False))
test_dataloader = dict(dataset=dict(metainfo=metainfo, reduce_zero_label=False))
"""
TWO_CLASSES = CONFIG.format(classes=("ground", "shape"), head="num_classes=2")


def test_masks_of_0_and_255_do_not_train(own_config):
    config = own_config(TWO_CLASSES)
    write_segmentation_maps(Path("data/shapes"), [0, 255])
    assert_named(failures(config), [("D513",)])
    write_map(SHAPES_MAPS / "2.png", [1])
    assert failures(config) == []


def test_labels_that_a_step_of_another_library_may_change_are_not_checked(own_config):
    write_segmentation_maps(Path("data/shapes"), [1, 77])
    config = own_config(
        "flip = dict(type='RandomApply', transforms=[dict(type='mmdet.RandomFlip', prob=1)])\n"
        "pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), flip]\n"
        "train_dataloader = dict(dataset=dict(pipeline=pipeline))"
    )
    assert_named(failures(config), [("D506", "val", "label 76")])


def test_segmentor_of_one_class_has_the_labels_0_and_1(own_config):
    head = "num_classes=1, threshold=0.5, loss_decode=dict(use_sigmoid=True)"
    config = own_config(CONFIG.format(classes=("shape",), head=head))
    write_segmentation_maps(Path("data/shapes"), [0, 1])
    assert failures(config) == []
    assert "D304" in [finding.code for finding in findings(config, level="note")]
    write_segmentation_maps(Path("data/shapes"), [0, 1, 2])
    label = ("0 to 1", "decode_head", "ignore_index=255", "label 2 in 3 maps")
    assert_named(failures(config), [("D506", "train", *label), ("D506", "val", *label)])
