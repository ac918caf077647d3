"""tools/infer.py on images of every kind, and its errors."""

import json
import re
import warnings

import cv2
import numpy as np
import pytest
from batch_runs import write_video
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
    write_video(folder / "video.mp4", image, 2)
    return folder


READABLE = ["deep.png", "grey.png", "moving.gif", "plain.png", "rgba.png", "sub/cmyk.jpg"]
KEYS = [name.split(".")[0] for name in READABLE]


@pytest.mark.parametrize("kind", KINDS)
def test_every_readable_file_of_a_folder_is_predicted(kind, images, image, models, call, tmp_path):
    out = tmp_path / "out"
    code, printed, errors = call("infer", images, *models[kind], "--out", out, "--score-thr", 0)
    assert code == 3 and "7 of 10 inputs predicted" in printed
    skipped = errors[errors.index("skipped") :].strip().splitlines()
    reasons = {"empty.mp4": "no frames", "empty.png": "is empty", "thin.png": "2x20000 pixels"}
    for line, (name, reason) in zip(skipped, reasons.items(), strict=True):
        assert name in line and reason in line
    drawn = sorted(str(path.relative_to(out / "visualizations")) for path in (out / "visualizations").rglob("*.*"))
    assert drawn == sorted([*(f"{key}.jpg" for key in KEYS), "video.mp4"])
    assert np.abs(cv2.imread(str(out / "visualizations" / "plain.jpg"))[:96, :96].astype(int) - image).mean() > 3

    content = json.loads((out / "images.json").read_text())
    # Failures have ids too, 2, 3 and 9, so that a successful retry changes no other id.
    assert [entry["id"] for entry in content["images"]] == [1, 4, 5, 6, 7, 8, 10_000_000_000, 10_000_000_001]
    assert all((entry["height"], entry["width"]) == image.shape[:2] for entry in content["images"])
    names = [(entry["file_name"], entry.get("frame")) for entry in content["images"]]
    frames = [("video.mp4", 0), ("video.mp4", 1)]
    assert sorted(names, key=str) == sorted([*((name, None) for name in READABLE), *frames], key=str)
    if kind == "seg":
        assert [entry["id"] for entry in content["categories"]] == list(range(5))  # values of the segmentation maps
        paths = out.rglob("labels/**/*.png")
        maps = {str(path.relative_to(out / "labels")): cv2.imread(str(path), -1) for path in paths}
        frames = ["video.mp4/000000.png", "video.mp4/000001.png"]
        assert sorted(maps) == sorted([*(f"{key}.png" for key in KEYS), *frames])
        assert all(labels.shape == image.shape[:2] and labels.max() < 5 for labels in maps.values())
        assert len(np.unique(maps["plain.png"])) > 2
        assert np.array_equal(maps["plain.png"], maps["deep.png"])
    else:
        assert [entry["name"] for entry in content["categories"]] == ["circle", "square", "triangle", "star"]
        truth = COCO(str(out / "images.json"))
        results = truth.loadRes(str(out / "predictions.json"))
        assert set(results.imgToAnns) == set(truth.imgs)
        assert all(results.annToMask(result).shape == image.shape[:2] for result in results.anns.values())


def test_errors_before_the_start_are_one_line(images, models, refusal, tmp_path):
    pytest.importorskip("pyarrow")
    config, seg = models["seg"]
    plain, out = images / "plain.png", ("--out", tmp_path / "out")
    for name in ("note.txt", "note.md"):
        (images / name).touch()
    (images / "ids.json").write_text(json.dumps(dict(images=[dict(id="first", file_name="plain.png")])))
    (tmp_path / "taken" / "visualizations").mkdir(parents=True)
    untested = tmp_path / "untested.py"
    untested.write_text(f"_base_ = '{config}'\ntest_dataloader = test_evaluator = test_cfg = None\n")
    without_views = tmp_path / "without_views.py"
    without_views.write_text(f"_base_ = '{config}'\ntta_model = None\n")
    for arguments, message in [
        ((images / "none.jpg", config, seg), "no images or videos at"),
        ((f"{images}/*.txt", config, seg), "left out 1 neither image nor video"),
        ((images / "note.md", config, seg), "is not an image, a video or a list"),
        ((plain, tmp_path / "none.py", seg), "no config at"),
        ((plain, untested, seg), "the config has no test_dataloader"),
        ((plain, config, seg, "--tile", 64, "--overlap", 64), "0 <= overlap < tile"),
        ((plain, config, seg, "--tile", 0), "tiles of 0 pixels"),
        ((plain, config, seg, "--overlap", 64), "give the side of the tiles too"),
        ((plain, config, seg, "--device", "cuda:99"), "--device cuda:99 cannot be used"),
        ((plain, config, seg, "--device", "gpu"), "--device gpu cannot be used"),
        ((plain, config, seg, "--alpha", 2), "alpha=2.0: must be from 0 to 1"),
        ((plain, config, seg, "--root", images), "only a list has a root"),
        ((images / "note.txt", config, seg), "note.txt is empty: write a path or URL on each line"),
        ((images / "ids.json", config, seg, "--format", "parquet"), "ids that are not integers"),
        ((plain, config, seg, "--batch-size", 0), "batch_size=0: must be at least 1"),
        ((plain, config, seg, "--min-score", 0.5), "min_score=0.5: only detectors have scores"),
        ((plain, config, seg, "--tta", "--tile", 64), "test-time augmentation predicts whole images"),
        ((plain, without_views, seg, "--tta"), "the config has no tta_model and tta_pipeline"),
        ((plain, config, seg, "--overwrite", "--retry-failed"), "give one of them"),
        ((plain, config, seg, "--ray", "auto", "--launcher", "pytorch"), "give one of them"),
        ((plain, config, seg, "--launcher", "pytorch"), "start the command by torchrun"),
    ]:
        assert message in refusal("infer", *arguments, *out)
        assert not (tmp_path / "out").exists()
    for option in ((), ("--overwrite",)):
        message = refusal("infer", plain, config, seg, "--out", tmp_path / "taken", *option)
        assert "visualizations does not belong to a run" in message


