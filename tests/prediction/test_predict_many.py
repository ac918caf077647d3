"""Many images: a folder of records that the same command completes, whatever stopped it."""

import json
import shutil

import cv2
import numpy as np
import pytest
import torch
from helpers.runs import merged, model_of, read_records
from pycocotools.coco import COCO

from xcit_mm.prediction import Predictor, find_items, predict_many
from xcit_mm.prediction.run import Worker

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
    return {kind: Predictor(*models[kind], device="cpu", batch_size=2) for kind in KINDS}


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
    sizes = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    assert sorted(sizes) == [1, 2, 3, 4, 6, 7, 8, 9]  # a failure has an id too
    found = predictor(folder / "00.png")
    assert sizes[1] == found.image.shape[:2]
    drawn = cv2.imread(str(out / "visualizations" / "00.png.jpg"))
    jpeg = cv2.imdecode(cv2.imencode(".jpg", found.draw(min_score=0))[1], cv2.IMREAD_COLOR)
    assert (
        drawn.shape == jpeg.shape and np.abs(drawn.astype(int) - jpeg).mean() < 1
    )  # rounding of batches
    if kind == "seg":
        maps = {path.name: cv2.imread(str(path), -1) for path in (out / "labels").iterdir()}
        assert sorted(maps) == [f"{name}.png.png" for name in names]
        assert (maps["00.png.png"] == found.segmentation).mean() > 0.99
        assert [entry["id"] for entry in content["categories"]] == list(
            range(5)
        )  # values of the maps
    else:
        results = COCO(str(out / "images.json")).loadRes(str(out / "predictions.json"))
        stored = results.imgToAnns[1]
        assert len(stored) == len(found) > 5 and np.allclose(
            stored[0]["bbox"][:2], found.boxes[0, :2]
        )
        assert all(results.annToMask(one).shape == found.image.shape[:2] for one in stored)


@pytest.mark.parametrize("kind", KINDS)
def test_another_photo_is_predicted_and_added(kind, models, photos, call, tmp_path):
    out = tmp_path / "out"
    for number, photo in enumerate(("00.png", "01.png", "01.png"), start=1):
        code, printed, _ = call("infer", photos / photo, *model_of(models[kind]), "--out", out)
        assert code == 0 and f"{min(number, 2)} predicted" in printed
    assert [record["name"] for record in read_records(out)] == ["00.png", "01.png"]
    shutil.copy(photos / "02.png", tmp_path / "00.png")
    assert call("infer", tmp_path / "00.png", *model_of(models[kind]), "--out", out)[0] == 0
    images = json.loads((out / "images.json").read_text())["images"]
    assert [(image["id"], image["file_name"]) for image in images] == [
        (1, "00.png"),
        (2, "01.png"),
        (3, "00-2.png"),
    ]


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
    records = read_records(out)
    before_forward(lambda inputs: pytest.fail("predicted again"))
    seen = []
    for options in ([0], [0, "--no-labels"], [2], [0]):
        assert call(*command, "--out", out, "--score-thr", *options)[0] == 0
        seen.append(drawings())
        assert len(seen[-1]) == 2
    assert all(np.array_equal(*pair) for pair in zip(seen[0], seen[3], strict=True))
    if kind == "seg":
        assert all(
            one.shape[1] > other.shape[1] for one, other in zip(seen[0], seen[1], strict=True)
        )  # the legend
    else:
        photo = cv2.imread(str(photos / "00.png"))
        assert (
            np.abs(seen[2][0].astype(int) - photo).mean()
            < 2
            < np.abs(seen[1][0].astype(int) - photo).mean()
        )
    assert read_records(out) == records
    monkeypatch.setattr(Worker, "redraw", lambda self: pytest.fail("drawn again"))
    assert call(*command, "--out", out, "--score-thr", 0)[0] == 0


def test_only_failures_are_predicted_again_on_request(
    models, folder, photos, call, tmp_path, before_forward
):
    command = (
        "infer",
        folder,
        *model_of(models["det"]),
        "--out",
        tmp_path / "out",
        "--no-visualizations",
    )
    code, printed, errors = call(*command)
    assert (
        code == 3 and "8 predicted, 1 failed" in printed and errors.count("04.png") == 2
    )  # path and message
    shutil.copy(photos / "04.png", folder)
    seen = []
    before_forward(lambda inputs: seen.append(len(inputs)))
    assert call(*command)[0] == 3 and not seen
    code, printed, _ = call(*command, "--retry-failed")
    assert code == 0 and "9 predicted: " in printed and seen == [1]
    assert call(*command[:-2], tmp_path / "fresh", "--no-visualizations")[0] == 0
    assert merged(tmp_path / "out") == merged(tmp_path / "fresh")


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_that_fails_in_a_batch_is_found_alone(
    kind, models, photos, call, tmp_path, before_forward
):
    def refuse_white(inputs: list[torch.Tensor]) -> None:
        if any((image == 255).all() for image in inputs):
            raise RuntimeError("white\nimage")

    before_forward(refuse_white)
    command = (
        "infer",
        photos,
        *model_of(models[kind]),
        "--out",
        tmp_path / "out",
        "--no-visualizations",
    )
    assert call(*command, "--batch-size", 4)[0] == 3
    failures = {
        record["name"]: record["error"]
        for record in read_records(tmp_path / "out")
        if "error" in record
    }
    assert failures == {"07.png": "RuntimeError: white image"}
    assert len(read_records(tmp_path / "out")) == 12


