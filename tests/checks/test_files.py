"""The doctor reads the headers of all files, and tells how EXIF turns photos."""

import os
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
)
from PIL import Image

pytestmark = pytest.mark.usefixtures("doctors_place")

PHOTOS = COCO / "train2017"
SHAPES_MAPS = Path("data/shapes/annotations/training")
OUTSIDE = PHOTOS / "copy050.jpg"  # of a sample


@pytest.fixture
def many_photos(doctors_place) -> None:
    """More photos of the training than a sample."""

    def add(content: dict) -> None:
        image = content["images"][0]
        annotation = content["annotations"][0]
        for number in range(100):
            path = PHOTOS / f"copy{number:03}.jpg"
            write_image(path)
            ids = dict(id=100 + number)
            content["images"].append(dict(image, **ids, file_name=path.name))
            content["annotations"].append(dict(annotation, **ids, image_id=ids["id"]))

    edit_json(TRAIN_JSON, add)


def noise() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
    return cv2.imencode(".jpg", pixels)[1].tobytes()


def write_small(path: Path) -> None:
    cv2.imwrite(str(path), np.zeros((9, 7, 3), np.uint8))


def write_four_bands(path: Path) -> None:
    tif = cv2.imencode(".tif", np.full((HEIGHT, WIDTH, 4), 99, np.uint8))[1]
    path.write_bytes(tif.tobytes())


FILES = {
    "empty": (lambda path: path.write_bytes(b""), "the file is empty"),
    "text": (lambda path: path.write_bytes(b"<html>"), "not an image"),
    "cut off": (
        lambda path: path.write_bytes(noise()[:-1500]),
        "truncated",
    ),
    "four bands": (write_four_bands, "4 bands"),
}


@pytest.mark.parametrize("name", FILES)
def test_photo_with_a_fault_outside_the_sample_is_named(name, many_photos):
    break_data, *values = FILES[name]
    break_data(OUTSIDE)
    found = [finding for finding in findings(MASK_RCNN) if finding.code == "D315"]
    assert [finding.level for finding in found] == ["FAIL"]
    assert_named(found, [("D315", "train", OUTSIDE, *values)])


def test_later_start_reads_the_files_that_have_changed(many_photos):
    assert failures(MASK_RCNN) == []
    state = OUTSIDE.stat()
    OUTSIDE.write_bytes(bytes(state.st_size))
    os.utime(OUTSIDE, ns=(state.st_atime_ns, state.st_mtime_ns))
    changed = OUTSIDE.with_name("copy051.jpg")
    write_small(changed)
    assert_named(failures(MASK_RCNN), [("D315", "train", changed)])


def turn_photos(folder: Path) -> None:
    """Let EXIF turn photos by 90 degrees."""
    exif = Image.Exif()
    exif[0x0112] = 6
    for path in folder.glob("*.jpg"):
        Image.open(path).copy().save(path, exif=exif)


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
    "boxes": (MASK_RCNN, PHOTOS, turn_sizes, "D315"),
}


@pytest.mark.parametrize("config, photos, turn_labels, code", LABELS.values(), ids=LABELS)
def test_labels_drawn_over_stored_photos_are_named_and_the_fix_works(
    config, photos, turn_labels, code
):
    turn_photos(photos)
    (failure,) = failures(config)
    assert_named([failure], [(code, "train", "as stored")])
    option = "color_type=color_ignore_orientation"
    assert option.replace("=", "='") in failure.fix
    loading = "_dataloader.dataset.pipeline.0"
    assert (
        failures(config, *[f"{split}{loading}.{option}" for split in ("train", "val", "test")])
        == []
    )
    turn_labels()
    assert failures(config) == []
