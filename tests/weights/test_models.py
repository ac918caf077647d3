"""Models are found by the names of their configs and weights, and by the folder of their training run."""

import json
import os
import sys
from pathlib import Path

import pytest
from mmengine.config import Config
from paths import ROOT
from processes import Ended, run_script

from xcit_mm import __version__
from xcit_mm.__main__ import main
from xcit_mm.weights.models import find_config, find_model, shipped_models
from xcit_mm.weights.published import PUBLISHED

NAMES = ("maskrcnn_xcit_small_12_p16", "mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco")


def test_every_published_detector_and_segmentor_has_one_config():
    models = shipped_models()
    dense = [name for name, url in PUBLISHED.items() if "/coco/" in url or "/ade/" in url]
    assert len(dense) == 24 and set(dense) <= models.keys()
    assert len({models[name][0] for name in dense}) == 24
    for name in dense:
        config, checkpoint = find_model(name)
        assert find_model(Path(config).stem) == (config, checkpoint) == find_model(f"xcit://{name}")
        assert checkpoint == f"xcit://{name}" and find_config(name) == config
        head, size = name.split("_xcit_")
        size, depth, patch = size.split("_")
        kind = dict(maskrcnn="mask-rcnn", sem_fpn="fpn", upernet="upernet")[head]
        assert Path(config).name.startswith(f"{kind}_xcit-{size[0]}{depth}-{patch}_") and Path(config).is_file()


def test_what_a_name_stands_for_is_reported(capsys):
    for name in NAMES:
        config, checkpoint = find_model(name)
        assert capsys.readouterr().err == f"{name}: {config} with {checkpoint}\n"
    assert find_model(NAMES[0], "my.pth") == (config, "my.pth")


@pytest.mark.parametrize(
    "model, message",
    [
        ("maskrcnn_xcit_smal_12_p16", "work folder: try maskrcnn_xcit_small_12_p16"),
        ("mskrcnn", "try maskrcnn_xcit_tiny_12_p16, maskrcnn_xcit_tiny_12_p8, maskrcnn_xcit_small_12_p16, "),
        (
            "upernet-s12",
            "try upernet_xcit-s12-p16_8xb2-160k_ade20k-512x512, upernet_xcit-s12-p8_8xb2-160k_ade20k-512x512",
        ),
        ("small_12_p8", "try maskrcnn_xcit_small_12_p8, sem_fpn_xcit_small_12_p8, upernet_xcit_small_12_p8"),
        (
            "xyz",
            "neither a config (*.py) nor a model's name nor a work folder: try the names of `xcit-mm weights list`",
        ),
        ("config.py", "config.py has no checkpoint: give one after it"),
        ("retinanet_xcit-s12-p16_fpn_1x_coco", "has no checkpoint"),
    ],
)
def test_a_wrong_name_is_rejected_with_similar_names(model, message):
    if model.startswith("retinanet_"):
        model = next(name for name in shipped_models() if name.startswith("retinanet_"))
    with pytest.raises(ValueError) as error:
        find_model(model)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_partial_name_lists_all_published_models_with_it():
    with pytest.raises(ValueError) as error:
        find_model("maskrcnn")
    listed = str(error.value).partition(": try ")[2].split(", ")
    assert sorted(listed) == sorted(name for name in PUBLISHED if name.startswith("maskrcnn"))


def test_a_work_folder_stands_for_its_config_and_its_best_or_last_checkpoint(shapes, models, call, tmp_path):
    config, checkpoint = models["det"]
    folder = tmp_path / "work_dirs" / "mine"
    folder.mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="must have one config, but has none"):
        find_model(str(folder))
    Config.fromfile(config).dump(folder / "mine.py")  # as mmengine's runner does
    with pytest.raises(ValueError, match="has no checkpoint"):
        find_model(str(folder))
    (folder / "iter_9.pth").symlink_to(checkpoint)
    (folder / "last_checkpoint").write_text(str(folder / "iter_9.pth"))
    assert find_model(str(folder)) == (str(folder / "mine.py"), str(folder / "iter_9.pth"))

    image = next((shapes / "images" / "validation").iterdir())
    code, _, errors = call("infer", image, "--model", folder, "--out", tmp_path / "named")
    assert code == 0 and f"{folder / 'mine.py'} with {folder / 'iter_9.pth'}" in errors
    assert call("infer", image, "--model", config, "--checkpoint", checkpoint, "--out", tmp_path / "paths")[0] == 0
    named, paths = (json.loads((tmp_path / out / "predictions.json").read_text()) for out in ("named", "paths"))
    assert named == paths != []

    (folder / "best_coco_bbox_mAP_iter_8.pth").symlink_to(checkpoint)
    assert find_model(str(folder)).checkpoint == str(folder / "best_coco_bbox_mAP_iter_8.pth")


def command(*arguments: object, cwd: Path) -> Ended:
    return run_script(ROOT / "xcit_mm" / "__main__.py", *map(str, arguments), cwd=cwd)


@pytest.mark.parametrize("arguments", [["--help"], ["weights", "--help"]])
def test_closed_output_ends_the_command_without_a_traceback(arguments, monkeypatch):
    closed, output = os.pipe()
    os.close(closed)  # as `| head -1` does
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("sys.argv", ["xcit-mm", *arguments])
    with os.fdopen(output, "w") as nobody:
        monkeypatch.setattr("sys.stdout", nobody)
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 141


def test_the_command_runs_the_tools(shapes, models, tmp_path):
    assert command("--version", cwd=tmp_path).stdout == f"xcit_mm {__version__}\n"
    usage = command(cwd=tmp_path)
    assert usage.returncode == 0 and usage.stdout.count("\n") <= 24
    assert max(map(len, usage.stdout.splitlines())) <= 120
    wrong = command("infer", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1) and "choose from predict, train" in wrong.stderr
    assert "usage: xcit-mm predict" in command("predict", "--help", cwd=tmp_path).stdout
    images = shapes / "images" / "validation"
    unknown = command("predict", images, "--model", "maskrcn", cwd=tmp_path)
    assert unknown.returncode == 1 and "neither a config" in unknown.stderr and unknown.stderr.count("\n") == 1
    config, checkpoint = models["seg"]
    options = ("--model", config, "--checkpoint", checkpoint)
    found = command("predict", images, *options, "--out", "found", "--workers", 2, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert len(list((tmp_path / "found" / "labels").iterdir())) == 4
