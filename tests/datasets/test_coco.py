"""COCO jsons: what mmdet needs is there, what is wrong is one line, what is written is whole."""

import json
from pathlib import Path
from typing import Any

import pytest
from pycocotools.coco import COCO

from xcit_mm.datasets.coco import CocoImage, read_coco, read_images
from xcit_mm.datasets.writing import write_coco

IMAGE = dict(id=0, file_name="a.jpg", height=9, width=8)
BOX = dict(id=0, image_id=0, category_id=0, bbox=[1, 2, 3, 4], area=12)
CATEGORY = dict(id=0, name="nut")


def write_json(path: Path, **changes: Any) -> Path:
    """Write a json of an image and an object, with other lists."""
    content = dict(images=[IMAGE], categories=[CATEGORY], annotations=[BOX]) | changes
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            dict(images=[IMAGE, dict(id=1)]),
            "missing required field `file_name` - at `$.images[1]` ",
        ),
        (dict(images=[IMAGE | dict(width=0)]), "Expected `int` >= 1 - at `$.images[0].width` (id"),
        (dict(categories=[dict(id=0, name=7)]), "`str`, got `int` - at `$.categories[0].name` (id"),
        (dict(annotations=[BOX, BOX | dict(id=7, bbox="a")]), "$.annotations[1].bbox` (id 7)"),
        (dict(annotations=[BOX | dict(area=float("nan"))]), "JSON is malformed: invalid character"),
        (dict(annotations=[BOX | dict(image_id=5)]), "no image has the id 5 - at $.annotations[0]"),
        (dict(annotations=[BOX | dict(category_id=5)]), "no category has the id 5 - at $.anno"),
        (dict(images=[IMAGE, IMAGE | dict(file_name="b")]), "two images have the id '0'"),
        (dict(images=[IMAGE, IMAGE | dict(id=1)]), "two images are named 'a.jpg'"),
        (dict(categories=[CATEGORY, CATEGORY | dict(id=1)]), "two categories are named 'nut'"),
        (dict(images={}), "Expected `array`, got `object` - at `$.images`"),
    ],
)
def test_what_is_wrong_in_a_json_is_one_line_with_its_place(changes, message, tmp_path):
    path = write_json(tmp_path / "a.json", **changes)
    with pytest.raises(ValueError) as error:
        read_coco(path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)
    assert message in str(error.value)


def test_prediction_needs_only_ids_and_file_names_and_takes_no_file_twice(tmp_path):
    images = [dict(id=1, file_name="a.jpg"), dict(id=2, file_name="b.jpg")]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(dict(images=images)))
    listed = read_images(path)
    assert [(image.id, image.file_name) for image in listed.images] == [(1, "a.jpg"), (2, "b.jpg")]
    assert listed.categories == []
    path.write_text(json.dumps(dict(images=[images[0], images[0] | dict(id=2)])))
    with pytest.raises(ValueError, match=r"two images are named 'a\.jpg'"):
        read_images(path)


@pytest.mark.parametrize("segmentation, has_mask", [([], False), ([[]], False), ([[1, 2]], True)])
def test_a_json_is_written_with_ids_from_1_and_its_masks(segmentation, has_mask, tmp_path):
    boxes = [BOX | dict(id=9, segmentation=segmentation, iscrowd=1, other="x"), BOX]
    coco = read_coco(write_json(tmp_path / "a.json", annotations=boxes))
    assert [annotation.has_mask for annotation in coco.annotations] == [has_mask, False]
    for annotation in coco.annotations:
        annotation.category_id = 2
    write_coco(tmp_path / "b.json", ["leaf", "犬"], coco.images, coco.annotations)
    written = COCO(tmp_path / "b.json")
    assert written.imgs == {1: IMAGE | dict(id=1)} and written.cats[2]["name"] == "犬"
    first, second = written.loadAnns([1, 2])
    assert first == BOX | dict(
        id=1, image_id=1, category_id=2, iscrowd=1, ignore=0, segmentation=segmentation
    )
    assert second["id"] == 2 and second["segmentation"] == []


def test_a_json_without_objects_is_whole(tmp_path):
    write_coco(tmp_path / "a.json", ["nut"], [CocoImage(7, "a.jpg", 8, 9)], [])
    assert read_coco(tmp_path / "a.json").images == [CocoImage(1, "a.jpg", 8, 9)]
