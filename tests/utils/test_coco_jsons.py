"""One reader of COCO jsons serves prediction, checks and training, and names what is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as rle

from xcit_mm.utils.coco import (
    TO_PREDICT,
    encode_mask,
    find_image_folder,
    from_corners,
    read_coco,
    to_corners,
)


def coco(**changes: object) -> dict:
    """A json of two images and an object, with other lists."""
    image = dict(id=1, file_name="a.jpg", height=9, width=8)
    box = dict(id=1, image_id=1, category_id=1, bbox=[1, 2, 3, 4], area=12, iscrowd=0)
    content = dict(
        images=[image, image | dict(id=2, file_name="b.jpg")],
        categories=[dict(id=1, name="o")],
        annotations=[box],
    )
    return content | changes


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_json_of_any_editor_is_read(encoding, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(coco(info="ü"), ensure_ascii=False), encoding=encoding)
    assert read_coco(path) == coco(info="ü")


IMAGE, BOX = coco()["images"][0], coco()["annotations"][0]


@pytest.mark.parametrize(
    "content, message",
    [
        ("images", "line 1 column 1"),
        ([1], "no list 'images'"),
        (coco(categories={}), "no list 'categories'"),
        (coco(images=[]), "no images"),
        (coco(images=[IMAGE, dict(id=2)]), r"images\[1\] has no file_name, height, width"),
        (coco(images=[IMAGE, 5]), r"images\[1\] has no file_name, height, id, width"),
        (coco(images=[IMAGE, IMAGE]), "2 images with the id 1"),
        (coco(images=[IMAGE | dict(id=[])]), "unhashable"),
        (coco(categories=[dict(id=3, name=name) for name in "abc"]), "3 categories with the id 3"),
        (coco(annotations=[BOX | dict(bbox=[1, 2, float("inf"), 3])]), r"1 is \[1, 2, inf, 3\]"),
        (coco(annotations=[BOX | dict(bbox=[1, 2, 3])]), r"is \[1, 2, 3\]"),
        (coco(annotations=[BOX | dict(bbox=["1", "2", "3", "4"])]), "str"),
    ],
)
def test_what_is_wrong_in_a_json_is_one_line_with_its_path(content, message, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=f"a.json .*{message}") as error:
        read_coco(path)
    assert "\n" not in str(error.value)


def test_prediction_needs_only_ids_and_file_names_and_takes_no_file_twice(tmp_path):
    path = tmp_path / "a.json"
    images = [dict(id=1, file_name="a.jpg"), dict(id=2, file_name="a.jpg")]
    path.write_text(json.dumps(dict(images=images)))
    assert read_coco(path, TO_PREDICT)["images"] == images
    with pytest.raises(ValueError, match=r"2 images with the file_name a\.jpg"):
        read_coco(path, TO_PREDICT, unique=("id", "file_name"))


@pytest.mark.parametrize(
    "place", ["", "images", "train2017", "images/train2017", "../train2017", "../images"]
)
def test_images_are_found_beside_their_json_though_the_first_is_missing(place, tmp_path):
    path = tmp_path / "annotations" / "instances_train2017.json"
    folder = tmp_path / "annotations" / place
    folder.mkdir(parents=True)
    (folder / "b.jpg").touch()
    found = find_image_folder(path, ["a.jpg", "b.jpg"])
    assert found is not None and found.resolve() == folder.resolve()


def test_images_are_found_from_a_relative_path_but_not_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_image_folder(Path("a.json"), ["a.jpg"] * 1000) is None
    Path("images").mkdir()
    Path("images/a.jpg").touch()
    assert find_image_folder(Path("a.json"), ["a.jpg"]) == Path("images")


def test_boxes_become_corners_and_come_back_to_the_bit():
    boxes = [[1.5, 2.25, 3, 4], [0, 0, 10, 20.125]]
    assert to_corners(boxes).tolist() == [[1.5, 2.25, 4.5, 6.25], [0, 0, 10, 20.125]]
    assert from_corners(to_corners(boxes)).tolist() == boxes
    assert to_corners([]).shape == from_corners([]).shape == (0, 4)


@pytest.mark.parametrize("dtype", [bool, np.uint8])
def test_an_encoded_mask_is_written_to_json_and_read_by_pycocotools(dtype):
    mask = np.zeros((5, 7), dtype)
    mask[1:3, 2:6] = 1
    code = json.loads(json.dumps(encode_mask(mask)))
    assert code["size"] == [5, 7] and rle.decode(code).tolist() == mask.astype(int).tolist()