@pytest.mark.parametrize("kind", KINDS)
def test_the_config_needs_no_visualizer(kind, image, models, tmp_path):
    config, checkpoint = models[kind]
    (tmp_path / "plain.py").write_text(f"_base_ = '{config}'\nvisualizer = None\n")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Failed to add")
        for one in (config, tmp_path / "plain.py"):
            Predictor(str(one), str(checkpoint))(image)


@pytest.mark.parametrize("kind", [*KINDS, 1, 5])  # binary segmentors of one or five classes
def test_one_tile_as_large_as_the_image_changes_nothing(kind, image, models, binary):
    predict = Predictor(*{**models, **binary}[kind], tile=500)
    tiled = predict(image)
    predict.tile = None
    whole = predict(image)
    if kind == "det":
        found = [results_of(one.instances._replace(cut=None), 1, range(4)) for one in (whole, tiled)]
        assert found[0] == found[1] != []
    else:
        classes = np.unique(whole.segmentation).tolist()
        assert len(classes) > 2 if kind == "seg" else classes == [0, 1]
        assert np.array_equal(tiled.segmentation, whole.segmentation)


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_from_the_command_line(kind, images, models, call, tmp_path):
    tiles = ("--tile", 64, "--overlap", 20)
    assert call("infer", images / "plain.png", *models[kind], "--out", tmp_path / "out", *tiles)[0] == 0
    assert cv2.imread(str(tmp_path / "out" / "visualizations" / "plain.jpg")).shape[0] == 96
    if kind == "seg":
        assert cv2.imread(str(tmp_path / "out" / "labels" / "plain.png"), -1).shape == (96, 96)
    else:
        results = json.loads((tmp_path / "out" / "predictions.json").read_text())
        coco = COCO()
        coco.imgs = {1: dict(height=96, width=96)}
        assert len(results) > 20  # a tile has at most 20
        assert {type(result["cut"]) for result in results} == {bool}
        assert all(coco.annToMask(result).sum() > 0 for result in results)


@pytest.mark.parametrize("kind", KINDS)
def test_videos_in_a_coco_json(kind, image, models, call, tmp_path):
    """Maps of frames stay below labels, and every frame has an id."""
    names = ["../up.mp4", str(tmp_path / "elsewhere" / "absolute.avi"), "sub/a.mp4", "sub/a.png"]
    for name in names:
        path = (tmp_path / "ann" / name).resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), image) if path.suffix == ".png" else write_video(path, image, 2)
    (tmp_path / "ann").mkdir(exist_ok=True)
    categories = [dict(id=number, name=name) for number, name in enumerate(("circle", "square", "triangle", "star"))]
    entries = [dict(id=number, file_name=name) for number, name in enumerate(names, start=7)]
    source, out = tmp_path / "ann" / "truth.json", tmp_path / "out"
    source.write_text(json.dumps(dict(images=entries, categories=categories)))
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    code, _, errors = call("infer", source, *models[kind], "--out", out)
    assert code == 0, errors
    assert all(path.is_relative_to(out) for path in tmp_path.rglob("*") if path.is_file() and path not in before)
    found = json.loads((out / "images.json").read_text())["images"]
    ids = [line * 10**9 + frame for line in (1, 2, 3) for frame in (0, 1)] + [10]
    assert [entry["id"] for entry in found] == ids
    assert [entry["file_name"] for entry in found] == [name for name in names[:3] for _ in range(2)] + names[3:]
    if kind == "det":
        results = COCO(str(out / "images.json")).loadRes(str(out / "predictions.json"))
        assert list(results.imgToAnns) == ids
    else:
        absolute = names[1].removesuffix(".avi").lstrip("/")
        folders = "up.mp4", f"{absolute}.avi", "sub/a.mp4.mp4"
        maps = [f"{folder}/00000{frame}.png" for folder in folders for frame in (0, 1)] + ["sub/a.png.png"]
        assert sorted(str(path.relative_to(out / "labels")) for path in out.rglob("labels/**/*.png")) == sorted(maps)


