"""Data sets of YOLO and Pascal VOC become COCO jsons for training, and others are described."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.doctor_data import edit_json
from PIL import Image

from xcit_mm.launch.files import split_of
from xcit_mm.launch.formats import read_objects

CLASSES = ("circle", "square")
SPLITS = {"training": "train", "validation": "valid"}


def read_split(data: Path, split: str) -> dict:
    return json.loads((data / "annotations" / f"instances_{split}.json").read_text())


def objects_of(content: dict, image: dict) -> list[dict]:
    return [entry for entry in content["annotations"] if entry["image_id"] == image["id"]]


def corners_of(annotation: dict) -> list[float]:
    """Return x and y of the four corners of an object's box."""
    x, y, width, height = annotation["bbox"]
    return [x, y, x + width, y, x + width, y + height, x, y + height]


def yolo_line(annotation: dict, image: dict, polygons: bool) -> str:
    x, y, width, height = annotation["bbox"]
    values = [x + width / 2, y + height / 2, width, height]
    if polygons:
        values = corners_of(annotation)
    size = (image["width"], image["height"])
    parts = [value / size[place % 2] for place, value in enumerate(values)]
    return " ".join(map(str, [annotation["category_id"] - 1, *parts]))


def write_yolo(data: Path, root: Path, polygons: bool = False) -> Path:
    """Write a data set in COCO's format as Ultralytics and Roboflow do."""
    for split, name in SPLITS.items():
        content = read_split(data, split)
        shutil.copytree(data / "images" / split, root / name / "images")
        (root / name / "labels").mkdir()
        for image in content["images"]:
            lines = [yolo_line(entry, image, polygons) for entry in objects_of(content, image)]
            file = root / name / "labels" / image["file_name"]
            file.with_suffix(".txt").write_text("\n".join(lines))
    (root / "data.yaml").write_text(
        "train: ../train/images\nval: ../valid/images\nnc: 2\nnames: [circle, square]\n"
    )
    return root


def voc_object(annotation: dict, names: dict[int, str], polygons: bool) -> str:
    x, y, width, height = annotation["bbox"]
    sides = dict(xmin=x + 1, ymin=y + 1, xmax=x + width, ymax=y + height)
    box = "".join(f"<{side}>{value}</{side}>" for side, value in sides.items())
    points = [f"<v>{value + 1}</v>" for value in corners_of(annotation)]
    polygon = f"<polygon>{''.join(points)}</polygon>" if polygons else ""
    name = names[annotation["category_id"]]
    return f"<object><name>{name}</name><bndbox>{box}</bndbox>{polygon}</object>"


def write_voc(data: Path, root: Path, polygons: bool = False) -> Path:
    """Write a data set in COCO's format as that of VOC2012."""
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for split, name in (("validation", "val"), ("training", "train")):
        content = read_split(data, split)
        names = {category["id"]: category["name"] for category in content["categories"]}
        stems = []
        for image in content["images"]:
            stem = f"{name}{Path(image['file_name']).stem}"
            stems.append(stem)
            photo = data / "images" / split / image["file_name"]
            shutil.copy(photo, root / "JPEGImages" / f"{stem}.jpg")
            objects = [voc_object(entry, names, polygons) for entry in objects_of(content, image)]
            xml = f"<annotation>{''.join(objects)}</annotation>"
            (root / "Annotations" / f"{stem}.xml").write_text(xml)
        (root / "ImageSets" / "Main" / f"{name}.txt").write_text("\n".join(stems))
    return root


def boxes_of(content: dict) -> np.ndarray:
    """Return all boxes with their categories, sorted."""
    return np.array(
        sorted((*entry["bbox"], entry["category_id"]) for entry in content["annotations"])
    )


@pytest.mark.parametrize("polygons", [False, True], ids=["boxes", "polygons"])
@pytest.mark.parametrize("write", [write_yolo, write_voc])
def test_yolo_and_pascal_voc_become_coco_jsons_beside_the_config(
    write, polygons, trained, data, started, folder
):
    cfg = started(trained, "--data", write(data, folder / "other", polygons))
    assert cfg.train_dataloader.dataset.metainfo.classes == CLASSES
    assert cfg.model.type == ("MaskRCNN" if polygons else "FasterRCNN")
    assert Path(cfg.train_dataloader.dataset.ann_file).parent == folder / "other-coco"
    for dataset, split in (
        (cfg.train_dataloader.dataset, "training"),
        (cfg.val_dataloader.dataset, "validation"),
    ):
        written = json.loads(Path(dataset.ann_file).read_text())
        original = read_split(data, split)
        assert len(written["images"]) == len(original["images"])
        assert boxes_of(written) == pytest.approx(boxes_of(original))
        for annotation in written["annotations"]:
            outline = [pytest.approx(corners_of(annotation))] if polygons else []
            assert annotation["segmentation"] == outline
            assert annotation["iscrowd"] == 0


def test_a_photo_that_exif_turns_has_the_size_that_mmcv_reads(data, folder):
    exif = Image.Exif()
    exif[0x0112] = 6
    yolo = write_yolo(data, folder / "yolo")
    Image.new("RGB", (96, 64)).save(yolo / "train" / "images" / "00000.jpg", exif=exif)
    assert read_objects(yolo).training.photos[0].size == (64, 96)
    assert cv2.imread(str(yolo / "train" / "images" / "00000.jpg")).shape == (96, 64, 3)


LABELS = "train/labels/00000.txt"


@pytest.mark.parametrize(
    "file, text, message",
    [
        ("data.yaml", "names: [", "cannot be read (while parsing"),
        ("data.yaml", "train: train", "cannot be read ('names'): expected names"),
        ("data.yaml", "names: [a, b]\nval: valid", "has no training images: expected 'train'"),
        ("data.yaml", "names: [a]\ntrain: none", "none must be a folder or a list of images"),
        (
            LABELS,
            "0 0.1 0.1 0.2 0.2\n0 a",
            "00000.txt has '0 a' in line 2: expected a class of 0 to 1",
        ),
        (
            LABELS,
            "2 0.1 0.1 0.2 0.2",
            "in line 1: expected a class of 0 to 1 with a box or a polygon",
        ),
        (LABELS, "1 0.1", "has '1 0.1' in line 1: expected a class"),
        ("train/images/00000.jpg", "no image", "00000.jpg cannot be read: cannot identify"),
    ],
)
def test_what_is_wrong_in_a_yolo_data_set_is_one_line_with_the_file(
    file, text, message, data, folder
):
    yolo = write_yolo(data, folder / "yolo")
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


def test_photos_without_labels_have_no_objects(data, folder):
    yolo = write_yolo(data, folder / "yolo")
    (yolo / LABELS).unlink()
    photos = read_objects(yolo).training.photos
    assert len(photos) == 8 and not photos[0].shapes


def test_a_json_may_list_images_that_are_missing(data):
    path = data / "annotations" / "instances_training.json"
    edit_json(path, lambda content: content["images"][0].update(file_name="none.jpg"))
    assert "7 photos" in read_objects(path).describe()
    assert "left out: 1 images that are missing" in read_objects(path).describe()
