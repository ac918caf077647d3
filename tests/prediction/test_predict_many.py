"""Many images: a folder of records that the same command completes, whatever stopped it."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers.runs import merged, model_of, read_images, read_records
from pycocotools.coco import COCO

from xcit_mm.prediction import Predictor, find_items, predict_many

KINDS = ("seg", "det")


@pytest.fixture
def folder(photos, tmp_path):
    """Nine images of three sizes and a broken one."""
    (tmp_path / "in").mkdir()
    for path in sorted(photos.iterdir())[:9]:
        shutil.copy(path, tmp_path / "in")
    (tmp_path / "in" / "04.png").write_bytes(b"no image")
    return tmp_path / "in"


@pytest.fixture(scope="module")
def predictors(models):
    return {
        kind: Predictor.from_config(*models[kind], device="cpu", batch_size=2) for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_from_python_gives_what_single_images_give(kind, predictors, folder, tmp_path):
    predictor, out = predictors[kind], tmp_path / "out"
    report = predict_many(find_items([folder]), predictor, out, drawing=dict(min_score=0))
    assert (report.out, report.predicted) == (out, 8)
    assert report.failures == [
        f"{folder}/04.png: ValueError: {folder}/04.png: the file is broken or not an image"
    ]
    assert str(report) == f"8 predicted, 1 failed: {out}"
    names = [f"{number:02}" for number in range(9) if number != 4]
    assert sorted(path.name for path in (out / "visualizations").iterdir()) == [
        f"{name}.png.jpg" for name in names
    ]
    content = json.loads((out / "images.json").read_text())
    ids = {image["file_name"]: image["id"] for image in content["images"]}
    assert sorted(ids) == [f"{name}.png" for name in names]
    assert len({*ids.values(), *range(1, 10)}) == 9  # a failure has an id too
    image = content["images"][list(ids).index("00.png")]
    found = predictor(folder / "00.png")
    assert (image["height"], image["width"]) == found.image.shape[:2]
    drawn = cv2.imread(str(out / "visualizations" / "00.png.jpg"))
    jpeg = cv2.imdecode(cv2.imencode(".jpg", found.draw(min_score=0))[1], cv2.IMREAD_COLOR)
    assert np.abs(drawn.astype(int) - jpeg).mean() < 1  # rounding of batches
    if kind == "seg":
        maps = {path.name: cv2.imread(str(path), -1) for path in (out / "labels").iterdir()}
        assert sorted(maps) == [f"{name}.png.png" for name in names]
        assert (maps["00.png.png"] == found.segmentation).mean() > 0.99
        assert [entry["id"] for entry in content["categories"]] == [0, 1, 2, 3, 4]  # in maps
    else:
        results = COCO(str(out / "images.json")).loadRes(str(out / "predictions.json"))
        stored = results.imgToAnns[ids["00.png"]]
        assert len(stored) == len(found) > 5 and np.allclose(
            stored[0]["bbox"][:2], found.boxes[0, :2]
        )
        assert all(results.annToMask(one).shape == found.image.shape[:2] for one in stored)


def test_another_photo_is_predicted_and_added(models, photos, call, tmp_path):
    out = tmp_path / "out"
    model = model_of(models["seg"])
    for number, photo in enumerate(("00.png", "01.png", "01.png"), start=1):
        code, printed, _ = call("infer", photos / photo, *model, "--out", out)
        assert code == 0 and f"{min(number, 2)} predicted" in printed
    shutil.copy(photos / "02.png", tmp_path / "00.png")
    assert call("infer", tmp_path / "00.png", *model, "--out", out)[0] == 0
    images = read_images(out)
    names = [(image["id"], image["file_name"]) for image in images]
    assert names == [(1, "00.png"), (2, "01.png"), (3, "00-2.png")]


@pytest.mark.parametrize("kind", KINDS)
def test_drawings_follow_the_options_without_another_prediction(
    kind, models, photos, call, tmp_path, before_forward, monkeypatch
):
    out, command = (
        tmp_path / "out",
        ("infer", photos / "00.png", photos / "01.png", *model_of(models[kind])),
    )

    def drawings() -> list[np.ndarray]:
        return [cv2.imread(str(path)) for path in sorted((out / "visualizations").iterdir())]

    assert call(*command, "--out", out, "--no-visualizations")[0] == 0
    assert not (out / "visualizations").exists()
    before_forward(lambda inputs: pytest.fail("predicted again"))
    seen = []
    for options in ([0], [0, "--no-labels"], [2], [0]):
        assert call(*command, "--out", out, "--score-thr", *options)[0] == 0
        seen.append(drawings())
        assert len(seen[-1]) == 2
    assert all(np.array_equal(*pair) for pair in zip(seen[0], seen[3], strict=True))
    if kind == "seg":
        pairs = zip(seen[0], seen[1], strict=True)
        assert all(drawn.shape[1] > plain.shape[1] for drawn, plain in pairs)  # the legend
    else:
        photo = cv2.imread(str(photos / "00.png"))
        without_objects = np.abs(seen[2][0].astype(int) - photo).mean()
        without_labels = np.abs(seen[1][0].astype(int) - photo).mean()
        assert without_objects < 2 < without_labels
    paths = sorted((out / "visualizations").iterdir())
    times = [path.stat().st_mtime_ns for path in paths]
    assert call(*command, "--out", out, "--score-thr", 0)[0] == 0
    assert [path.stat().st_mtime_ns for path in paths] == times  # not drawn again


@pytest.mark.parametrize("kind", KINDS)
def test_a_photo_that_was_replaced_is_predicted_again(kind, models, photos, call, tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        shutil.copy(photos / "00.png", folder / name)
    command = ("infer", folder, *model_of(models[kind]), "--score-thr", 0, "--out")
    assert call(*command, out)[0] == 0
    shutil.copy(photos / "01.png", folder / "a.png")
    code, _, errors = call(*command, out)
    assert code == 0 and "predicted again, since the files have changed: " in errors
    assert "again" not in call(*command, out)[2]
    assert call(*command, tmp_path / "fresh")[0] == 0
    assert merged(out) == merged(tmp_path / "fresh")
    for name in ("a.png.jpg", "b.png.jpg"):
        drawings = [
            cv2.imread(str(each / "visualizations" / name)) for each in (out, tmp_path / "fresh")
        ]
        assert np.array_equal(*drawings)


def test_a_photo_that_vanished_stays_in_the_results_and_is_counted(models, photos, call, tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for name in ("00.png", "01.png"):
        shutil.copy(photos / name, folder)
    command = ("infer", folder, *model_of(models["det"]), "--out", out)
    assert call(*command)[0] == 0
    (folder / "01.png").unlink()
    code, printed, errors = call(*command, "--score-thr", 0)
    assert code == 0 and "2 predicted" in printed
    assert "results of files that have vanished, kept: " in errors
    assert "results that keep an earlier drawing: " in errors and "01.png" in errors


def test_a_failure_of_a_replaced_photo_leaves_no_drawing_of_the_former(
    models, photos, call, tmp_path
):
    shutil.copy(photos / "00.png", tmp_path / "a.png")
    command = ("infer", tmp_path / "a.png", *model_of(models["seg"]), "--out", tmp_path / "out")
    assert call(*command)[0] == 0
    (tmp_path / "a.png").write_bytes(b"no image")
    assert call(*command)[0] == 3
    assert merged(tmp_path / "out") == dict(files=[])


def test_only_failures_are_predicted_again_on_request(
    models, photos, call, tmp_path, before_forward
):
    out = tmp_path / "out"
    command = ("infer", photos, *model_of(models["det"]), "--no-visualizations", "--out")

    def refuse_white(inputs: list[torch.Tensor]) -> None:
        if any((image == 255).all() for image in inputs):
            raise RuntimeError("white")

    before_forward(refuse_white)
    code, printed, errors = call(*command, out)
    assert code == 3 and "11 predicted, 1 failed" in printed and errors.count("07.png") == 1
    seen = []
    before_forward(lambda inputs: seen.append(len(inputs)))
    assert call(*command, out)[0] == 3 and not seen
    code, printed, _ = call(*command, out, "--retry-failed")
    assert code == 0 and "12 predicted: " in printed and seen == [1]
    assert call(*command, tmp_path / "fresh")[0] == 0
    assert merged(out) == merged(tmp_path / "fresh")


def test_an_image_that_fails_in_a_batch_is_found_alone(
    models, photos, call, tmp_path, before_forward
):
    def refuse_white(inputs: list[torch.Tensor]) -> None:
        if any((image == 255).all() for image in inputs):
            raise RuntimeError("white\nimage")

    before_forward(refuse_white)
    out = ("--out", tmp_path / "out", "--no-visualizations")
    assert call("infer", photos, *model_of(models["det"]), *out, "--batch-size", 4)[0] == 3
    errors = {record["name"]: record.get("error") for record in read_records(tmp_path / "out")}
    assert len(errors) == 12
    assert {*errors.items()} >= {("07.png", "RuntimeError: white image"), ("06.png", None)}


def test_batches_hold_images_of_one_size(models, photos, call, tmp_path, before_forward):
    sizes = []
    before_forward(lambda inputs: sizes.append([tuple(image.shape) for image in inputs]))
    out = ("--out", tmp_path / "out", "--no-visualizations")
    assert call("infer", photos, *model_of(models["seg"]), *out, "--batch-size", 4)[0] == 0
    assert [len(batch) for batch in sizes] == [4, 4, 4] and all(
        len(set(batch)) == 1 for batch in sizes
    )


@pytest.fixture
def predicted(models, photos, call, tmp_path) -> tuple:
    """The arguments of a command that has predicted a photo."""
    command = ("infer", photos / "00.png", *model_of(models["seg"]), "--out", tmp_path / "out")
    assert call(*command)[0] == 0
    return command


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tile", 64], "tile was None, is 64"),
        (["--dtype", "bfloat16"], "dtype was float32, is bfloat16"),
    ],
)
def test_results_of_other_options_are_not_mixed(options, message, predicted, refusal):
    assert message in refusal(*predicted, *options)


def test_results_of_another_model_are_not_mixed(models, binary, predicted, refusal, tmp_path):
    config = models["seg"][0]
    out = ("--out", tmp_path / "out")
    assert "config was " in refusal(*predicted[:2], *model_of(binary), *out)
    content = torch.load(models["seg"][1])
    content["state_dict"]["decode_head.conv_seg.bias"] += 1
    torch.save(content, tmp_path / "other.pth")
    other = model_of((config, tmp_path / "other.pth"))
    assert "weights was " in refusal(*predicted[:2], *other, *out)


def test_batch_size_and_readers_are_no_other_run_and_overwriting_is_one(predicted, call, tmp_path):
    assert call(*predicted, "--batch-size", 3, "--workers", 1)[0] == 0
    assert call(*predicted, "--tile", 64, "--overwrite")[0] == 0
    assert json.loads((tmp_path / "out" / "run.json").read_text())["tile"] == 64


@pytest.mark.parametrize("content", ["[]", "{"])
def test_damaged_settings_are_named(content, predicted, refusal, tmp_path):
    (tmp_path / "out" / "run.json").write_text(content)
    assert "run.json is damaged" in refusal(*predicted)


@pytest.mark.parametrize("options", [(), ("--overwrite",)])
def test_a_folder_of_other_files_is_refused(options, predicted, refusal, tmp_path):
    (tmp_path / "taken" / "labels").mkdir(parents=True)
    message = refusal(*predicted[:-1], tmp_path / "taken", *options)
    assert "labels is not of a run of this version" in message


def test_a_folder_of_a_former_version_is_refused(predicted, refusal, tmp_path):
    (tmp_path / "out" / "parts").mkdir()
    assert "parts is not of a run of this version" in refusal(*predicted)


def test_overwriting_keeps_the_files_of_the_user(models, photos, call, tmp_path):
    out = tmp_path / "out"
    command = ("infer", photos / "0[01].png", *model_of(models["seg"]), "--out", out)
    assert call(*command)[0] == 0
    own = [out / "labels" / "00.txt", out / "visualizations" / "own.jpg", out / "notes.txt"]
    for path in own:
        path.parent.mkdir(exist_ok=True)
        path.write_text("0 0.5 0.5 0.1 0.1")
    assert call(*command, "--overwrite", "--no-visualizations")[0] == 0
    assert all(path.exists() for path in own)
    assert len(list((out / "visualizations").iterdir())) == 1
    assert len(list((out / "journal").iterdir())) == 1


def test_a_folder_that_holds_an_input_or_the_model_is_refused(models, photos, refusal, tmp_path):
    shutil.copy(photos / "00.png", tmp_path / "a.png")
    (tmp_path / "list.txt").write_text(f"{tmp_path}/a.png")
    model = model_of(models["seg"])
    message = refusal("infer", tmp_path / "list.txt", *model, "--out", tmp_path)
    assert "holds the input" in message
    message = refusal("infer", photos, *model, "--out", Path(models["seg"][1]).parent)
    assert f"holds the input {models['seg'][1]}" in message


def test_coco_ids_and_names_are_kept(models, photos, call, refusal, tmp_path):
    """Names of categories, not their order, give the ids of the classes."""
    ids = dict(star=3, square=20, circle=7, triangle=9)
    images = [dict(id=number, file_name=name) for number, name in ((70, "a/01.png"), (5, "00.png"))]
    categories = [dict(id=id_, name=name) for name, id_ in ids.items()]
    (tmp_path / "train2017" / "a").mkdir(parents=True)
    shutil.copy(photos / "00.png", tmp_path / "train2017")
    shutil.copy(photos / "01.png", tmp_path / "train2017" / "a")
    path = tmp_path / "instances_train2017.json"
    path.write_text(json.dumps(dict(images=images, categories=categories)))
    model = model_of(models["det"])
    out = tmp_path / "out"
    assert call("infer", path, *model, "--out", out)[0] == 0
    content = json.loads((out / "images.json").read_text())
    names = {image["id"]: image["file_name"] for image in content["images"]}
    assert names == {5: "00.png", 70: "a/01.png"}
    classes = [entry["id"] for entry in content["categories"]]
    assert classes == [7, 20, 9, 3]
    results = json.loads((out / "predictions.json").read_text())
    single = Predictor.from_config(*models["det"])(tmp_path / "train2017" / "00.png")
    expected = [result["category_id"] for result in single.to_coco(5, classes)]
    assert [result["category_id"] for result in results if result["image_id"] == 5] == expected
    message = refusal("infer", photos / "00.png", *model, "--out", out)
    assert "category_ids was [7, 20, 9, 3]" in message
    path.write_text(json.dumps(dict(images=images, categories=[dict(id=1, name="star")])))
    message = refusal("infer", path, *model, "--out", tmp_path / "none")
    assert "the json has no category circle, square, triangle" in message


def test_ctrl_c_keeps_what_is_completed(models, photos, call, tmp_path, before_forward):
    calls = []

    def interrupt(inputs: list[torch.Tensor]) -> None:
        calls.append(inputs)
        if len(calls) == 3:
            raise KeyboardInterrupt

    command = ("infer", photos / "0[0-4].png", *model_of(models["det"]), "--out")
    assert call(*command, tmp_path / "fresh")[0] == 0
    before_forward(interrupt)
    code, _, errors = call(*command, tmp_path / "out")
    assert code == 130 and "interrupted: start the same command again" in errors
    assert len(read_records(tmp_path / "out")) == 2
    assert call(*command, tmp_path / "out")[0] == 0
    assert merged(tmp_path / "out") == merged(tmp_path / "fresh")


@pytest.mark.parametrize(("id_", "name"), [(1, "02.png"), (9, "00.png")])
def test_an_id_of_a_json_that_contradicts_earlier_results_is_refused(
    id_, name, predicted, refusal, photos, tmp_path
):
    (tmp_path / "images.json").write_text(json.dumps(dict(images=[dict(id=id_, file_name=name)])))
    message = refusal("infer", tmp_path / "images.json", "--root", photos, *predicted[2:])
    assert "another image or id in the results: give another --out" in message


def test_ids_stay_and_those_of_a_json_are_not_given_twice(models, photos, call, tmp_path):
    out = ("--out", tmp_path / "out", "--no-visualizations")
    model = model_of(models["seg"])
    assert call("infer", photos / "00.png", photos / "01.png", *model, *out)[0] == 0
    path = tmp_path / "images.json"
    path.write_text(json.dumps(dict(images=[dict(id=4, file_name="02.png")])))
    assert call("infer", path, "--root", photos, *model, *out)[0] == 0
    assert call("infer", photos / "0[0-5].png", *model, *out)[0] == 0
    images = read_images(tmp_path / "out")
    ids = {image["file_name"]: image["id"] for image in images}
    assert (ids["00.png"], ids["01.png"], ids["02.png"]) == (1, 2, 4)
    assert sorted(ids.values()) == [1, 2, 3, 4, 5, 6]
