"""COCO jsons: what is wrong is one line with its place, what is written is whole."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.pages import blocks
from helpers.paths import ROOT
from pycocotools.coco import COCO

from xcit_mm.datasets.coco import CocoFile, read_coco, write_coco

IMAGE = dict(id=0, file_name="a.jpg", height=9, width=8)
BOX = dict(id=0, image_id=0, category_id=0, bbox=[1, 2, 3, 4], area=12)
CATEGORY = dict(id=0, name="nut")


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "a.json"


def write_json(path: Path, **changes: Any) -> None:
    """Write a json of an image and an object, with other lists."""
    content = dict(images=[IMAGE], categories=[CATEGORY], annotations=[BOX]) | changes
    path.write_text(json.dumps(content, indent=2))


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(images=[IMAGE, dict(id=1)]), "missing required field `file_name` - at `$.images[1]`"),
        (
            dict(annotations=[dict(BOX, area=None)]),
            "at `$.annotations[0].area`: docs/your-own-data",
        ),
        (dict(images=[IMAGE | dict(width=0)]), "Expected `int` >= 1 - at `$.images[0].width`"),
        (dict(annotations=[BOX, BOX | dict(category_id=5)]), "no category has the id 5 - at `$"),
        (dict(images=[IMAGE, IMAGE | dict(file_name="b")]), "two images have the id '0'"),
        (dict(images=[IMAGE, IMAGE | dict(id=1)]), "two images are named 'a.jpg'"),
        (dict(categories=[CATEGORY, CATEGORY | dict(id=1)]), "two categories are named 'nut'"),
    ],
)
def test_what_is_wrong_in_a_json_is_one_line_with_its_place(changes, message, path):
    write_json(path, **changes)
    with pytest.raises(ValueError) as error:
        read_coco(path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)
    assert message in str(error.value)


def test_the_page_mends_crowds_and_objects_without_area(tmp_path, monkeypatch):
    page = ROOT / "docs" / "your-own-data.md"
    (mend,) = [code for _, code in blocks(page) if code.startswith("# mend.py")]
    monkeypatch.chdir(tmp_path)
    drawn = {key: value for key, value in BOX.items() if key != "area"} | dict(iscrowd=1)
    write_json(Path("train.json"), annotations=[drawn, BOX | dict(area=9)])
    exec(mend)
    objects = read_coco(Path("train.json")).annotations
    assert [(entry.iscrowd, entry.area) for entry in objects] == [(0, 12), (0, 9)]


@pytest.mark.parametrize("segmentation, has_mask", [([], False), ([[]], False), ([[1, 2]], True)])
def test_a_json_is_written_with_ids_from_1_and_its_masks(segmentation, has_mask, path):
    boxes = [BOX | dict(id=9, segmentation=segmentation, iscrowd=1, other="x"), BOX]
    write_json(path, annotations=boxes)
    coco = read_coco(path)
    assert [annotation.has_mask for annotation in coco.annotations] == [has_mask, False]
    for annotation in coco.annotations:
        annotation.category_id = 2
    write_coco(path, ["leaf", "犬"], coco.images, coco.annotations)
    written = COCO(path)
    assert written.imgs == {0: IMAGE} and written.cats[2]["name"] == "犬"
    first, second = written.loadAnns([1, 2])
    values = dict(id=1, category_id=2, iscrowd=1, ignore=0, segmentation=segmentation)
    assert first == BOX | values
    assert second["segmentation"] == []


def test_two_tests_of_a_model_may_write_the_same_json_at_once(path, monkeypatch):
    encode = msgspec.json.encode

    def write_first(content: CocoFile) -> bytes:
        monkeypatch.setattr("msgspec.json.encode", encode)
        write_coco(path, ["other"], [], [])
        return encode(content)

    monkeypatch.setattr("msgspec.json.encode", write_first)
    write_coco(path, ["nut"], [], [])
    assert [category.name for category in read_coco(path).categories] == ["nut"]
    assert [file.name for file in path.parent.iterdir()] == [path.name]
