"""Many images: a folder of records that the same command completes, whatever stopped it."""

import json
import logging
import os
import shutil
import signal
import weakref
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers.locks import locked_by_another_process
from helpers.runs import read_images, read_records, write_json
from pycocotools.coco import COCO

from xcit_mm import predict_many
from xcit_mm.prediction.drawing import FONT
from xcit_mm.prediction.journal import read_journals
from xcit_mm.utils.errors import ArgumentError


@pytest.mark.parametrize("kind", ["seg", "det"])
def test_a_run_from_python_gives_what_single_images_give(kind, predictors, photos, tmp_path, out):
    folder = Path(shutil.copytree(photos, tmp_path / "in"))
    (folder / "04.png").write_bytes(b"no image")
    predictor = predictors[kind]
    report = predict_many(predictor, folder, out, draw_score=0)
    assert str(report) == f"11 predicted, 1 failed: {out}"
    assert len(report.failures) == 1 and str(folder / "04.png") in report.failures[0]
    predict_many(predictor, folder, out, draw_score=0.0)  # the same options
    names = [f"{number:02}.png" for number in range(12) if number != 4]
    drawings = sorted(path.name for path in (out / "visualizations").iterdir())
    assert drawings == [f"{name}.jpg" for name in names]
    content = json.loads((out / "images.json").read_text())
    ids = {image["file_name"]: image["id"] for image in content["images"]}
    assert ids == {name: int(name[:2]) + 1 for name in names}  # a failure has an id too
    single = predictor(folder / "00.png")
    if kind == "seg":
        stored = cv2.imread(str(out / "labels" / "00.png.png"), cv2.IMREAD_UNCHANGED)
        assert np.array_equal(stored, single.segmentation)
        assert [entry["id"] for entry in content["categories"]] == [0, 1, 2, 3, 4]  # in maps
        return
    coco = COCO(str(out / "images.json"))
    stored = coco.loadRes(str(out / "predictions.json")).imgToAnns[ids["00.png"]]
    assert len(stored) == len(single) > 5
    for result, expected, mask in zip(stored, single.to_coco(), single.masks, strict=True):
        assert result["category_id"] == expected["category_id"]
        assert result["bbox"] == pytest.approx(expected["bbox"], abs=1e-3)
        assert (coco.annToMask(result) == mask).mean() > 0.999


def test_coco_ids_and_names_are_kept(predictors, command, photos, call, refusal, tmp_path, out):
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
    expected = predictors["det"](photos / "00.png").to_coco(5, classes)
    stored = [result["category_id"] for result in results if result["image_id"] == 5]
    assert stored == [result["category_id"] for result in expected]
    write_json(path, images, dict(star=1))
    message = refusal(*command(path, kind="det", out=tmp_path / "none"))
    assert "the json has no category circle, square, triangle" in message


def test_ids_stay_and_no_image_takes_the_name_or_id_of_another(
    command, photos, call, refusal, tmp_path, out
):
    assert call(*command(photos / "01.png", photos / "02.png"))[0] == 0
    assert call(*command(photos))[0] == 0
    ids = {image["file_name"]: image["id"] for image in read_images(out)}
    assert ids["01.png"] == 1 and sorted(ids.values()) == list(range(1, 13))
    another = shutil.copy(photos / "02.png", tmp_path / "00.png")
    message = refusal(*command(another))
    assert f"--out: {another}: the name 00.png is that of {photos}" in message
    problems = {
        (1, "02.png"): "the id 1 is that of",
        (99, "01.png"): "the id 99 was 1 in earlier",
    }
    for (id_, name), problem in problems.items():
        path = write_json(tmp_path / "images.json", {id_: name}, {})
        assert f"{name}: {problem}" in refusal(*command(path), "--root", photos)


