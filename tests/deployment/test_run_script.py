"""run.py alone predicts files, each by itself, without torch and OpenMMLab."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cv2
import pytest
from helpers.small_models import synthetic_photo

onnx = pytest.importorskip("onnx")
run = pytest.importorskip("xcit_mm.deployment.run")
# As sitecustomize, it hides these libraries from run.py.
BLOCKER = """
import sys
hidden = ("torch", "mmcv", "mmengine", "mmdet", "mmseg", "PIL", "xcit_mm", "pycocotools")
sys.modules.update(dict.fromkeys(hidden))
"""


@pytest.fixture
def script(tmp_path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs a copy of the script in a folder with a photo.png and a broken.png."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    shutil.copy(run.__file__, tmp_path / "runner.py")
    cv2.imwrite(str(tmp_path / "photo.png"), synthetic_photo(203, 330))
    (tmp_path / "broken.png").write_bytes(b"no image")

    def call(*arguments: object, stdout: Any = subprocess.PIPE) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "runner.py", *map(str, arguments)],
            cwd=tmp_path,
            env=dict(PYTHONPATH=str(tmp_path)),
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )

    return call


@pytest.mark.parametrize("fixture", ["mask_rcnn_file", "segmentor_file"])
def test_a_copy_prints_predictions_and_names_the_photo_that_fails(
    fixture, request, script, tmp_path
):
    model = request.getfixturevalue(fixture)
    latin = os.fsdecode(b"caf\xe9.png")  # whose name is not UTF-8
    shutil.copyfile(tmp_path / "photo.png", tmp_path / latin)
    ended = script(model, "broken.png", "photo.png", latin, "--min-score", "0.25")
    assert ended.returncode == 3
    (error,) = ended.stderr.splitlines()
    assert error == "broken.png: the file is broken or not an image"
    local = run.Model(model)
    prediction = local(run.read_image(tmp_path / "photo.png"), min_score=0.25)
    lines = list(run.describe(prediction, local.classes))
    names = ("photo.png", "caf\\udce9.png")
    assert ended.stdout.splitlines() == [f"{name} {line}" for name in names for line in lines]
    assert len(lines) > 1
    assert script(model, "photo.png").returncode == 0


def test_a_full_disk_ends_the_script_and_is_no_failure_of_a_photo(segmentor_file, script):
    with open("/dev/full", "w") as full:
        ended = script(segmentor_file, "photo.png", "photo.png", stdout=full)
    assert ended.stderr.startswith("OSError: [Errno 28] No space left on device")
    assert "photo.png" not in ended.stderr


@pytest.mark.parametrize(
    "name, message",
    [("none.onnx", "cannot be run"), ("foreign.onnx", "was not written by xcit-mm export")],
)
def test_a_file_that_is_no_model_of_export_is_one_line(
    name, message, segmentor_file, monkeypatch, tmp_path
):
    foreign = onnx.load(segmentor_file)
    onnx.helper.set_model_props(foreign, dict(classes="cat"))
    onnx.save(foreign, tmp_path / "foreign.onnx")
    monkeypatch.setattr("sys.argv", ["run.py", str(tmp_path / name), "photo.png"])
    with pytest.raises(ValueError, match=message) as raised:
        run.main()
    assert "\n" not in str(raised.value)
