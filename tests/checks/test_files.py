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
    write_map,
)
from PIL import Image

pytestmark = pytest.mark.usefixtures("doctors_place")

PHOTOS = COCO / "train2017"
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
    "another size": (write_small, "7 x 9", f"{WIDTH} x {HEIGHT}"),
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


TURNS = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_270}  # by EXIF's orientation


def write_turned(path: Path, orientation: int, is_drawn_upright: bool) -> Image.Image:
    """Write a photo that EXIF turns, and return where its object is, as somebody draws it."""
    pixels = np.random.default_rng(0).integers(90, 130, (HEIGHT, WIDTH)).astype(np.uint8)
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    labels[6:26, 8:28] = 1
    pixels[labels > 0] = 220
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif)
    drawn = Image.fromarray(labels)
    return drawn.transpose(TURNS[orientation]) if is_drawn_upright else drawn


def write_turned_maps(orientation: int, is_drawn_upright: bool) -> None:
    images = Path("data/shapes/images/training")
    maps = Path("data/shapes/annotations/training")
    for path in maps.glob("*.png"):
        labels = write_turned(images / f"{path.stem}.jpg", orientation, is_drawn_upright)
        labels.point(lambda label: label + 1).save(path)
    write_map(maps / "9.png", [1, 2, 3, 4, 5])
    write_image(images / "9.jpg")


def write_turned_json(orientation: int, is_drawn_upright: bool) -> None:
    def draw(content: dict) -> None:
        for image in content["images"]:
            path = PHOTOS / image["file_name"]
            labels = write_turned(path, orientation, is_drawn_upright)
            left, top, right, bottom = labels.getbbox()
            box = [left, top, right - left, bottom - top]
            polygon = [left, top, right, top, right, bottom, left, bottom]
            image.update(width=labels.width, height=labels.height)
            for annotation in content["annotations"]:
                if annotation["image_id"] == image["id"]:
                    annotation.update(bbox=box, segmentation=[polygon])

    edit_json(TRAIN_JSON, draw)


WRITERS = [(SHAPES, write_turned_maps, "D511"), (MASK_RCNN, write_turned_json, "D315")]


@pytest.mark.parametrize("config, write, code", WRITERS, ids=["maps", "boxes"])
@pytest.mark.parametrize("orientation", [3, 6])
def test_labels_drawn_over_stored_photos_are_named_and_the_fix_works(
    config, write, code, orientation
):
    write(orientation, is_drawn_upright=True)
    assert not [finding for finding in findings(config) if finding.code == code]
    write(orientation, is_drawn_upright=False)
    (finding,) = [finding for finding in findings(config) if finding.code == code]
    assert_named([finding], [(code, "train", "as stored")])
    assert finding.level == ("FAIL" if orientation == 6 else "note")  # the sizes differ
    option = "color_type=color_ignore_orientation"
    assert option.replace("=", "='") in finding.fix
    loading = "_dataloader.dataset.pipeline.0"
    options = [f"{split}{loading}.{option}" for split in ("train", "val", "test")]
    assert not [finding for finding in findings(config, *options) if finding.code == code]