def test_a_finished_folder_is_one_line_until_a_photo_is_new(
    command, photos, call, tmp_path, stop_at, monkeypatch
):
    """The line has the folder as it was given."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(photos / "00.png", folder)
    arguments = command(folder, out="out")
    assert call(*arguments)[:2] == (0, "1 predicted: out\n")
    seen = stop_at(0)
    code, printed, errors = call(*arguments)
    assert code == 0 and not seen and "overwrite them to predict all again" in printed
    assert printed.count("\n") == 1 and not errors
    shutil.move(folder / "00.png", tmp_path)  # results of a photo that is gone stay
    shutil.copy(photos / "01.png", folder)
    code, printed, _ = call(*arguments)
    assert code == 0 and len(seen) == 1 and "2 predicted: " in printed


def test_an_image_that_fails_in_a_batch_fails_alone_and_may_be_retried(
    command, photos, call, out, before_forward, stop_at
):
    """The tensors of the batch are free when its photos are predicted one by one."""
    batches = []
    is_held = []

    def refuse_white(inputs: list[torch.Tensor]) -> None:
        if len(inputs) == 1 and batches:
            is_held.append(batches[-1]() is not None)
        if any((image == 255).all() for image in inputs):
            tensor = torch.stack(inputs)
            batches.append(weakref.ref(tensor))
            raise RuntimeError("white\nimage")

    before_forward(refuse_white)
    arguments = (*command(photos), "--no-visualizations", "--batch-size", 12)
    code, printed, errors = call(*arguments)
    assert code == 3 and "11 predicted, 1 failed" in printed and errors.count("07.png") == 1
    assert is_held and not any(is_held)
    failures = {record["name"]: record.get("error") for record in read_records(out)}
    assert len(failures) == 12 and failures["06.png"] is None
    assert failures["07.png"] == "RuntimeError: white image"
    seen = stop_at(0)
    assert call(*arguments)[0] == 3 and not seen
    code, printed, _ = call(*arguments, "--retry-failed")
    assert code == 0 and "12 predicted: " in printed and seen == [1]
    assert len(read_images(out)) == 12


def test_a_dead_gpu_ends_the_process_and_fails_no_other_photo(
    predictors, photos, out, monkeypatch, stop_at
):
    """Simulated: after such an error, each later call on a GPU fails."""
    predictor = predictors["seg"]

    def fail(*_: str) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    stop_at(3, fail)
    few = sorted(photos.glob("0[0-4].png"))
    with monkeypatch.context() as patch:
        patch.setattr(predictor, "device", "cuda:0")
        patch.setattr(torch.cuda, "synchronize", fail)
        with pytest.raises(RuntimeError, match="illegal memory access"):
            predict_many(predictor, few, out, workers=0)
    progress = read_journals(out)
    assert len(progress.records) == 2 and not any("error" in r for r in progress.records.values())
    assert list(progress.deaths) == [str(photos / "02.png")]
    report = predict_many(predictor, few, out)
    assert report.predicted == 5 and not report.failures


def test_a_stop_keeps_what_is_completed_and_is_no_death(command, photos, call, out, stop_at):
    arguments = command(*photos.glob("0[0-4].png"))
    seen = stop_at(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    code, _, errors = call(*arguments)
    assert code == 143 and "interrupted: run the same command again to continue" in errors
    assert not read_journals(out).deaths
    assert len(read_records(out)) == 2
    assert call(*arguments)[0] == 0
    assert len(seen) == 3 + 3 and len(read_images(out)) == 5


@pytest.fixture
def predicted(command, photos, call) -> tuple:
    """The arguments of a command that has predicted a photo."""
    arguments = command(photos / "00.png")
    assert call(*arguments)[0] == 0
    return arguments


def test_results_of_other_options_or_models_are_not_mixed(
    models, photos, command, predicted, refusal, call, tmp_path
):
    assert "tile was None, is 64: give" in refusal(*predicted, "--tile", 64)
    line = refusal(*predicted, "--no-visualizations")
    assert "another run: only the drawings would differ: give another" in line
    edited = tmp_path / "edited.py"
    edited.write_text(f"_base_ = {models['seg'][0]!r}\nmodel = dict(test_cfg=dict(mode='slide'))")
    other = (edited, models["seg"][1])
    line = refusal(*command(photos / "00.png", model=other))
    assert "another run: the config has another model, other classes or another" in line
    checkpoint = torch.load(models["seg"][1])
    checkpoint["state_dict"]["decode_head.conv_seg.bias"] += 1
    torch.save(checkpoint, tmp_path / "other.pth")
    other = (models["seg"][0], tmp_path / "other.pth")
    line = refusal(*command(photos / "00.png", model=other))
    assert "another run: the weights are others: give another, or overwrite it" in line
    assert call(*predicted, "--batch-size", 3, "--workers", 1)[0] == 0  # change no result


def test_results_stay_until_those_that_overwrite_them_are_complete(
    predicted, command, photos, call, out, stop_at
):
    def contents() -> dict[Path, bytes]:
        files = [path for path in out.rglob("[!.]*") if path.is_file()]
        return {path: path.read_bytes() for path in files if ".new" not in path.parts}

    former = contents()
    seen = stop_at(2)
    arguments = command(*photos.glob("0[0-2].png"))
    overwrite = (*arguments, "--overwrite", "--tile", 64, "--batch-size", 9)
    assert call(*overwrite)[0] == 130
    assert contents() == former
    assert call(*overwrite)[0] == 0
    assert len(seen) == 4  # the first was not predicted again
    assert len(read_images(out)) == 3 and json.loads((out / "run.json").read_text())["tile"] == 64
    assert not (out / ".new").exists()


@pytest.mark.parametrize("moves", [0, 1, 2, 4])
@pytest.mark.parametrize("again", ["--overwrite", "--no-visualizations"])
def test_results_that_a_kill_stops_from_moving_move_at_the_next_call(
    again, moves, predictors, predicted, command, photos, call, out, monkeypatch
):
    """Also at a call with the former options, which is refused then."""
    done = []

    def moving(move: Callable) -> Callable:
        def move_or_stop(self: Path, target: Path) -> Path:
            if ".complete" in self.parts:
                if len(done) == moves:
                    raise KeyboardInterrupt
                done.append(self)
            return move(self, target)

        return move_or_stop

    overwrite = (*command(photos / "01.png"), "--overwrite")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", moving(Path.replace))
        patch.setattr(Path, "rename", moving(Path.rename))
        assert call(*overwrite)[0] == 130
    if again == "--overwrite":
        assert call(*overwrite)[0] == 0
    else:
        former = (*predicted, again)
        with pytest.raises(SystemExit):
            call(*former)
    assert [image["file_name"] for image in read_images(out)] == ["01.png"]
    assert [path.name for path in (out / "labels").iterdir()] == ["01.png.png"]
    assert [path.name for path in (out / "visualizations").iterdir()] == ["01.png.jpg"]
    assert [record["name"] for record in read_records(out)] == ["01.png"]
    stored = cv2.imread(str(out / "labels" / "01.png.png"), cv2.IMREAD_UNCHANGED)
    assert np.array_equal(stored, predictors["seg"](photos / "01.png").segmentation)
    assert not [*out.glob(".[cn]*")]


def test_a_call_moves_no_results_while_another_process_does(predicted, refusal, out):
    """Not even a call that overwrites nothing."""
    (out / ".complete").mkdir()
    (out / ".complete" / "images.json").write_text("{}")
    with locked_by_another_process(out):
        assert "another process writes into" in refusal(*predicted)
    assert (out / ".complete" / "images.json").exists()


def test_what_a_stopped_overwriting_predicted_of_other_photos_is_not_taken(
    predicted, command, photos, call, out, stop_at
):
    stop_at(2)
    two = command(photos / "01.png", photos / "02.png")
    assert call(*two, "--overwrite")[0] == 130
    assert call(*command(photos / "03.png"), "--overwrite")[0] == 0
    assert [image["file_name"] for image in read_images(out)] == ["03.png"]


def test_overwriting_keeps_the_files_of_the_user(predicted, call, command, photos, refusal, out):
    files = [out / "labels" / "00.txt", out / "visualizations" / "own.jpg", out / "notes.txt"]
    for path in files:
        path.write_text("0 0.5 0.5 0.1 0.1")
    overwrite = (*predicted, "--overwrite", "--no-visualizations", "--tile", 64)
    assert call(*overwrite)[0] == 0
    assert all(path.exists() for path in files)
    assert len(list((out / "visualizations").iterdir())) == 1
    assert len(list((out / "journal").iterdir())) == 1
    settings = out / "run.json"
    assert json.loads(settings.read_text())["tile"] == 64
    settings.unlink()
    assert "is not of a run: choose another folder" in refusal(*overwrite)
    message = refusal(*command(photos / "00.png", out=photos))
    assert "--out: " in message and "holds the input" in message


def test_a_font_that_cannot_be_read_ends_the_call_before_it_makes_a_folder(predictors, photos, out):
    with pytest.raises(OSError, match=r"/none\.ttf: cannot open resource: give a TrueType or Open"):
        predict_many(predictors["seg"], photos / "00.png", out, font="none.ttf")
    assert not out.exists()


def test_a_photo_whose_results_have_too_long_a_name_fails_alone(predictors, photos, tmp_path, out):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a" * 251, "b"):
        shutil.copy(photos / "00.png", folder / f"{name}.png")
    for overwrite in (False, True, True):
        report = predict_many(predictors["seg"], folder, out, overwrite=overwrite)
        assert report.predicted == 1 and "File name too long" in report.failures[0]
        assert [path.name for path in (out / "labels").iterdir()] == ["b.png.png"]


def test_a_model_by_its_name_and_paths_as_text_predict_in_silence(
    models, photos, tmp_path, out, capsys, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("xcit_mm"), "level", logging.ERROR)
    config, checkpoint = models["det"]
    options = dict(checkpoint=checkpoint, device="cpu", draw_score=0, font=FONT)
    (tmp_path / "notes.txt").touch()  # which is left out
    shutil.copy(photos / "00.png", tmp_path)
    report = predict_many(config, str(tmp_path), str(out), **options)
    assert report.predicted == 1 and report.out == out
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["checkpoint", "device"])
def test_a_predictor_has_its_own_checkpoint_and_device(name, predictors, photos, out):
    with pytest.raises(ArgumentError, match=f"^{name}: a Predictor has its own"):
        predict_many(predictors["seg"], photos, out, **{name: "cpu"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--tile 64 --overlap 64", "--overlap: 64 for tiles of 64 pixels: give at least 0"),
        ("--min-score 0.5", "--min-score: 0.5: only detectors have scores"),
        ("--scratch disk", "--scratch: it is for images that are seen whole"),
    ],
)
def test_an_error_before_the_start_is_one_line(options, message, command, photos, refusal, out):
    assert message in refusal(*command(photos / "00.png"), *options.split())
    assert not out.exists()
