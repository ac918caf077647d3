"""One reader of COCO jsons serves prediction, checks and training, and names what is wrong."""

import json

import pytest

from xcit_mm.datasets.coco_json import read_coco, read_images


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


IMAGE, BOX = coco()["images"][0], coco()["annotations"][0]


@pytest.mark.parametrize(
    "content, message",
    [
        ([1], "no list 'images'"),
        (coco(categories={}), "no list 'categories'"),
        (coco(images=[IMAGE, 5]), r"images\[1\] has no file_name, height, id, width"),
        (coco(images=[IMAGE, IMAGE]), "2 images with the id 1"),
        (coco(images=[IMAGE | dict(id=[])]), r"the image of id \[\]"),
        (coco(categories=[dict(id=3, name=name) for name in "abc"]), "3 categories with the id 3"),
        (coco(annotations=[BOX | dict(bbox=[1, 2, float("inf"), 3])]), r"1 is \[1, 2, inf, 3\]"),
        (coco(annotations=[BOX | dict(bbox=["1", "2", "3", "4"])]), "not \\[x, y"),
        (coco(annotations=[BOX | dict(bbox=[1, 2, 3, 10**400])]), "not \\[x, y"),
    ],
)
def test_what_is_wrong_in_a_json_is_one_line_with_its_path(content, message, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"a.json .*{message}") as error:
        read_coco(path, as_mmdet=True)
    assert "\n" not in str(error.value)


def test_prediction_needs_only_ids_and_file_names_and_takes_no_file_twice(tmp_path):
    path = tmp_path / "a.json"
    images = [dict(id=1, file_name="a.jpg"), dict(id=2, file_name="b.jpg")]
    path.write_text(json.dumps(dict(images=images)))
    assert read_images(path)["images"] == images
    path.write_text(json.dumps(dict(images=[images[0], images[0] | dict(id=2)])))
    with pytest.raises(ValueError, match=r"2 images with the file_name a\.jpg"):
        read_images(path)
