"""Objects of each format are read as drawn, and what is wrong is one line with the file."""

import json

import pytest
from helpers.layouts import YOLO, coco, write_files
from PIL import Image

from xcit_mm.datasets import read_objects

OUTLINE = [12, 12, 20, 12, 20, 20, 12, 20]
PARTS = " ".join(str(value / 32) for value in OUTLINE)


def test_the_outline_of_an_object_is_kept(folder):
    with_score = f"0 {PARTS} 0.9"
    write_files(folder, "0.jpg", {"data.yaml": "names: [thing]", "0.txt": with_score})
    objects = read_objects(folder).training.objects
    assert objects.boxes.tolist() == [[12, 12, 8, 8]] and objects.areas.tolist() == [64]
    assert [[list(part) for part in mask] for mask in objects.masks] == [[OUTLINE]]


def test_a_photo_that_exif_turns_has_the_size_that_mmcv_reads(folder):
    exif = Image.Exif()
    exif[0x0112] = 6
    write_files(folder, "0.txt", {"data.yaml": "names: [thing]"})
    Image.new("RGB", (96, 64)).save(folder / "0.jpg", exif=exif)
    (image,) = read_objects(folder).training.images
    assert (image.width, image.height) == (64, 96)


def with_list(name: str, entries: list | None = ()) -> str:
    """Return a COCO json, one of whose lists is replaced."""
    return json.dumps(json.loads(coco("0.jpg")) | {name: entries})


YAML = {"data.yaml": "train: .\nnames: [other, thing]\n"}


@pytest.mark.parametrize(
    "texts, message",
    [
        ({"data.yaml": "train: ."}, "data.yaml cannot be read (it has no names): expected"),
        ({"data.yaml": "names: [a]\nval: ."}, "has no training images: expected 'train'"),
        ({"data.yaml": "names: [a]\ntrain: none"}, "none must be a folder or a list of images"),
        (
            {"data.yaml": "names: [a]\ntrain: train.txt", "train.txt": "none.jpg"},
            "train.txt lists none.jpg, which is not found",
        ),
        (YAML | {"0.txt": "0 .1 .1 .2 .2\n0 a"}, "0.txt has '0 a' in line 2: expected a class of"),
        (YAML | {"0.txt": "2 .1 .1 .2 .2"}, "line 1: expected a class of 0 to 1 with a box"),
        (YAML | {"0.jpg": "no image"}, "0.jpg cannot be read: it is not an image"),
        (
            {
                "data.yaml": "names: [a]\ntrain: t.txt",
                "t.txt": "1.jpg",
                "a/1.jpg": "",
                "b/1.jpg": "",
            },
            "1.jpg may be ",
        ),
        (YAML | {"labels/0.txt": YOLO, "annotations/0.txt": YOLO}, "0.jpg has the labels"),
        ({"data.yaml": "names: [Böden]".encode("latin-1")}, "data.yaml cannot be read"),
        ({"result.json": '{"annotations": ['}, "result.json is not in COCO's format"),
        ({"result.json": with_list("annotations")}, "and 0 annotations: annotate it"),
        ({"result.json": with_list("categories")}, "has 0 categories and"),
        ({"result.json": with_list("images")}, "lists no images"),
        ({"result.json": coco("none.jpg")}, "none.jpg of"),
        ({"a/train.json": coco("0.jpg"), "b/train.json": coco("0.jpg")}, "must have one"),
        ({}, "has no labels that are read, but 1 .jpg: expected a COCO json"),
    ],
)
def test_what_is_wrong_in_a_data_set_is_one_line_with_the_file(texts, message, folder):
    write_files(folder, "0.jpg", texts)
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        read_objects(folder)
    assert message in str(error.value) and "\n" not in str(error.value)


FORMATS_WITHOUT_A_READER = {
    "Darknet": ("0.txt", {"obj.data": "names = obj.names\n", "obj.names": "thing\n"}),
    "labels with classes.txt": ("0.txt", {"classes.txt": "thing\n"}),
    "Pascal VOC": ("", {"0.xml": "<annotation><object><name>thing</name></object></annotation>"}),
    "labelme": ("", {"0.json": '{"shapes": [{"label": "thing", "points": [[1, 1], [9, 9]]}]}'}),
}


@pytest.mark.parametrize(
    "patterns, texts", FORMATS_WITHOUT_A_READER.values(), ids=FORMATS_WITHOUT_A_READER
)
def test_a_format_without_a_reader_is_one_line_with_what_is_expected(patterns, texts, folder):
    write_files(folder, f"0.jpg {patterns}", texts)
    for data in (folder, *(folder / name for name in texts)):
        with pytest.raises(ValueError, match="has no labels that are read, but ") as error:
            read_objects(data)
        message = str(error.value)
        assert "\n" not in message
        expected = ["YOLO's folder with data.yaml", "docs/your-own-data.md", "docs/recipes.md"]
        assert all(part in message for part in expected)
