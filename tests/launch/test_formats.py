"""Objects of each format are read as drawn, and what is wrong is one line with the file."""

import json
from pathlib import Path

import cv2
import pytest
from helpers.doctor_data import edit_json
from PIL import Image

from xcit_mm.launch.files import split_of
from xcit_mm.launch.formats import read_objects

OUTLINE = [12, 12, 20, 12, 20, 20, 12, 20]
PARTS = " ".join(str(value / 32) for value in OUTLINE)
POINTS = "".join(f"<v>{value + 1}</v>" for value in OUTLINE)
BOX = "<xmin>13</xmin><ymin>13</ymin><xmax>20</xmax><ymax>20</ymax>"
SHAPE = dict(label="thing", points=[OUTLINE[:2], OUTLINE[2:4], OUTLINE[4:6], OUTLINE[6:]])


def write_photo(path: Path, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (32, 32)).save(path, **options)


@pytest.fixture
def yolo(folder) -> Path:
    """A data set of YOLO of a photo with a polygon."""
    write_photo(folder / "train/0.jpg")
    (folder / "train/0.txt").write_text(f"1 {PARTS}\n")
    (folder / "data.yaml").write_text("train: train\nnames: [other, thing]\n")
    return folder


@pytest.mark.parametrize(
    "file, text",
    [
        ("0.txt", f"0 {PARTS}"),
        ("0.txt", f"0 {PARTS} 0.9"),  # with a score
        (
            "0.xml",
            f"<a><object><name>thing</name><bndbox>{BOX}</bndbox><polygon>{POINTS}</polygon>"
            "</object></a>",
        ),
        ("0.json", json.dumps(dict(shapes=[SHAPE]))),
    ],
)
def test_the_outline_of_an_object_is_kept(file, text, folder):
    write_photo(folder / "0.jpg")
    (folder / file).write_text(text)
    if file == "0.txt":
        (folder / "classes.txt").write_text("thing")
    (photo,) = read_objects(folder).training.photos
    (shape,) = photo.shapes
    assert (shape.label, list(shape.box)) == ("thing", [12, 12, 8, 8])
    assert [list(polygon) for polygon in shape.polygons] == [OUTLINE]


def test_shapes_of_a_group_of_labelme_are_one_object(folder):
    write_photo(folder / "0.jpg")
    parts = [dict(SHAPE, group_id=7), dict(SHAPE, group_id=7), SHAPE]
    (folder / "0.json").write_text(json.dumps(dict(shapes=parts)))
    (photo,) = read_objects(folder).training.photos
    assert [len(shape.polygons) for shape in photo.shapes] == [2, 1]


def test_a_photo_that_exif_turns_has_the_size_that_mmcv_reads(yolo):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (96, 64)).save(yolo / "train/0.jpg", exif=exif)
    assert read_objects(yolo).training.photos[0].size == (64, 96)
    assert cv2.imread(str(yolo / "train/0.jpg")).shape == (96, 64, 3)


@pytest.mark.parametrize(
    "file, text, message",
    [
        ("data.yaml", "names: [", "cannot be read (while parsing"),
        ("data.yaml", "train: train", "cannot be read ('names'): expected names"),
        ("data.yaml", "names: [a]\nval: train", "has no training images: expected 'train'"),
        ("data.yaml", "names: [a]\ntrain: none", "none must be a folder or a list of images"),
        ("train/0.txt", "0 .1 .1 .2 .2\n0 a", "0.txt has '0 a' in line 2: expected a class of"),
        ("train/0.txt", "2 .1 .1 .2 .2", "line 1: expected a class of 0 to 1 with a box or a"),
        ("train/0.jpg", "no image", "0.jpg cannot be read: cannot identify"),
    ],
)
def test_what_is_wrong_in_a_yolo_data_set_is_one_line_with_the_file(file, text, message, yolo):
    (yolo / file).write_text(text)
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        read_objects(yolo)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name, split",
    [
        ("images/train2017", "train"),
        ("Validation/images", "val"),
        ("test-photos", "test"),
        ("train/valley", "train"),
        ("photos/interval", None),
    ],
)
def test_folders_are_named_after_splits(name, split):
    assert split_of(Path(name)) == split


def test_photos_without_labels_have_no_objects(yolo):
    write_photo(yolo / "train/1.jpg")
    assert "2 photos, 1 without objects, 1 objects of 2 classes" in read_objects(yolo).describe()


def test_images_of_a_json_that_are_missing_are_counted(data):
    path = data / "annotations" / "instances_training.json"
    edit_json(path, lambda content: content["images"][0].update(file_name="none.jpg"))
    line = read_objects(path).describe()
    assert "7 photos" in line and line.endswith("1 train images that are missing, such as none.jpg")
