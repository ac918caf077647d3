"""Ids of images and classes: those of a COCO json, or new ones that no later command changes."""

import json
import shutil

import numpy as np
import pytest
from helpers.runs import read_images, write_json

from xcit_mm.prediction import Prediction, Predictor, find_items, predict_many


def test_coco_ids_and_names_are_kept(models, command, photos, call, refusal, tmp_path, out):
    """Names of categories, not their order, give the ids of the classes."""
    (tmp_path / "train2017" / "a").mkdir(parents=True)
    shutil.copy(photos / "00.png", tmp_path / "train2017")
    shutil.copy(photos / "01.png", tmp_path / "train2017" / "a")
    path = tmp_path / "instances_train2017.json"
    images = {70: "a/01.png", 5: "00.png"}
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
    assert f"{name} has the id {id_} in its json" in message


def test_ids_and_names_stay_and_ids_of_a_json_are_not_given_twice(
    command, photos, call, tmp_path, out
):
    path = write_json(tmp_path / "images.json", {4: "02.png"}, {})
    assert call(*command(photos / "00.png", photos / "01.png"))[0] == 0
    assert call(*command(path), "--root", photos)[0] == 0
    another = shutil.copy(photos / "02.png", tmp_path / "00.png")
    assert call(*command(photos, another))[0] == 0
    ids = {image["file_name"]: image["id"] for image in read_images(out)}
    assert (ids["00.png"], ids["01.png"], ids["02.png"]) == (1, 2, 4)
    assert sorted(ids) == sorted(["00-2.png", *(path.name for path in photos.iterdir())])
    assert sorted(ids.values()) == list(range(1, 14))


def test_a_photo_takes_no_id_of_a_json_that_an_interrupted_command_lists(
    models, photos, tmp_path, monkeypatch
):
    path = write_json(tmp_path / "images.json", {1: "01.png"}, {})
    listing = find_items([photos / "00.png", path], root=photos)
    predictor = Predictor.from_config(*models["seg"], batch_size=1)
    results = iter([predictor(photos / "00.png"), KeyboardInterrupt])

    def predict_one(self: Predictor, images: list[np.ndarray]) -> list[Prediction]:
        result = next(results)
        if not isinstance(result, Prediction):
            raise result
        return [result]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Predictor, "__call__", predict_one)
        predict_many(listing, predictor, tmp_path / "out")
    predict_many(listing, predictor, tmp_path / "out")
    ids = {image["file_name"]: image["id"] for image in read_images(tmp_path / "out")}
    assert ids == {"00.png": 2, "01.png": 1}


def test_two_categories_of_one_name_are_refused(tmp_path):
    path = write_json(tmp_path / "a.json", {1: "0.png"}, {})
    (tmp_path / "0.png").touch()
    categories = [dict(id=number, name=name) for number, name in enumerate(["fig", "b", "fig"])]
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(categories=categories)))
    with pytest.raises(ValueError, match=r"a\.json: the ids 0, 2 have one name, fig"):
        find_items([path])