def test_batches_hold_images_of_one_size(models, photos, call, tmp_path, before_forward):
    sizes = []
    before_forward(lambda inputs: sizes.append([tuple(image.shape) for image in inputs]))
    command = (
        "infer",
        photos,
        *model_of(models["seg"]),
        "--out",
        tmp_path / "out",
        "--no-visualizations",
    )
    assert call(*command, "--batch-size", 4)[0] == 0
    assert [len(batch) for batch in sizes] == [4, 4, 4] and all(
        len(set(batch)) == 1 for batch in sizes
    )


def test_another_run_in_the_folder_is_rejected_by_the_first_difference(
    models, binary, photos, call, refusal, tmp_path
):
    out, photo = ("--out", tmp_path / "out"), photos / "00.png"
    assert call("infer", photo, *model_of(models["seg"]), *out)[0] == 0
    for command, message in [
        (["infer", photo, *model_of(models["seg"]), "--tile", 64], "its tile was None, is 64"),
        (
            ["infer", photo, *model_of(models["seg"]), "--dtype", "bfloat16"],
            "its dtype was float32, is bfloat16",
        ),
        (["infer", photo, *model_of((models["seg"][0], binary[1]))], "does not fit the model"),
        (["infer", photo, *model_of(binary)], "its config was "),
    ]:
        assert message in refusal(*command, *out)
    checkpoint = tmp_path / "other.pth"
    content = torch.load(models["seg"][1])
    content["state_dict"]["decode_head.conv_seg.bias"] += 1
    torch.save(content, checkpoint)
    assert "its checkpoint was seg.pth (" in refusal(
        "infer", photo, *model_of((models["seg"][0], checkpoint)), *out
    )
    assert (
        call("infer", photo, *model_of(models["seg"]), *out, "--batch-size", 3, "--workers", 1)[0]
        == 0
    )
    assert call("infer", photo, *model_of(models["seg"]), *out, "--tile", 64, "--overwrite")[0] == 0
    assert json.loads((tmp_path / "out" / "run.json").read_text())["settings"]["tile"] == 64
    for content in ("[]", '{"config": 1}', "{"):
        (tmp_path / "out" / "run.json").write_text(content)
        assert "run.json is not of this version" in refusal(
            "infer", photo, *model_of(models["seg"]), *out
        )
    (tmp_path / "taken" / "labels").mkdir(parents=True)
    for option in ((), ("--overwrite",)):
        message = refusal(
            "infer", photo, *model_of(models["seg"]), "--out", tmp_path / "taken", *option
        )
        assert "labels does not belong to a run" in message


def test_coco_ids_and_names_are_kept(models, photos, call, refusal, tmp_path):
    """Names of categories, not their order, give the ids of the classes."""
    ids = dict(star=3, square=20, circle=7, triangle=9)
    images = [dict(id=number, file_name=name) for number, name in ((70, "a/01.png"), (5, "00.png"))]
    (tmp_path / "train2017" / "a").mkdir(parents=True)
    shutil.copy(photos / "00.png", tmp_path / "train2017")
    shutil.copy(photos / "01.png", tmp_path / "train2017" / "a")
    path = tmp_path / "instances_train2017.json"
    path.write_text(
        json.dumps(dict(images=images, categories=[dict(id=i, name=n) for n, i in ids.items()]))
    )
    command, out = ("infer", path, *model_of(models["det"])), tmp_path / "out"
    assert call(*command, "--out", out)[0] == 0
    content = json.loads((out / "images.json").read_text())
    assert {image["id"]: image["file_name"] for image in content["images"]} == {
        5: "00.png",
        70: "a/01.png",
    }
    assert [entry["id"] for entry in content["categories"]] == [7, 20, 9, 3]
    found = json.loads((out / "predictions.json").read_text())
    assert {result["image_id"] for result in found} == {5, 70} and {
        each["category_id"] for each in found
    } <= {
        7,
        20,
        9,
        3,
    }
    for record in read_records(out):
        single = Predictor(*models["det"])(record["path"]).to_coco(record["id"], [7, 20, 9, 3])
        assert [each["category_id"] for each in record["objects"]] == [
            each["category_id"] for each in single
        ]
    assert "its category_ids was [7, 20, 9, 3]" in refusal(
        "infer", photos / "00.png", *model_of(models["det"]), "--out", out
    )
    path.write_text(json.dumps(dict(images=images, categories=[dict(id=1, name="star")])))
    assert "the json has no category circle, square, triangle" in refusal(
        *command, "--out", tmp_path / "none"
    )


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


def test_a_damaged_part_file_is_named(models, photos, call, refusal, tmp_path):
    command = ("infer", photos / "00.png", *model_of(models["det"]), "--out", tmp_path / "out")
    assert call(*command)[0] == 0
    (part,) = (tmp_path / "out" / "parts").iterdir()
    part.write_bytes(part.read_bytes()[:-100])
    assert f"{part} is damaged: remove it" in refusal(*command)
    part.unlink()
    assert call(*command)[0] == 0
