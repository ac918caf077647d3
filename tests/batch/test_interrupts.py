"""Ctrl-C ends every tool with one line and exit code 130, and what was done stays."""

import importlib
import json
import signal

import cv2
import numpy as np
import pytest
import torch
from golden import fill

from xcit_mm import XCiTClassifier
from xcit_mm.batch import features
from xcit_mm.prediction.predictor import Predictor


@pytest.fixture
def interrupt_at(monkeypatch):
    """Makes the n-th call of a function the moment at which a user presses Ctrl-C."""
    # What a shell starts in the background is deaf to it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def replace(owner: object, name: str, number: int) -> None:
        original, calls = getattr(owner, name), []

        def counted(*args: object, **kwargs: object) -> object:
            calls.append(args)
            if len(calls) == number:
                signal.raise_signal(signal.SIGINT)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    yield replace
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(3):
        cv2.imwrite(str(tmp_path / f"{number}.png"), rng.integers(0, 256, (64, 64, 3)).astype(np.uint8))
    film = cv2.VideoWriter(str(tmp_path / "film.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 5, (64, 64))
    for _ in range(6):
        film.write(np.zeros((64, 64, 3), np.uint8))
    film.release()
    return tmp_path


@pytest.fixture
def weights(tmp_path):
    classifier = fill(XCiTClassifier(dict(embed_dim=32, depth=1, num_heads=4, eta=1.0), num_classes=3))
    torch.save(dict(model=classifier.state_dict()), tmp_path / "weights.pth")
    return tmp_path / "weights.pth"


@pytest.mark.parametrize("kind", ["seg", "det"])
def test_infer(kind, images, models, call, tmp_path, interrupt_at):
    interrupt_at(Predictor, "predict_preprocessed", 3)
    code, printed, errors = call("infer", f"{images}/*.png", *models[kind], "--out", tmp_path / "out")
    assert code == 130
    assert printed.splitlines()[-1] == f"interrupted: 2 of 3 files done: {tmp_path}/out"
    assert "Traceback" not in errors
    assert [path.name for path in sorted((tmp_path / "out" / "pictures").iterdir())] == ["0.jpg", "1.jpg"]
    kept = json.loads((tmp_path / "out" / "images.json").read_text())["images"]
    assert [one["file_name"] for one in kept] == ["0.png", "1.png"]
    if kind == "det":
        found = json.loads((tmp_path / "out" / "predictions.json").read_text())
        assert {one["image_id"] for one in found} == {1, 2}


def test_infer_in_the_middle_of_a_film(images, models, call, tmp_path, interrupt_at):
    interrupt_at(Predictor, "predict_preprocessed", 5)
    code, printed, _ = call("infer", images / "film.mp4", *models["seg"], "--out", tmp_path / "out")
    assert code == 130 and "interrupted: 0 of 1 files done" in printed
    film = cv2.VideoCapture(str(tmp_path / "out" / "pictures" / "film.mp4"))
    assert sum(film.read()[0] for _ in range(9)) == 4  # it can be played
    assert len(list((tmp_path / "out" / "labels" / "film.mp4").iterdir())) == 4


def test_before_anything_is_done(images, models, call, tmp_path, interrupt_at):
    interrupt_at(Predictor, "__init__", 1)
    code, printed, _ = call("infer", images, *models["seg"], "--out", tmp_path / "out")
    assert code == 130 and printed.endswith(f"interrupted: 0 of 4 files done: {tmp_path}/out\n")


@pytest.mark.parametrize("number, kept", [(1, 0), (2, 2)])
def test_features(number, kept, images, weights, call, tmp_path, interrupt_at):
    interrupt_at(features, "gem", number)
    out = tmp_path / "f.npz"
    options = ("--batch", 2, "--workers", 0, "--size", 32)
    code, _, errors = call("features", "extract", images, weights, "--out", out, *options)
    assert code == 130
    assert errors.strip().splitlines()[-1] == (
        f"interrupted: 2 images, cls, mean, gem of 32 numbers each: {out}"
        if kept
        else "interrupted: nothing is written"
    )
    assert out.exists() == bool(kept)
    if kept:
        content = np.load(out)
        assert content["paths"].tolist() == ["0.png", "1.png"] and content["gem"].shape == (2, 32)


def test_knn(images, weights, call, tmp_path, interrupt_at):
    for split in ("train", "val"):
        (tmp_path / "folder" / split / "a").mkdir(parents=True)
        for path in images.glob("*.png"):
            (tmp_path / "folder" / split / "a" / path.name).write_bytes(path.read_bytes())
    interrupt_at(features, "gem", 2)
    options = ("--batch", 2, "--workers", 0, "--size", 32, "-k", 1)
    code, printed, errors = call("features", "knn", tmp_path / "folder", weights, *options)
    assert code == 130 and "interrupted: nothing is written" in errors
    assert "1-NN" not in printed


def test_visualize(images, weights, call, tmp_path, interrupt_at):
    out = tmp_path / "view.png"
    out.write_text("an earlier picture")
    interrupt_at(importlib.import_module("visualize"), "draw", 1)
    code, _, errors = call("visualize", images / "0.png", weights, "--out", out)
    assert code == 130 and errors.endswith(f"interrupted: {out} is not written\n")
    assert out.read_text() == "an earlier picture"


def test_replay(call, interrupt_at):
    interrupt_at(importlib.import_module("replay"), "replay", 1)
    assert call("replay", "config.py", "snapshot.pth")[::2] == (130, "\ninterrupted: nothing is told\n")


def test_export(models, call, tmp_path, interrupt_at):
    out = tmp_path / "model.pt2"
    out.write_text("an earlier file")
    interrupt_at(importlib.import_module("xcit_mm.deployment.export"), "_trace", 1)
    code, _, errors = call("export", *models["seg"], "--out", out)
    assert code == 130 and errors.endswith(f"interrupted: {out} is not written\n")
    assert out.read_text() == "an earlier file"
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]
