"""What is wrong with a user's data is named before anything is written, alike in every format, by
the user's own file and line.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers.doctor_data import MASK_RCNN, assert_named, findings
from PIL import Image

from xcit_mm.checks.findings import Finding
from xcit_mm.checks.own_data import check_dataset
from xcit_mm.datasets import read_maps, read_objects
from xcit_mm.datasets.writing import write_dataset

SIDE = 128  # pixels of a photo
GOOD = (20, 20, 40, 40)
# The suffix of label files, and the name of the first object, by format.
NAMES = {
    "YOLO": "line 1 of",
    "COCO": "id 1 (image 0.jpg)",
}
FORMATS = pytest.mark.parametrize("data_format", NAMES)
Box = Sequence[float]
Labels = list[list[tuple[str, Box]]]  # of each photo, the class and box of each object


def write_photos(folder: Path, count: int) -> None:
    """Write photos whose contents differ."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        random = np.random.default_rng([number, *str(folder).encode()])
        pixels = random.integers(90, 130, (SIDE, SIDE, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")


def write_data(data_format: str, labels: Labels, side: int = SIDE, split: str = "train") -> None:
    """Write a data set of one split into `data`. The side is that which its labels state."""
    folder = Path("data") / split
    write_photos(folder, len(labels))
    classes = list(dict.fromkeys(name for objects in labels for name, _ in objects))
    images = [dict(id=i, file_name=f"{i}.jpg", width=side, height=side) for i in range(len(labels))]
    annotations: list[dict] = []
    for image, objects in enumerate(labels):
        lines = []
        for name, box in objects:
            x, y, w, h = box
            label = classes.index(name)
            lines.append(f"{label} {(x + w / 2) / SIDE} {(y + h / 2) / SIDE} {w / SIDE} {h / SIDE}")
            ids = dict(id=len(annotations) + 1, image_id=image, category_id=label)
            annotations.append(dict(ids, bbox=box, area=w * h, iscrowd=0))
        if data_format == "YOLO":
            (folder / f"{image}.txt").write_text("\n".join(lines))
    if data_format == "YOLO":
        Path("data/data.yaml").write_text(f"train: train\nnames: {json.dumps(classes)}")
    if data_format == "COCO":
        categories = [dict(id=number, name=name) for number, name in enumerate(classes)]
        coco = dict(images=images, annotations=annotations, categories=categories)
        (folder / f"instances_{split}.json").write_text(json.dumps(coco))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(needs_masks: bool = True) -> list[Finding]:
    """Return what is wrong with the objects of `data`."""
    found = check_dataset(read_objects(Path("data").resolve()), needs_masks)
    return [finding for finding in found if finding.level != "ok"]


def assert_only(found: list[Finding], level: str, code: str, *values: object) -> None:
    assert_named(found, [(code, *values)])
    assert found[0].level == level and found[0].fix


@FORMATS
def test_correct_data_have_no_findings(data_format):
    write_data(data_format, [[("thing", GOOD)], [("thing", GOOD), ("other", GOOD)]])
    assert checked() == []


OUTSIDE = (300, 300, 40, 40)
CUT_OFF = (100, 100, 60, 60)
TINY = (0.2, 0.2, 0.3, 0.3)


@FORMATS
@pytest.mark.parametrize(
    "labels, level, code, problem",
    [
        ([[("thing", OUTSIDE)]] * 3, "FAIL", "D408", "3 of 3"),
        ([[("thing", OUTSIDE)]] + [[("thing", GOOD)]] * 3, "note", "D408", "1 of 4"),
        ([[("thing", TINY)]] * 3, "FAIL", "D408", "3 of 3"),
        ([[("thing", CUT_OFF)], [("thing", GOOD)]], "note", "D411", "1 of 2"),
    ],
    ids=["outside", "one outside", "fractions", "cut off"],
)
def test_a_faulty_object_is_named_by_its_file_and_line(
    data_format, labels, level, code, problem, folder
):
    write_data(data_format, labels)
    assert_only(checked(), level, code, problem, NAMES[data_format])


@FORMATS
def test_a_small_object_in_the_corner_is_not_a_failure(data_format):
    write_data(data_format, [[("thing", (0, 0, 2, 2))], [("thing", GOOD)], [("thing", GOOD)]])
    assert [finding.level for finding in checked()] == ["note"]


def test_a_stated_size_that_is_not_that_of_the_photo_is_named():
    write_data("COCO", [[("thing", GOOD)], [("thing", GOOD)]], side=512)
    photo = Path("data/train/0.jpg").resolve()
    assert_only(checked(), "FAIL", "D315", photo, f"{SIDE} x {SIDE}", "512 x 512")


def test_labels_drawn_over_a_photo_as_stored_get_advice_that_needs_no_config():
    write_data("COCO", [[("thing", GOOD)]])
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = Path("data/train/0.jpg").resolve()
    Image.open(photo).resize((SIDE, SIDE // 2)).save(photo, exif=exif)
    json_path = photo.with_name("instances_train.json")
    json_path.write_text(json_path.read_text().replace('"height": 128', '"height": 64'))
    found = checked()
    assert_only(found, "FAIL", "D315", photo, "drawn as stored, and turned by EXIF")
    assert "remove the orientation" in found[0].fix and "pipelines" not in found[0].fix


def test_masks_are_checked_if_the_model_takes_them():
    write_data("COCO", [[("thing", GOOD)], [("thing", GOOD)]])
    path = Path("data/train/instances_train.json")
    content = json.loads(path.read_text())
    for annotation in content["annotations"]:
        annotation["segmentation"] = [[90, 90, 120, 90, 120, 120]]
    path.write_text(json.dumps(content))
    assert_only(checked(), "FAIL", "D412", "2 of 2", "id 1 (image 0.jpg)")
    assert checked(needs_masks=False) == []


def test_a_test_split_without_labels_beside_validation_is_not_checked():
    for split in ("train", "val"):
        write_data("COCO", [[("thing", GOOD)]], split=split)
    write_data("COCO", [[]], split="test")
    assert checked() == []


def test_a_written_copy_names_the_file_of_the_user(doctors_place):
    shutil.rmtree("data")
    write_data("YOLO", [[("thing", CUT_OFF)], [("thing", GOOD)]])
    label = Path("data/train/0.txt").resolve()
    write_dataset(read_objects(Path("data").resolve()), Path("data"), Path("copies").resolve())
    options = ["metainfo.classes=(thing,)", "data_root=''", "data_prefix.img=''"]
    options.append(f"ann_file={Path('copies/train.json').resolve()}")
    found = findings(MASK_RCNN, *[f"train_dataloader.dataset.{option}" for option in options])
    borders = [finding for finding in found if finding.code == "D411"]
    assert_named(borders, [("D411", "train", "1 of 2", f"line 1 of {label}")])


def write_maps(labels: Sequence[int], split: str = "train", classes: str = "ground\nthing") -> Path:
    """Write three photos and maps, and return the first map."""
    write_photos(Path("data/images", split), 3)
    folder = Path("data/masks", split).resolve()
    folder.mkdir(parents=True)
    for number in range(3):
        pixels = np.resize(np.array(labels, np.uint8), (SIDE, SIDE))
        Image.fromarray(pixels).save(folder / f"{number}.png")
    Path("data/classes.txt").write_text(classes)
    return folder / "0.png"


def checked_maps() -> list[Finding]:
    """Return what is wrong with the maps of `data`."""
    found = check_dataset(read_maps(Path("data").resolve()))
    return [finding for finding in found if finding.level != "ok"]


def test_correct_maps_have_no_findings():
    write_maps([0, 1, 255])
    write_maps([0, 1], split="val")
    assert checked_maps() == []


def test_a_negative_label_without_data_is_named_before_8_bits_make_it_a_class():
    """As GDAL writes it: -32768 would become 0."""
    write_maps([0, 1])
    map_path = Path("data/masks/train/0.png").resolve()
    map_path.unlink()
    pixels = np.zeros((SIDE, SIDE), np.int16)
    pixels[0] = -32768
    Image.fromarray(pixels).save(map_path.with_suffix(".tif"))
    found = [finding for finding in checked_maps() if finding.level == "FAIL"]
    assert_only(found, "FAIL", "D506", "label -32768", map_path.with_suffix(".tif"))


@pytest.mark.parametrize(
    "labels, classes, level", [([0, 1], "a\nb\nc", "note"), ([0, 255], "a\nb", "FAIL")]
)
def test_classes_without_pixels_are_named(labels, classes, level):
    write_maps(labels, classes=classes)
    assert_only(checked_maps(), level, "D513", classes[-1])
