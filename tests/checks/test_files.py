"""The doctor reads the headers of all files, and tells how EXIF turns photos."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.doctor_data import (
    COCO,
    HEIGHT,
    MASK_RCNN,
    SHAPES,
    TRAIN_JSON,
    WIDTH,
    assert_named,
    edit_json,
    failures,
    findings,
    write_image,
    write_map,
)
from PIL import Image, ImageOps

from xcit_mm.checks.findings import Finding

pytestmark = pytest.mark.usefixtures("doctors_place")

PHOTOS = COCO / "train2017"
OUTSIDE = PHOTOS / "copy050.jpg"  # of a sample


def add_photos() -> None:
    """Add photos to the json of the training, until they are more than a sample."""

    def add(content: dict) -> None:
        image, annotation = content["images"][0], content["annotations"][0]
        for number in range(100, 200):
            path = PHOTOS / f"copy{number - 100:03}.jpg"
            write_image(path)
            content["images"].append(dict(image, id=number, file_name=path.name))
            content["annotations"].append(dict(annotation, id=number, image_id=number))

    edit_json(TRAIN_JSON, add)


def write_noise(path: Path, dtype: type = np.uint8, high: int = 256) -> None:
    pixels = np.random.default_rng(0).integers(0, high, (HEIGHT, WIDTH, 3)).astype(dtype)
    cv2.imwrite(str(path), pixels)


def cut(path: Path) -> None:
    write_noise(path)
    path.write_bytes(path.read_bytes()[:-1500])


def write_12_bits(path: Path) -> None:
    write_noise(path.with_suffix(".png"), np.uint16, 4096)
    path.with_suffix(".png").rename(path)


FILES = {
    "empty": (lambda path: path.write_bytes(b""), "FAIL", ["the file is empty"]),
    "text": (lambda path: path.write_bytes(b"<html>"), "FAIL", ["not an image"]),
    "cut off": (cut, "FAIL", ["truncated"]),
    "12 bits in 16": (write_12_bits, "FAIL", ["nearly black"]),
    "another size": (
        lambda path: cv2.imwrite(str(path), np.zeros((9, 7, 3), np.uint8)),
        *("FAIL", [(9, 7), (HEIGHT, WIDTH)]),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_photo_with_a_fault_outside_the_sample_is_named(name):
    break_data, level, values = FILES[name]
    add_photos()
    break_data(OUTSIDE)
    found = [each for each in findings(MASK_RCNN) if each.code == "D315"]
    assert [each.level for each in found] == [level]
    assert_named(found, [("D315", "train", OUTSIDE, *values)])


def test_later_start_reads_the_files_that_have_changed():
    add_photos()
    assert failures(MASK_RCNN) == []
    state = OUTSIDE.stat()
    OUTSIDE.write_bytes(bytes(state.st_size))
    os.utime(OUTSIDE, ns=(state.st_atime_ns, state.st_mtime_ns))
    changed = OUTSIDE.with_name("copy051.jpg")
    cv2.imwrite(str(changed), np.zeros((9, 7, 3), np.uint8))
    found = [each for each in findings(MASK_RCNN) if each.code == "D315"]
    assert_named(found, [("D315", "train", changed)])


def write_turned(path: Path, orientation: int) -> Image.Image:
    """Write a photo that EXIF turns, and return where its object is in the stored photo."""
    pixels = np.random.default_rng(0).integers(90, 130, (HEIGHT, WIDTH)).astype(np.uint8)
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    labels[6:26, 8:28] = 1
    pixels[labels > 0] = 220
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif)
    return Image.fromarray(labels)


def turn(image: Image.Image, orientation: int) -> Image.Image:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.info["exif"] = exif.tobytes()
    return ImageOps.exif_transpose(image)


MAPS_OF_SHAPES = Path("data/shapes/annotations/training")
STORED = [
    f"{split}_dataloader.dataset.pipeline.0.color_type=color_ignore_orientation"
    for split in ("train", "val", "test")
]


def write_turned_maps(orientation: int, is_stored: bool) -> None:
    for path in MAPS_OF_SHAPES.glob("*.png"):
        photo = Path(f"data/shapes/images/training/{path.stem}.jpg")
        labels = write_turned(photo, orientation)
        shown = labels if is_stored else turn(labels, orientation)
        shown.point(lambda label: label + 1).save(path)
    write_map(MAPS_OF_SHAPES / "9.png", [1, 2, 3, 4, 5])
    write_image(Path("data/shapes/images/training/9.jpg"))


@pytest.mark.parametrize("orientation", [3, 6])
def test_maps_drawn_over_stored_photos_are_named_and_the_fix_works(orientation):
    write_turned_maps(orientation, is_stored=True)
    (failure,) = failures(SHAPES)
    assert_named([failure], [("D511", "train", "3 maps", "as stored")])
    assert failure.fix.startswith("color_type='color_ignore_orientation' in LoadImageFromFile")
    assert failures(SHAPES, *STORED) == []


@pytest.mark.parametrize("orientation", [3, 6])
def test_maps_drawn_over_turned_photos_are_right(orientation):
    write_turned_maps(orientation, is_stored=False)
    assert failures(SHAPES) == []


def box_as_drawn(labels: Image.Image) -> tuple[list[float], list[list[float]]]:
    left, top, right, bottom = labels.getbbox()
    polygon = [left, top, right, top, right, bottom, left, bottom]
    return [left, top, right - left, bottom - top], [polygon]


def write_turned_json(orientation: int, change: Callable[[Image.Image], Image.Image]) -> None:
    content = json.loads(TRAIN_JSON.read_text())
    for image in content["images"]:
        labels = change(write_turned(PHOTOS / image["file_name"], orientation))
        image.update(width=labels.width, height=labels.height)
        for annotation in content["annotations"]:
            if annotation["image_id"] == image["id"]:
                box, polygons = box_as_drawn(labels)
                annotation.update(bbox=box, segmentation=polygons)
    TRAIN_JSON.write_text(json.dumps(content))


def failed(*options: str) -> list[Finding]:
    return failures(MASK_RCNN, *options)


@pytest.mark.parametrize("orientation", [3, 6])
def test_boxes_drawn_over_stored_photos_are_named_and_the_fix_works(orientation):
    write_turned_json(orientation, lambda labels: labels)
    assert_named(failed(), [("D315", "train", "3 by EXIF", TRAIN_JSON)])
    assert failed(*STORED) == []


@pytest.mark.parametrize("orientation", [3, 6])
def test_boxes_drawn_over_turned_photos_are_right(orientation):
    write_turned_json(orientation, lambda labels: turn(labels, orientation))
    assert failed() == []
