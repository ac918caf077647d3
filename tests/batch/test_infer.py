"""tools/infer.py on images of every kind, and on what is none."""

import json
import warnings

import cv2
import numpy as np
import pytest
import torch
from coco_results import results_of
from PIL import Image
from pycocotools.coco import COCO

from xcit_mm.prediction.predictor import Predictor

KINDS = ("seg", "det")


@pytest.fixture
def image(shapes) -> np.ndarray:
    """(96, 96, 3)"""
    return cv2.imread(str(sorted((shapes / "images" / "validation").iterdir())[0]))


@pytest.fixture
def images(image, tmp_path):
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    cv2.imwrite(str(folder / "plain.png"), image)
    cv2.imwrite(str(folder / "grey.png"), image[..., 0])
    cv2.imwrite(str(folder / "deep.png"), image.astype(np.uint16) * 257)
    cv2.imwrite(str(folder / "rgba.png"), np.dstack([image, image[..., 0]]))
    frames = [Image.fromarray(image[..., ::-1]), Image.fromarray(image)]
    frames[0].convert("CMYK").save(folder / "sub" / "cmyk.jpg")
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    cv2.imwrite(str(folder / "thin.png"), np.zeros((2, 20000, 3), np.uint8))
    (folder / "empty.png").touch()
    (folder / "empty.mp4").touch()
    video = cv2.VideoWriter(str(folder / "film.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 5, image.shape[1::-1])
    for _ in range(2):
        video.write(image)
    video.release()
    return folder


READABLE = ["deep.png", "grey.png", "moving.gif", "plain.png", "rgba.png", "sub/cmyk.jpg"]
KEYS = [name.split(".")[0] for name in READABLE]


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder(kind, images, image, models, call, tmp_path):
    out = tmp_path / "out"
    code, printed, errors = call("infer", images, *models[kind], "--out", out, "--score-thr", 0)
    assert code == 1
    assert "7 of 10 files done" in printed
    skipped = errors[errors.index("skipped") :].strip().splitlines()
    assert len(skipped) == 3
    for line, (name, reason) in zip(
        skipped,
        {"empty.mp4": "no frames", "empty.png": "it is empty", "thin.png": "2x20000 pixels"}.items(),
        strict=True,
    ):
        assert name in line and reason in line
    pictures = sorted(str(path.relative_to(out / "pictures")) for path in (out / "pictures").rglob("*.*"))
    assert pictures == sorted([*(f"{key}.jpg" for key in KEYS), "film.mp4"])
    drawn = cv2.imread(str(out / "pictures" / "plain.jpg"))[:96, :96]
    assert np.abs(drawn.astype(int) - image).mean() > 3

    content = json.loads((out / "images.json").read_text())
    # empty.mp4 and empty.png have 2 and 3 for when they can be read: a second try moves no other's id.
    assert [one["id"] for one in content["images"]] == [1, *range(4, 11)]
    assert all((one["height"], one["width"]) == image.shape[:2] for one in content["images"])
    names = [(one["file_name"], one.get("frame")) for one in content["images"]]
    assert sorted(names, key=str) == sorted(
        [*((name, None) for name in READABLE), ("film.mp4", 0), ("film.mp4", 1)], key=str
    )
    if kind == "seg":
        assert [one["id"] for one in content["categories"]] == list(range(5))  # the values of the segmentation maps
        labels = {str(path.relative_to(out / "labels")): path for path in (out / "labels").rglob("*.png")}
        assert sorted(labels) == sorted([*(f"{key}.png" for key in KEYS), "film.mp4/000000.png", "film.mp4/000001.png"])
        labels = {name: cv2.imread(str(path), -1) for name, path in labels.items()}
        assert all(one.shape == image.shape[:2] and one.max() < 5 for one in labels.values())
        assert len(np.unique(labels["plain.png"])) > 2
        assert np.array_equal(labels["plain.png"], labels["deep.png"])
    else:
        assert [one["name"] for one in content["categories"]] == ["circle", "square", "triangle", "star"]
        images = COCO(str(out / "images.json"))
        found = images.loadRes(str(out / "predictions.json"))
        assert set(found.imgToAnns) == set(images.imgs)
        assert all(found.annToMask(one).shape == image.shape[:2] for one in found.anns.values())


def test_what_cannot_begin_is_one_line(images, models, refusal, tmp_path):
    (config, seg), (_, det) = (models[kind] for kind in KINDS)
    plain, out = images / "plain.png", ("--out", tmp_path / "out")
    for name in ("note.txt", "note.md"):
        (images / name).touch()
    (tmp_path / "taken" / "pictures").mkdir(parents=True)
    untested = tmp_path / "untested.py"
    untested.write_text(f"_base_ = '{config}'\ntest_dataloader = test_evaluator = test_cfg = None\n")
    for arguments, message in [
        ((images / "none.jpg", config, seg), "no images or videos at"),
        ((f"{images}/*.txt", config, seg), "left out 1 neither image nor video"),
        ((images / "note.md", config, seg), "is neither an image, a video nor a list"),
        ((plain, tmp_path / "none.py", seg), "no config at"),
        ((plain, untested, seg), "the config has no test_dataloader"),
        ((plain, config, seg, "--tile", 64, "--overlap", 64), "0 <= overlap < tile"),
        ((plain, config, seg, "--tile", 0), "tiles of 0 pixels"),
        ((plain, config, seg, "--overlap", 64), "give the tile's side too"),
        ((plain, config, seg, "--device", "cuda:99"), "--device cuda:99 cannot be used"),
        ((plain, config, seg, "--device", "gpu"), "--device gpu cannot be used"),
        ((plain, config, seg, "--alpha", 2), "--alpha 2.0: must be from 0 to 1"),
        ((plain, config, seg, "--root", images), "only for a list"),
        ((images / "note.txt", config, seg), "note.txt is empty: write a path or URL on each line"),
        ((plain, config, seg, "--batch-size", 0), "--batch-size 0: must be at least 1"),
        ((plain, config, seg, "--overwrite", "--retry-failed"), "give one of them"),
        ((plain, config, seg, "--ray", "auto", "--launcher", "pytorch"), "give one of them"),
        ((plain, config, seg, "--launcher", "pytorch"), "start it by torchrun"),
    ]:
        assert message in refusal("infer", *arguments, *out)
        assert not (tmp_path / "out").exists()
    for option in ((), ("--overwrite",)):
        message = refusal("infer", plain, config, seg, "--out", tmp_path / "taken", *option)
        assert "pictures is not of an earlier run" in message
    assert "does not fit the model" in refusal("infer", plain, config, det, *out)
    assert not list((tmp_path / "out" / "parts").iterdir())  # so that the right one is not refused as another run


@pytest.mark.parametrize("kind", KINDS)
def test_no_visualizer_is_asked_for(kind, image, models, tmp_path):
    config, checkpoint = models[kind]
    (tmp_path / "plain.py").write_text(f"_base_ = '{config}'\nvisualizer = None\n")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Failed to add")
        for one in (config, tmp_path / "plain.py"):
            Predictor(str(one), str(checkpoint))(image)


@pytest.mark.parametrize("kind", KINDS)
def test_one_tile_that_holds_the_image_changes_nothing(kind, image, models):
    predict = Predictor(*models[kind], tile=500)
    tiled = predict.predict(image)
    predict.tile = None
    whole = predict.predict(image)
    if kind == "seg":
        assert len(np.unique(whole.labels)) > 2
        assert np.array_equal(tiled.labels, whole.labels)
    else:
        found = [results_of(one.instances, 1, range(4)) for one in (whole, tiled)]
        assert found[0] == found[1] != []


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_from_the_command_line(kind, images, image, models, call, tmp_path):
    tiles = ("--tile", 64, "--overlap", 20, "--device", "cpu")
    code, *_ = call("infer", images / "plain.png", *models[kind], "--out", tmp_path / "out", *tiles)
    assert code == 0
    assert cv2.imread(str(tmp_path / "out" / "pictures" / "plain.jpg")).shape[0] == 96
    if kind == "seg":
        assert cv2.imread(str(tmp_path / "out" / "labels" / "plain.png"), -1).shape == image.shape[:2]
    else:
        found = json.loads((tmp_path / "out" / "predictions.json").read_text())
        coco = COCO()
        coco.imgs = {1: dict(height=96, width=96)}
        assert len(found) > 20  # of several tiles
        assert all(coco.annToMask(one).sum() > 0 for one in found)


@pytest.mark.parametrize("classes", [1, 5])
def test_a_binary_segmentor_in_tiles(classes, binary, image):
    predict = Predictor(*binary[classes], tile=500)
    tiled = predict(image)
    predict.tile = None
    whole = predict(image)
    assert whole.pred_sem_seg.data.unique().tolist() == [0, 1]
    assert torch.equal(tiled.pred_sem_seg.data, whole.pred_sem_seg.data.int())


def test_a_segmentor_of_one_class_has_a_name_for_the_rest(binary, images, call, tmp_path):
    code, *_ = call("infer", images / "plain.png", *binary[1], "--out", tmp_path / "out", "--alpha", 1)
    assert code == 0
    content = json.loads((tmp_path / "out" / "images.json").read_text())
    assert content["categories"] == [dict(id=0, name="background"), dict(id=1, name="shape")]
    labels = cv2.imread(str(tmp_path / "out" / "labels" / "plain.png"), -1)
    assert np.unique(labels).tolist() == [0, 1]
    picture = cv2.imread(str(tmp_path / "out" / "pictures" / "plain.jpg"))
    assert picture.shape[1] > 96  # with a legend
    colours = [picture[:96, :96][labels == label].mean(axis=0) for label in (0, 1)]
    assert np.abs(colours[0]).max() < 30 and np.abs(colours[1] - [50, 60, 230]).max() < 30


@pytest.mark.parametrize(
    "change, message",
    [
        ("test_dataloader = dict(dataset=dict(type='MyData'))", "no data set of type MyData is registered: correct"),
        (
            "test_dataloader = dict(dataset=dict(type='BaseSegDataset', metainfo=None))",
            "classes=None in the BaseSegDataset that the config tests on: give it metainfo=dict(classes=('name', ...))",
        ),
        ("model = dict(type='NoModel')", "the model cannot be built: KeyError: 'NoModel is not in the"),
        (
            "test_dataloader = dict(dataset=dict(pipeline=[dict(type='LoadImageFromFile'), dict(type='NoStep')]))",
            "the test pipeline cannot be built: KeyError: 'NoStep is not in the",
        ),
    ],
)
def test_names_that_are_not_registered_are_one_line(change, message, images, models, refusal, tmp_path):
    """As where custom_imports was forgotten."""
    config = tmp_path / "own.py"
    config.write_text(f"_base_ = {models['seg'][0]!r}\n{change}\n")
    arguments = (images / "plain.png", config, models["seg"][1], "--out")
    assert f"ValueError: {message}" in refusal("visualize", *arguments, tmp_path / "out.png")
    assert f"ValueError: {message}" in refusal("infer", *arguments, tmp_path / "out")


def test_a_second_run(images, image, models, call, tmp_path):
    """Into a folder below its own inputs: it does not see its pictures, and leaves none of another run."""
    out = images / "out"
    model = models["seg"]
    (images / "other").mkdir()
    cv2.imwrite(str(images / "other" / "a.png"), image)
    assert call("infer", images / "sub", *model, "--out", out)[0] == 0
    assert [path.name for path in (out / "pictures").iterdir()] == ["cmyk.jpg"]
    code, _, errors = call("infer", f"{images}/o*/**/*.*", *model, "--out", out, "--overwrite", "--no-labels")
    assert code == 0
    assert f"left out 7 below --out {out}" in errors
    assert [str(path.relative_to(out)) for path in sorted(out.rglob("[!.]*.*"))] == [
        "images.json", "inputs.jsonl", "labels/other/a.png", "parts/part-000000.jsonl.gz", "pictures/other/a.jpg",
        "run.json",
    ]  # fmt: skip
    assert cv2.imread(str(out / "pictures" / "other" / "a.jpg")).shape == image.shape  # without a legend
