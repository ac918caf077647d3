"""What is wrong with a user's data is named before anything is written, by the user's own file and
line.
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
from xcit_mm.datasets.old_writing import write_dataset

SIDE = 128  # pixels of a photo
GOOD = (20, 20, 40, 40)
OUTSIDE = (300, 300, 40, 40)
CUT_OFF = (100, 100, 60, 60)
Box = Sequence[float]


def write_photos(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        Image.new("RGB", (SIDE, SIDE), (90, 110, 130)).save(folder / f"{number}.jpg")


def write_coco(boxes: Sequence[Box], split: str = "train") -> Path:
    """Write a split of photos with a box each, and return its json."""
    folder = Path("data", split).resolve()
    write_photos(folder, len(boxes))
    images = [
        dict(id=number, file_name=f"{number}.jpg", width=SIDE, height=SIDE)
        for number in range(len(boxes))
    ]
    annotations = [
        dict(id=number + 1, image_id=number, category_id=0, bbox=box, area=box[2] * box[3])
        for number, box in enumerate(boxes)
    ]
    categories = [dict(id=0, name="thing")]
    path = folder / f"instances_{split}.json"
    path.write_text(json.dumps(dict(images=images, annotations=annotations, categories=categories)))
    return path


def write_yolo(boxes: Sequence[Box]) -> Path:
    """Write photos of the training with a box each, and return the label file of the first."""
    folder = Path("data/train").resolve()
    write_photos(folder, len(boxes))
    for number, (x, y, w, h) in enumerate(boxes):
        values = (x + w / 2, y + h / 2, w, h)
        line = " ".join(str(value / SIDE) for value in values)
        (folder / f"{number}.txt").write_text(f"0 {line}")
    Path("data/data.yaml").write_text("train: train\nnames: [thing]")
    return folder / "0.txt"


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


FORMATS = {
    "COCO": (write_coco, "id 1 (image 0.jpg)"),
    "YOLO": (write_yolo, "line 1 of"),
}


@pytest.mark.parametrize("write, name", FORMATS.values(), ids=FORMATS)
def test_a_faulty_object_is_named_by_its_file_and_line(write, name):
    write([OUTSIDE, GOOD, GOOD])
    assert_only(checked(), "note", "D408", "train", "1 of 3", name)


def test_a_small_object_in_the_corner_is_not_a_failure():
    write_coco([(0, 0, 2, 2), GOOD, GOOD])
    assert [finding.level for finding in checked()] == ["note"]


def test_labels_drawn_over_a_photo_as_stored_get_advice_that_needs_no_config():
    json_path = write_coco([GOOD])
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = json_path.with_name("0.jpg")
    Image.open(photo).resize((SIDE, SIDE // 2)).save(photo, exif=exif)
    json_path.write_text(json_path.read_text().replace('"height": 128', '"height": 64'))
    found = checked()
    assert_only(found, "FAIL", "D315", photo, "drawn as stored, and turned by EXIF")
    assert "remove the orientation" in found[0].fix and "pipelines" not in found[0].fix


def test_masks_are_checked_if_the_model_takes_them():
    path = write_coco([GOOD, GOOD])
    content = json.loads(path.read_text())
    for annotation in content["annotations"]:
        annotation["segmentation"] = [[90, 90, 120, 90, 120, 120]]
    path.write_text(json.dumps(content))
    assert_only(checked(), "FAIL", "D412", "2 of 2", "id 1 (image 0.jpg)")
    assert checked(needs_masks=False) == []


def test_photos_of_the_training_that_are_held_out_are_noted():
    trained = write_coco([GOOD] * 3).with_name("0.jpg")
    path = write_coco([GOOD] * 3, split="val")
    path.write_text(path.read_text().replace('"0.jpg"', json.dumps(str(trained))))
    assert_only(checked(), "note", "D319", "1 of 3", "val split", trained)


def test_a_test_split_without_labels_beside_validation_is_not_checked():
    for split in ("train", "val"):
        write_coco([GOOD], split=split)
    path = write_coco([GOOD], split="test")
    path.write_text(json.dumps(dict(json.loads(path.read_text()), annotations=[])))
    assert checked() == []


def test_a_written_copy_names_the_file_of_the_user(doctors_place):
    shutil.rmtree("data")
    label = write_yolo([CUT_OFF, GOOD])
    write_dataset(read_objects(Path("data").resolve()), Path("data"), Path("copies").resolve())
    options = ["metainfo.classes=(thing,)", "data_root=''", "data_prefix.img=''"]
    options.append(f"ann_file={Path('copies/train.json').resolve()}")
    found = findings(MASK_RCNN, *[f"train_dataloader.dataset.{option}" for option in options])
    borders = [finding for finding in found if finding.code == "D411"]
    assert_named(borders, [("D411", "train", "1 of 2", f"line 1 of {label}")])


def write_maps(labels: Sequence[int], split: str = "train") -> Path:
    """Write three photos and maps, and return the first map."""
    write_photos(Path("data/images", split), 3)
    folder = Path("data/masks", split).resolve()
    folder.mkdir(parents=True)
    for number in range(3):
        pixels = np.resize(np.array(labels, np.uint8), (SIDE, SIDE))
        Image.fromarray(pixels).save(folder / f"{number}.png")
    Path("data/classes.txt").write_text("ground\nthing")
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
    map_path = write_maps([0, 1])
    map_path.unlink()
    pixels = np.zeros((SIDE, SIDE), np.int16)
    pixels[0] = -32768
    Image.fromarray(pixels).save(map_path.with_suffix(".tif"))
    found = [finding for finding in checked_maps() if finding.level == "FAIL"]
    assert_only(found, "FAIL", "D506", "label -32768", map_path.with_suffix(".tif"))
