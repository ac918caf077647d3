"""Labels keep their meaning, or are left out by name, or are refused in one line."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.layouts import VOC, YOLO, coco, write_files, write_photo
from PIL import Image

from xcit_mm.datasets import read_maps, read_objects
from xcit_mm.datasets.writing import is_current, read_state, write_dataset

SHAPE = dict(label="thing", points=[[12, 12], [20, 12], [20, 20], [12, 20]])

DIAMOND = [[12, 16], [16, 12], [20, 16], [16, 20]]


def shape(shape_type: str) -> dict:
    return dict(SHAPE, shape_type=shape_type)


def annotated(change: Callable[[dict], object], *names: str) -> str:
    """Return a COCO json with an object in each image, changed."""
    content = json.loads(coco(*names))
    change(content)
    return json.dumps(content)


def with_rotated_box(content: dict) -> None:
    content["annotations"][1]["attributes"] = dict(rotation=45.0)


def with_one_photo_twice(content: dict) -> None:
    content["images"][1]["file_name"] = "0.jpg"


def with_unknown_category(content: dict) -> None:
    content["annotations"][1]["category_id"] = 9


def with_keypoints(content: dict) -> None:
    content["annotations"][0].update(keypoints=[13, 13, 2], num_keypoints=1)


def with_name(value: object) -> Callable[[dict], object]:
    return lambda content: content["categories"][0].update(name=value)


ROTATION = (
    "<attributes><attribute><name>rotation</name><value>45.0</value></attribute></attributes>"
)
ROTATED = VOC.replace("</object>", f"{ROTATION}</object>")
LISTS = {"obj.names": "thing\n", "train.txt": "d/obj/0.jpg\n", "test.txt": "d/obj/1.jpg\n"}
POSE = "0 .5 .5 .25 .25 .4 .4 2 .6 .6 1\n"
# Files beside photos, and what is read of them: classes, and the description of the data set.
MEANT = {
    "names that YAML reads as truth values": (
        "0.jpg",
        {"data.yaml": "train: .\nnames: [no, 'on', ~, 1.0]\n", "0.txt": "1 .5 .5 .25 .25"},
        ("no", "on", "~", "1.0"),
        "1 photo, 1 object of 4 classes",
    ),
    "one name": (
        "0.jpg",
        {"data.yaml": "train: .\nnames: fish\n", "0.txt": YOLO},
        ("fish",),
        "1 photo, 1 object of 1 class",
    ),
    "a file of names": (
        "0.jpg",
        {"data.yaml": "train: .\nnames: my.names\n", "my.names": "fish\n", "0.txt": YOLO},
        ("fish",),
        "1 photo, 1 object of 1 class",
    ),
    "lists of Darknet": (
        "obj/{0,1,2}.jpg obj/{0,1,2}.txt",
        LISTS | {"obj.data": "train = d/train.txt\nvalid = d/test.txt\nnames = d/obj.names\n"},
        ("thing",),
        "1 photo, 1 object of 1 class; held out 1 photo; left out: 1 photo in no split "
        "(obj/2.jpg), 1 label of photos in no split (obj/2.txt)",
    ),
    "lists beside names": (
        "obj/{0,1}.jpg obj/{0,1}.txt",
        LISTS,
        ("thing",),
        "1 photo, 1 object of 1 class; held out 1 photo",
    ),
    "names of LabelImg in each split": (
        "{train,val}/0.jpg {train,val}/0.txt",
        {"train/classes.txt": "thing", "val/classes.txt": "thing"},
        ("thing",),
        "1 photo, 1 object of 1 class; held out 1 photo; left out: 1 other file (val/classes.txt)",
    ),
    "a folder of no split beside train": (
        "{train,val,more}/0.jpg {train,val,more}/0.xml",
        {},
        ("thing",),
        "1 photo, 1 object of 1 class; held out 1 photo; left out: 1 photo in no split "
        "(more/0.jpg), 1 label of photos in no split (more/0.xml)",
    ),
    "keypoints": (
        "0.jpg",
        {"data.yaml": "train: .\nnames: [a]\nkpt_shape: [2, 3]\n", "0.txt": POSE},
        ("a",),
        "1 photo, 1 object of 1 class; left out: 1 set of keypoints (0.txt)",
    ),
    "keypoints of COCO": (
        "0.jpg",
        {"a.json": annotated(with_keypoints, "0.jpg")},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 set of keypoints (a.json)",
    ),
    "an xml of GDAL beside YOLO": (
        "0.jpg",
        {"classes.txt": "thing", "0.txt": YOLO, "0.jpg.aux.xml": "<PAMDataset/>"},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 other file (0.jpg.aux.xml)",
    ),
    "shapes that are not read": (
        "{0,1,2}.jpg",
        {
            "0.json": json.dumps(dict(shapes=[SHAPE])),
            "1.json": json.dumps(dict(shapes=[SHAPE, shape("circle")])),
            "2.json": json.dumps(dict(shapes=[shape("rotation")])),
        },
        ("thing",),
        "1 photo, 1 object of 1 class; left out: "
        "1 photo with shapes of the type circle (1.jpg), "
        "1 object that cannot be read: shapes of the type circle (1.json), "
        "1 object beside others that cannot be read (1.json), "
        "1 photo with shapes of the type rotation (2.jpg), "
        "1 object that cannot be read: shapes of the type rotation (2.json)",
    ),
    "rectangles of four corners, one of them rotated": (
        "{0,1}.jpg",
        {
            "0.json": json.dumps(
                dict(
                    shapes=[dict(SHAPE, shape_type="rectangle")], imageWidth="32", imageHeight=[32]
                )
            ),
            "1.json": json.dumps(
                dict(shapes=[dict(SHAPE, points=DIAMOND, shape_type="rectangle")])
            ),
        },
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 photo with rotated boxes (1.jpg), "
        "1 object that cannot be read: rotated boxes (1.json)",
    ),
    "a rotated box": (
        "{0,1}.jpg",
        {"a.json": annotated(with_rotated_box, "0.jpg", "1.jpg")},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 photo with rotated boxes (1.jpg), "
        "1 object of photos with rotated boxes (id 2 of a.json)",
    ),
    "one photo under two ids": (
        "0.jpg",
        {"a.json": annotated(with_one_photo_twice, "0.jpg", "1.jpg")},
        ("thing",),
        "1 photo, 2 objects of 1 class; left out: "
        "1 image of a photo that is listed twice: both have its objects (0.jpg)",
    ),
    "null as name": (
        "0.jpg",
        {"a.json": annotated(with_name(None), "0.jpg")},
        ("null",),
        "1 photo, 1 object of 1 class",
    ),
    "photos of no json": (
        "{0,1}.jpg",
        {"a.json": coco("0.jpg")},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 photo that no json lists (1.jpg)",
    ),
    "a description in capital letters, with null for no split": (
        "0.jpg 0.txt",
        {"DATA.YAML": "train: .\nval: null\ntest: ~\nnames: [a]\n", "x.yaml": "hostnames: [b]"},
        ("a",),
        "1 photo, 1 object of 1 class; left out: 1 other file (x.yaml)",
    ),
    "one description by two names": (
        "0.jpg 0.txt",
        {"store/0.yaml": "train: .\nnames: [a]\n", "data.yaml": "-> store/0.yaml"},
        ("a",),
        "1 photo, 1 object of 1 class",
    ),
    "a polygon in the middle, whose first points may be a box": (
        "0.jpg",
        {"classes.txt": "a", "0.txt": "0 .4 .4 .6 .4 .6 .6 .4 .6\n"},
        ("a",),
        "1 photo, 1 object of 1 class",
    ),
    "polygons that begin in a corner": (
        "0.jpg",
        {"classes.txt": "a", "0.txt": "0 0 0 .5 0 .5 .5 0 .5 0 0\n"},
        ("a",),
        "1 photo, 1 object of 1 class",
    ),
    "a rotated box of VOC": (
        "{0,1}.jpg 0.xml",
        {"1.xml": ROTATED},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 photo with rotated boxes (1.jpg), "
        "1 object that cannot be read: rotated boxes (1.xml)",
    ),
    "CVAT's list of all photos": (
        "JPEGImages/{0,1}.jpg Annotations/{0,1}.xml",
        {"ImageSets/Main/default.txt": "0\n1\n"},
        ("thing",),
        "2 photos, 2 objects of 1 class; left out: 1 other file (ImageSets/Main/default.txt)",
    ),
    "lists of VOC with quotes, columns, folders, suffixes and a missing photo": (
        "JPEGImages/a/{0,1,2}.jpg Annotations/a/{0,1,2}.xml",
        {
            "ImageSets/Main/trainVal.txt": '"a/0.jpg"\na\\1  1\na/2  1',
            "ImageSets/Main/VAL.txt": "a/2 -1\n7.jpg",
        },
        ("thing",),
        "2 photos, 2 objects of 1 class; held out 1 photo; "
        "left out: 1 photo of a list that is missing (7)",
    ),
    "lists of VOC for segmentation": (
        "JPEGImages/{0,1}.jpg Annotations/{0,1}.xml",
        {"ImageSets/Segmentation/train.txt": "0\n", "ImageSets/Segmentation/val.txt": "1\n"},
        ("thing",),
        "1 photo, 1 object of 1 class; held out 1 photo",
    ),
    "lists of VOC for each class": (
        "JPEGImages/{0,1,2}.jpg Annotations/{0,1,2}.xml",
        {
            "ImageSets/Main/thing_train.txt": "0  1\n",
            "ImageSets/Main/thing_val.txt": "1 -1\n",
            "ImageSets/Main/train_trainval.txt": "0 0\n1  1\n",
        },
        ("thing",),
        "1 photo, 1 object of 1 class; held out 1 photo; left out: 1 photo in no split "
        "(JPEGImages/2.jpg), 1 label of photos in no split (Annotations/2.xml)",
    ),
    "lists of VOC of another machine, in a folder of small letters": (
        "JPEGImages/{0,1}.jpg Annotations/{0,1}.xml",
        {"imagesets/train.txt": "/data/JPEGImages/0.jpg\n", "imagesets/val.txt": "C:\\x\\1.jpg\n"},
        ("thing",),
        "1 photo, 1 object of 1 class; held out 1 photo",
    ),
    "lists of photos with labels beside one folder": (
        "train/images/{0,1}.jpg train/labels/{0,1}.xml",
        {
            "train_list.txt": "images/0.jpg labels/0.xml\n",
            "val_list.txt": "images/1.jpg labels/1.xml\n",
            "test.txt": "a note",
        },
        ("thing",),
        "1 photo, 1 object of 1 class; held out 1 photo; left out: 1 other file (test.txt)",
    ),
    "a list beside folders of splits": (
        "{train,val}/0.jpg {train,val}/0.json",
        {"train.txt": "train/0.jpg"},
        ("thing",),
        "1 photo, 1 object of 1 class; held out 1 photo; left out: 1 other file (train.txt)",
    ),
    "a folder for tests that Roboflow names and does not have": (
        "{train,valid}/images/0.jpg {train,valid}/labels/0.txt",
        {
            "data.yaml": "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n"
            "names: [a]\n"
        },
        ("a",),
        "1 photo, 1 object of 1 class; held out 1 photo; "
        "left out: 1 folder of test that is missing (../test/images)",
    ),
    "capital letters of CVAT": (
        "images/{0,1}.jpg labels/{0,1}.txt",
        {
            "data.yaml": "Train: a.txt\nValidation: b.txt\nNames: [a]\n",
            "a.txt": "images/0.jpg",
            "b.txt": "images/1.jpg",
        },
        ("a",),
        "1 photo, 1 object of 1 class; held out 1 photo",
    ),
    "an object of an unknown category": (
        "{0,1}.jpg",
        {"a.json": annotated(with_unknown_category, "0.jpg", "1.jpg")},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: "
        "1 photo with objects of an unknown category (1.jpg), "
        "1 object of photos with objects of an unknown category (id 2 of a.json)",
    ),
    "a stray description": (
        "0.jpg",
        {"a.json": coco("0.jpg"), "data.yaml": "train: .\nnames: [car]\n"},
        ("thing",),
        "1 photo, 1 object of 1 class; left out: 1 file of YOLO without objects (data.yaml)",
    ),
}


@pytest.mark.parametrize("patterns, texts, classes, description", MEANT.values(), ids=MEANT)
def test_labels_keep_their_meaning(patterns, texts, classes, description, folder):
    links = {name: text for name, text in texts.items() if text.startswith("-> ")}
    write_files(folder / "d", patterns, {name: texts[name] for name in texts if name not in links})
    for name, target in links.items():
        (folder / "d" / name).symlink_to(target.removeprefix("-> "))
    dataset = read_objects(folder / "d")
    assert (dataset.classes, dataset.describe()) == (classes, description)


UNCERTAIN = {
    "two formats": (
        "0.jpg 0.xml",
        {"a.json": coco("0.jpg")},
        ("1 object of COCO (", "1 object of Pascal VOC (", "move the files of all but one format"),
    ),
    "a json beside a broken description": (
        "0.jpg",
        {"a.json": coco("0.jpg"), "data.yaml": "train: none\nnames: [a]"},
        ("none must be a folder", "if only COCO (", "move the files of YOLO elsewhere"),
    ),
    "two descriptions": (
        "0.jpg 0.txt",
        {"a.yaml": "names: [a]", "b.yaml": "names: [b]"},
        ("is described by", "a.yaml", "b.yaml"),
    ),
    "keypoints that data.yaml does not declare": (
        "0.jpg",
        {"classes.txt": "a", "0.txt": POSE},
        ("look like boxes with keypoints", "kpt_shape"),
    ),
    "more names than nc": (
        "0.jpg 0.txt",
        {"data.yaml": "names: [a, b]\nnc: 1"},
        ("nc is 1, and there are 2 names",),
    ),
    "a missing file of names": (
        "0.jpg 0.txt",
        {"data.yaml": "names: no.names"},
        ("the file no.names does not exist",),
    ),
    "a box that is null": (
        "0.jpg",
        {"a.json": annotated(lambda content: content["annotations"][0].update(bbox=None), "0.jpg")},
        ("a.json", "annotation 1 is None, not [x, y, width, height]"),
    ),
    "a value of VOC that is no number": (
        "0.jpg",
        {"0.xml": VOC.replace("<xmin>13", "<xmin>nan")},
        ("0.xml has a value in object 1 that is not a number",),
    ),
    "an object of VOC without a box": (
        "0.jpg",
        {"0.xml": "<annotation><object><name>a</name></object></annotation>"},
        ("0.xml cannot be read (an object has no bndbox)",),
    ),
    "a label of two photos": (
        "0.jpg 0.png 0.txt",
        {"classes.txt": "a"},
        ("0.jpg and ", "0.png share the label "),
    ),
    "a label that names another photo": (
        "{0,1}.jpg",
        {"0.json": json.dumps(dict(shapes=[SHAPE], imagePath="1.jpg"))},
        ("0.json is of 1.jpg, as it says, and has the name of 0.jpg",),
    ),
    "two labels of a photo": (
        "images/0.jpg images/0.txt labels/0.txt",
        {"classes.txt": "a"},
        ("images/0.jpg has the labels", "images/0.txt and", "labels/0.txt: remove one"),
    ),
    "an area that is a list": (
        "0.jpg",
        {"a.json": annotated(lambda content: content["annotations"][0].update(area=[1]), "0.jpg")},
        ("a.json", "the area of annotation 1 is [1], not a number"),
    ),
    "a name twice with spaces": (
        "0.jpg 0.txt",
        {"data.yaml": "names: [a, 'a ']"},
        ("data.yaml has 'a' twice",),
    ),
    "an empty line between names": (
        "0.jpg 0.txt",
        {"classes.txt": "a\n\nb\n"},
        ("classes.txt has an empty line 2: name the class",),
    ),
    "labels in a folder that is not known as one": (
        "images/0.jpg jsons/0.json",
        {},
        ("none of its labels, such as", "jsons/0.json, is of a photo, such as", "images/0.jpg"),
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
        {"a.json": annotated(with_name(["a", "b"]), "0.jpg")},
        ("a.json", "['a', 'b'] is not the name of a class"),
    ),
    "an image without a name": (
        "0.jpg",
        {"a.json": annotated(lambda content: content["images"][0].update(file_name=None), "0.jpg")},
        ("a.json", "the image of id 1 has the name None"),
    ),
    "an xml of an unknown encoding": (
        "0.jpg",
        {"0.xml": f"<?xml version='1.0' encoding='foo'?>{VOC}"},
        ("0.xml cannot be read (unknown encoding",),
    ),
    "HEIC named as JPEG": (
        "",
        {"classes.txt": "a", "0.jpg": b"\0\0\0\x18ftypheic" + bytes(64), "0.txt": YOLO},
        ("0.jpg cannot be read: it is HEIC or AVIF: convert it to JPEG",),
    ),
    "only photos with unread shapes": (
        "0.jpg",
        {"0.json": json.dumps(dict(shapes=[shape("circle")]))},
        ("no photo for training is left", "shapes of the type circle (0.jpg)"),
    ),
}


@pytest.mark.parametrize("patterns, texts, parts", UNCERTAIN.values(), ids=UNCERTAIN)
def test_labels_of_uncertain_meaning_are_one_line(patterns, texts, parts, folder):
    write_files(folder, patterns, texts)
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        read_objects(folder)
    message = str(error.value)
    assert "\n" not in message and [part for part in parts if part not in message] == []


def test_a_file_that_is_given_decides_between_formats(folder):
    write_files(folder, "{0,1}.jpg 0.xml 0.txt", {"a.json": coco("1.jpg"), "classes.txt": "b"})
    assert read_objects(folder / "a.json").classes == ("thing",)
    assert read_objects(folder / "classes.txt").classes == ("b",)


def test_of_two_formats_that_stays_whose_files_are_not_moved(folder):
    write_files(folder / "d", "{0,1}.jpg 0.xml 1.xml", {"a.json": coco("1.jpg")})
    write_files(folder / "d", "", {"broken.yaml": "names: [b]\ntrain: none", "0.txt": YOLO})
    with pytest.raises(ValueError, match="none must be"):
        read_objects(folder / "d")
    (folder / "d/broken.yaml").rename(folder / "broken.yaml")
    with pytest.raises(ValueError, match=r"COCO .* Pascal VOC"):
        read_objects(folder / "d")
    (folder / "d/a.json").rename(folder / "a.json")
    assert read_objects(folder / "d").describe().startswith("2 photos, 2 objects of 1 class")


@pytest.mark.parametrize("source", [{"a.json": coco("0.jpg")}, {"classes.txt": "a"}])
def test_results_in_the_folder_of_the_data_are_no_data(source, folder):
    """A user trains in the folder of the data, and predicts there."""
    write_files(folder, "0.jpg 0.txt" if "classes.txt" in source else "0.jpg", source)
    first = read_objects(folder)
    write_dataset(first, folder / "a-coco")
    log = {"a.py": "", "work_dirs/a/1/scalars.json": "{}", "other/last_checkpoint": ""}
    results = {
        "out/run.json": "{}",
        "out/journal/1.jsonl": "",
        "out/predictions.json": coco("0.jpg"),
    }
    write_files(folder, "work_dirs/a/predictions.jpg", log | results)
    second = read_objects(folder)
    assert second.left_out.reasons[("folder", "of results")] == [
        "a-coco",
        "other",
        "out",
        "work_dirs",
    ]
    assert second.describe().startswith(first.describe())
    state = read_state(folder / "a-coco")
    assert state is not None and is_current(state)


def test_photos_named_as_files_of_results_are_data(folder):
    write_files(folder, "work_dirs/d/{source,run}.jpg work_dirs/d/{source,run}.json")
    assert len(read_objects(folder / "work_dirs").training.images) == 2


def test_a_pipe_is_not_read(folder):
    write_files(folder, "0.jpg 0.txt", {"classes.txt": "a"})
    os.mkfifo(folder / "data.yaml")
    assert read_objects(folder).describe() == "1 photo, 1 object of 1 class"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_texts_of_windows_are_read(encoding, folder):
    write_files(
        folder, "0.jpg", {"classes.txt": "é".encode(encoding), "0.txt": YOLO.encode(encoding)}
    )
    assert read_objects(folder).classes == ("é",)


def test_a_yaml_that_is_given_describes_its_folder_whatever_its_name(folder):
    write_files(folder / "banner", "0.jpg 0.txt", {"data.yaml": "train: .\nnames: [a]\n"})
    write_files(folder, "other.jpg")
    description = read_objects(folder / "banner/data.yaml").describe()
    assert description == "1 photo, 1 object of 1 class"


@pytest.mark.parametrize("place", ["test set", "elsewhere/images/train"])
def test_photos_of_an_absolute_path_or_in_a_folder_named_as_a_split_are_found(place, folder):
    photos = folder / place
    labels = Path(str(photos).replace("images", "labels"))
    write_files(photos, "0.jpg")
    write_files(labels, "0.txt")
    write_files(folder / "test set", "", {"data.yaml": f"train: {photos}\nnames: [a]\n"})
    assert read_objects(folder / "test set").describe() == "1 photo, 1 object of 1 class"


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


def test_a_colour_of_several_labels_says_nothing_about_the_palette(folder):
    write_files(folder, "images/{0,1}.jpg")
    (folder / "masks").mkdir()
    labels = np.repeat(np.arange(3, dtype=np.uint8), 512)[: 32 * 32].reshape(32, 32)
    labels[0] = 2
    with_palette(folder / "masks/0.png", labels, [0, 0, 0, 255, 0, 0, 0, 0, 0])
    with_palette(folder / "masks/1.png", np.full_like(labels, 2), [9, 9, 9, 255, 0, 0, 0, 0, 0])
    assert len(read_maps(folder).training.images) == 2
