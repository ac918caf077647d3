"""Ids of images and classes: those of a COCO json, or new ones that no later command changes."""

import json
import shutil

import pytest
from helpers.runs import read_images, write_json

from xcit_mm.prediction import Predictor


def test_coco_ids_and_names_are_kept(models, command, photos, call, refusal, tmp_path, out):
    """Names of categories, not their order, give the ids of the classes."""
    images = {70: "a/01.png", 5: "00.png"}
    (tmp_path / "a").mkdir()
    for name in images.values():
        shutil.copy(photos / name[-6:], tmp_path / name)
    path = tmp_path / "instances.json"
    write_json(path, images, dict(star=3, square=20, circle=7, triangle=9))
    assert call(*command(path, kind="det"))[0] == 0
    content = json.loads((out / "images.json").read_text())
    assert {image["id"]: image["file_name"] for image in content["images"]} == images
    classes = [category["id"] for category in content["categories"]]
    assert classes == [7, 20, 9, 3]
    results = json.loads((out / "predictions.json").read_text())
    single = Predictor.from_config(*models["det"])(photos / "00.png")
    expected = [result["category_id"] for result in single.to_coco(5, classes)]
    assert [result["category_id"] for result in results if result["image_id"] == 5] == expected
    message = refusal(*command(photos / "00.png", kind="det"))
    assert "category_ids was [7, 20, 9, 3]" in message
    write_json(path, images, dict(star=1))
    message = refusal(*command(path, kind="det", out=tmp_path / "none"))
    assert "the json has no category circle, square, triangle" in message


@pytest.mark.parametrize(("id_", "name"), [(1, "02.png"), (9, "00.png")])
def test_an_id_of_a_json_that_contradicts_earlier_results_is_refused(
    id_, name, command, photos, call, refusal, tmp_path
):
    assert call(*command(photos / "00.png"))[0] == 0
    path = write_json(tmp_path / "images.json", {id_: name}, {})
    message = refusal(*command(path), "--root", photos)
    assert f"{name}, its name {name} or its id {id_} otherwise: give another --out" in message


def test_ids_stay_when_photos_are_added_and_no_photo_takes_the_name_of_another(
    command, photos, call, refusal, tmp_path, out
):
    assert call(*command(photos / "01.png", photos / "02.png"))[0] == 0
    assert call(*command(photos))[0] == 0
    ids = {image["file_name"]: image["id"] for image in read_images(out)}
    assert ids["01.png"] == 1 and sorted(ids.values()) == list(range(1, 13))
    another = shutil.copy(photos / "02.png", tmp_path / "00.png")
    assert "its name 00.png or its id None otherwise" in refusal(*command(another))
