"""Ctrl-C ends every command with one line and exit code 130, and keeps completed results."""

import importlib
import json

import cv2
import numpy as np
import pytest
from batch_runs import read_records, write_video
from mmengine.model import BaseModel

from xcit_mm.batch import features
from xcit_mm.batch.engine import Engine
from xcit_mm.prediction.predictor import Predictor


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(3):
        cv2.imwrite(str(tmp_path / f"{number}.png"), rng.integers(0, 256, (64, 64, 3)).astype(np.uint8))
    write_video(tmp_path / "video.mp4", np.zeros((64, 64, 3), np.uint8), 6)
    return tmp_path


class TestInfer:
    @pytest.mark.parametrize("kind", ["seg", "det"])
    def test_completed_images_are_merged(self, kind, images, models, call, tmp_path, interrupt_at):
        interrupt_at(BaseModel, "test_step", 3)
        code, printed, errors = call("infer", f"{images}/*.png", *models[kind], "--out", tmp_path / "out")
        assert code == 130 and "Traceback" not in errors
        assert printed.splitlines()[-1] == f"interrupted: 2 of 3 inputs predicted: {tmp_path}/out"
        drawn = sorted(path.name for path in (tmp_path / "out" / "visualizations").iterdir())
        assert drawn == ["0.jpg", "1.jpg"]
        merged = json.loads((tmp_path / "out" / "images.json").read_text())["images"]
        assert [image["file_name"] for image in merged] == ["0.png", "1.png"]
        if kind == "det":
            results = json.loads((tmp_path / "out" / "predictions.json").read_text())
            assert {result["image_id"] for result in results} == {1, 2}

    def test_images_that_wait_for_an_earlier_one_are_kept(self, photos, models, call, tmp_path, interrupt_at):
        for number in (0, 1, 4, 7, 10):  # the first has a size of its own, and waits for its batch until the end
            (tmp_path / f"{number:02}.png").symlink_to(photos / f"{number:02}.png")
        arguments = ("infer", tmp_path, *models["seg"], "--batch-size", 2, "--workers", 0, "--out", tmp_path / "out")
        interrupt_at(BaseModel, "test_step", 3)
        code, printed, _ = call(*arguments)
        assert code == 130 and "interrupted: 4 of 5 inputs predicted" in printed
        assert [record.file_name[:2] for record in read_records(tmp_path / "out")] == ["01", "04", "07", "10"]
        assert call(*arguments)[0] == 0
        assert len(read_records(tmp_path / "out")) == 5

    def test_completed_frames_of_a_video_are_playable(self, images, models, call, tmp_path, interrupt_at):
        interrupt_at(BaseModel, "test_step", 5)
        code, printed, _ = call("infer", images / "video.mp4", *models["seg"], "--out", tmp_path / "out")
        assert code == 130 and "interrupted: 0 of 1 inputs predicted" in printed
        video = cv2.VideoCapture(str(tmp_path / "out" / "visualizations" / "video.mp4"))
        assert sum(video.read()[0] for _ in range(9)) == 4
        assert len(list((tmp_path / "out" / "labels" / "video.mp4").iterdir())) == 4

    def test_nothing_is_completed(self, images, models, call, tmp_path, interrupt_at):
        interrupt_at(Predictor, "__init__", 1)
        code, printed, _ = call("infer", images, *models["seg"], "--out", tmp_path / "out")
        assert code == 130 and printed.endswith(f"interrupted: 0 of 4 inputs predicted: {tmp_path}/out\n")

    def test_a_damaged_shard_is_left_to_the_next_start(self, photos, models, call, tmp_path, interrupt_at):
        arguments = ("infer", photos, *models["seg"], "--shard-size", 4, "--no-visualizations", "--out", tmp_path)
        assert call(*arguments)[0] == 0
        first, _, last = sorted((tmp_path / "shards").iterdir())
        first.write_bytes(first.read_bytes()[:-20])
        last.unlink()
        interrupt_at(Engine, "work", 1)
        code, _, errors = call(*arguments)
        assert code == 130 and f"interrupted: {first} is damaged" in errors and "start the run again" in errors
        assert call(*arguments)[0] == 0
        assert len(read_records(tmp_path)) == 12


@pytest.mark.parametrize("number, kept", [(1, 0), (2, 2)])
def test_features_of_completed_images_are_written(number, kept, images, weights, call, tmp_path, interrupt_at):
    interrupt_at(features, "gem", number)
    out = tmp_path / "f.npz"
    options = ("--batch", 2, "--workers", 0, "--size", 32)
    code, _, errors = call("features", "extract", images, weights, "--out", out, *options)
    written = f"2 images, cls, mean, gem of 32 numbers each: {out}" if kept else "nothing is written"
    assert code == 130 and errors.strip().splitlines()[-1] == f"interrupted: {written}"
    assert out.exists() == bool(kept)
    if kept:
        content = np.load(out)
        assert content["paths"].tolist() == ["0.png", "1.png"] and content["gem"].shape == (2, 32)


def test_knn(images, weights, call, tmp_path, interrupt_at):
    for split in ("train", "val"):
        (tmp_path / "folder" / split / "a").mkdir(parents=True)
        for path in images.glob("*.png"):
            (tmp_path / "folder" / split / "a" / path.name).symlink_to(path)
    interrupt_at(features, "gem", 2)
    options = ("--batch", 2, "--workers", 0, "--size", 32, "-k", 1)
    code, printed, errors = call("features", "knn", tmp_path / "folder", weights, *options)
    assert code == 130 and "interrupted: nothing is written" in errors
    assert "1-NN" not in printed


def test_visualize(images, weights, call, tmp_path, interrupt_at):
    out = tmp_path / "view.png"
    out.write_text("an earlier figure")
    interrupt_at(importlib.import_module("visualize"), "draw_activations", 1)
    code, _, errors = call("visualize", images / "0.png", weights, "--out", out)
    assert code == 130 and errors.endswith(f"interrupted: {out} is not written\n")
    assert out.read_text() == "an earlier figure"


def test_replay(call, interrupt_at):
    interrupt_at(importlib.import_module("replay"), "replay", 1)
    code, _, errors = call("replay", "config.py", "snapshot.pth")
    assert code == 130 and errors.startswith("\ninterrupted: ")


def test_export(models, call, tmp_path, interrupt_at):
    out = tmp_path / "model.pt2"
    out.write_text("an earlier file")
    interrupt_at(importlib.import_module("xcit_mm.deployment.export"), "_trace", 1)
    code, _, errors = call("export", *models["seg"], "--out", out)
    assert code == 130 and errors.endswith(f"interrupted: {out} is not written\n")
    assert out.read_text() == "an earlier file"
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]