@pytest.mark.parametrize("tiles", [(), ("--tile", 64)])
def test_objects_below_the_minimum_score_are_not_stored(tiles, images, models, call, tmp_path):
    def results(name: str, *options: object) -> list[dict]:
        arguments = (images / "plain.png", *models["det"], *tiles, "--no-visualizations", "--out", tmp_path / name)
        assert call("infer", *arguments, *options)[0] == 0
        return json.loads((tmp_path / name / "predictions.json").read_text())

    everything = results("all")
    scores = sorted(result["score"] for result in everything)
    limit = (scores[len(scores) // 2 - 1] + scores[len(scores) // 2]) / 2
    kept = results("some", "--min-score", limit)
    assert 0 < len(kept) < len(everything)
    assert kept == [result for result in everything if result["score"] >= limit]


def test_a_segmentor_of_one_class_names_the_background(binary, images, call, tmp_path):
    code, *_ = call("infer", images / "plain.png", *binary[1], "--out", tmp_path / "out", "--alpha", 1)
    assert code == 0
    content = json.loads((tmp_path / "out" / "images.json").read_text())
    assert content["categories"] == [dict(id=0, name="background"), dict(id=1, name="shape")]
    labels = cv2.imread(str(tmp_path / "out" / "labels" / "plain.png"), -1)
    assert np.unique(labels).tolist() == [0, 1]
    drawn = cv2.imread(str(tmp_path / "out" / "visualizations" / "plain.jpg"))
    assert drawn.shape[1] > 96  # with a legend
    colors = [drawn[:96, :96][labels == label].mean(axis=0) for label in (0, 1)]
    assert np.abs(colors[0]).max() < 30 and np.abs(colors[1] - [50, 60, 230]).max() < 30


@pytest.mark.parametrize(
    "change, message",
    [
        ("test_dataloader = dict(dataset=dict(type='MyData'))", "no data set of type MyData is registered: correct"),
        (
            "test_dataloader = dict(dataset=dict(type='BaseSegDataset', metainfo=None))",
            "classes=None in the BaseSegDataset that the config tests on: give it metainfo=dict(classes=('name', ...))",
        ),
        ("model = dict(type='NoModel')", "the model cannot be built: KeyError: 'NoModel is not in the"),
    ],
)
def test_unregistered_names_are_one_line(change, message, models, tmp_path):
    """A config may lack its custom_imports."""
    (tmp_path / "own.py").write_text(f"_base_ = {models['seg'][0]!r}\n{change}\n")
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        Predictor(str(tmp_path / "own.py"), models["seg"][1])
    assert "\n" not in str(error.value)


def test_overwriting_in_a_folder_below_the_inputs(images, image, models, call, tmp_path):
    """A run does not predict its own results, and leaves no file of the earlier run."""
    out, model = images / "out", models["seg"]
    (images / "other").mkdir()
    cv2.imwrite(str(images / "other" / "a.png"), image)
    assert call("infer", images / "sub", *model, "--out", out)[0] == 0
    assert [path.name for path in (out / "visualizations").iterdir()] == ["cmyk.jpg"]
    code, _, errors = call("infer", f"{images}/o*/**/*.*", *model, "--out", out, "--overwrite", "--no-labels")
    assert code == 0 and f"left out 6 below the results' folder {out}" in errors
    assert [str(path.relative_to(out)) for path in sorted(out.rglob("[!.]*.*"))] == [
        "images.json", "inputs.jsonl", "labels/other/a.png", "run.json", "shards/shard-000000.jsonl.gz",
        "visualizations/other/a.jpg",
    ]  # fmt: skip
    assert cv2.imread(str(out / "visualizations" / "other" / "a.jpg")).shape == image.shape  # without a legend


def test_overwriting_empties_a_linked_folder(images, models, call, tmp_path):
    """Large results may lie on another disk."""
    arguments = (images / "sub", *models["seg"], "--out", tmp_path / "out")
    assert call("infer", *arguments)[0] == 0
    linked, disk = tmp_path / "out" / "visualizations", tmp_path / "disk"
    linked.rename(disk)
    linked.symlink_to(disk)
    (disk / "old.jpg").touch()
    assert call("infer", *arguments, "--overwrite")[0] == 0
    assert linked.is_symlink() and [path.name for path in disk.iterdir()] == ["cmyk.jpg"]
