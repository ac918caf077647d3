"""Labels whose meaning is uncertain are refused in one line."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.layouts import POSE, annotated, coco, write_files, write_photo
from PIL import Image

from xcit_mm.datasets import read_maps, read_objects


def with_list_as_name(content: dict) -> None:
    content["categories"][0]["name"] = ["a", "b"]


UNCERTAIN = {
    "two formats": (
        "0.jpg 0.txt",
        {"a.json": coco("0.jpg"), "data.yaml": "names: [a]"},
        ("1 object of COCO (", "1 object of YOLO (", "move the files of all but one format"),
    ),
    "two descriptions": (
        "0.jpg 0.txt",
        {"a.yaml": "names: [a]", "b.yaml": "names: [b]"},
        ("is described by", "a.yaml", "b.yaml"),
    ),
    "keypoints that data.yaml does not declare": (
        "0.jpg",
        {"data.yaml": "names: [a]", "0.txt": POSE},
        ("look like boxes with keypoints", "kpt_shape"),
    ),
    "more names than nc": (
        "0.jpg 0.txt",
        {"data.yaml": "names: [a, b]\nnc: 1"},
        ("nc is 1, and there are 2 names",),
    ),
    "a text as names": (
        "0.jpg 0.txt",
        {"data.yaml": "nc: 1\nnames: fish"},
        ("data.yaml cannot be read (its names are the text 'fish', not a list)",),
    ),
    "a box that is null": (
        "0.jpg",
        {"a.json": annotated(lambda content: content["annotations"][0].update(bbox=None), "0.jpg")},
        ("a.json", "annotation 1 is None, not [x, y, width, height]"),
    ),
    "a label of two photos": (
        "0.jpg 0.png 0.txt",
        {"data.yaml": "names: [a]"},
        ("0.jpg and ", "0.png share the label "),
    ),
    "labels in a folder that is not known as one": (
        "images/0.jpg texts/0.txt",
        {"data.yaml": "names: [a]"},
        ("none of its labels, such as", "texts/0.txt, is of a photo, such as", "images/0.jpg"),
    ),
    "a name twice": (
        "0.jpg 0.txt",
        {"data.yaml": "names: [a, a]"},
        ("data.yaml has 'a' twice",),
    ),
    "a key twice": (
        "0.jpg 0.txt",
        {"data.yaml": "names: {0: a, 0: b}"},
        ("data.yaml cannot be read (the key 0 is written twice)",),
    ),
    "a name that is a list": (
        "0.jpg",
        {"a.json": annotated(with_list_as_name, "0.jpg")},
        ("a.json", "['a', 'b'] is not the name of a class"),
    ),
    "an image without a name": (
        "0.jpg",
        {"a.json": annotated(lambda content: content["images"][0].update(file_name=None), "0.jpg")},
        ("a.json", "the image of id 1 has the name None"),
    ),
    "photos that another split has": (
        "images/train/0.jpg",
        {"train.json": coco("0.jpg"), "val.json": coco("0.jpg")},
        ("0.jpg of", "val.json is not below"),
    ),
    "two names of one photo": (
        "x/0.jpg",
        {"a.json": coco("cam1/0.jpg", "cam2/0.jpg")},
        ("cam1/0.jpg and cam2/0.jpg may both be", "keep the photos in the folders"),
    ),
    "two names of one number": (
        "0.jpg 0.txt",
        {"data.yaml": "train: .\nnames: {0: a, '00': b}\n"},
        ("data.yaml cannot be read (two names have one number)",),
    ),
    "a name that is not UTF-8": (
        "0.jpg 0.txt",
        {"data.yaml": "names: [a]", os.fsdecode(b"caf\xe9.jpg"): b""},
        ("caf\\udce9.jpg' is not UTF-8: rename the file",),
    ),
}


@pytest.mark.parametrize("patterns, texts, parts", UNCERTAIN.values(), ids=UNCERTAIN)
def test_labels_of_uncertain_meaning_are_one_line(patterns, texts, parts, folder):
    write_files(folder, patterns, texts)
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        read_objects(folder)
    message = str(error.value)
    assert "\n" not in message and [part for part in parts if part not in message] == []


@pytest.mark.parametrize("name", ["1.jpg", "1.txt", "data.yaml"])
def test_a_link_to_a_missing_file_is_named_with_its_target(name, folder):
    write_files(folder, "{0,1}.jpg {0,1}.txt", {"a.yaml": "names: [a]"})
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(folder.parent / "disk" / name)
    missing = rf"{name} is a link to .*/disk/{name}, which does not exist: restore that file"
    with pytest.raises(FileNotFoundError, match=missing):
        read_objects(folder)


def soft_edges(path: Path) -> None:
    """Write a disc of 255 on 0, with edges of values between."""
    y, x = np.mgrid[:32, :32]
    disc = ((12 - np.hypot(y - 16, x - 16)).clip(-2, 2) / 4 + 0.5) * 255
    Image.fromarray(disc.astype(np.uint8)).save(path)


def truncated(path: Path) -> None:
    """Write the first half of a map's file."""
    Image.effect_noise((32, 32), 9).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def with_palette(path: Path, labels: np.ndarray, palette: list[int]) -> None:
    image = Image.fromarray(labels, "P")
    image.putpalette(palette)
    image.save(path)


LABELS = np.repeat(np.arange(2, dtype=np.uint8), 512).reshape(32, 32)
MAPS_OF_UNCERTAIN_MEANING: dict[str, tuple[Callable[[Path], object], str]] = {
    "JPEG": (lambda path: Image.fromarray(LABELS).save(path, "JPEG"), "changes labels"),
    "soft edges": (
        lambda path: [soft_edges(file) for file in path.parent.iterdir()],
        "soft edges between 0 and 255",
    ),
    "floats": (
        lambda path: Image.fromarray(LABELS.astype(np.float32)).save(path, "TIFF"),
        "labels are floats",
    ),
    "truncated": (truncated, "masks/1.png cannot be read: "),
    "colours": (write_photo, "colours instead of labels"),
    "another order of colours": (
        lambda path: with_palette(path, LABELS, [255, 0, 0, 0, 0, 0]),
        "(255, 0, 0) has label 1 in",
    ),
    "an empty line between names": (
        lambda path: (path.parents[1] / "classes.txt").write_text("\na\nb\n"),
        "classes.txt has an empty line 1",
    ),
    "a repeated name": (
        lambda path: (path.parents[1] / "classes.txt").write_text("a\na\n"),
        "'a' twice",
    ),
}


@pytest.mark.parametrize(
    "write, message", MAPS_OF_UNCERTAIN_MEANING.values(), ids=MAPS_OF_UNCERTAIN_MEANING
)
def test_maps_of_uncertain_meaning_are_one_line(write, message, folder):
    write_files(folder, "images/{0,1}.jpg")
    (folder / "masks").mkdir()
    with_palette(folder / "masks/0.png", LABELS, [0, 0, 0, 255, 0, 0])
    with_palette(folder / "masks/1.png", LABELS, [0, 0, 0, 255, 0, 0])
    write(folder / "masks/1.png")
    with pytest.raises(ValueError) as error:
        read_maps(folder)
    assert message in str(error.value) and "\n" not in str(error.value)
