"""run.py alone predicts files, each by itself, without torch and OpenMMLab."""

import shutil
import subprocess
import sys
from collections.abc import Callable

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

    def call(*arguments: object) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "runner.py", *map(str, arguments)],
            cwd=tmp_path,
            env=dict(PYTHONPATH=str(tmp_path)),
            capture_output=True,
            text=True,
        )

    return call


@pytest.mark.parametrize("fixture", ["mask_rcnn_file", "segmentor_file"])
def test_a_copy_prints_predictions_and_names_the_photo_that_fails(
    fixture, request, script, tmp_path
):
    model = request.getfixturevalue(fixture)
    ended = script(model, "broken.png", "photo.png", "--min-score", "0.25")
    assert ended.returncode == 3
    (error,) = ended.stderr.splitlines()
    assert error == "broken.png: the file is broken or not an image"
    local = run.Model(model)
    prediction = local(run.read_image(tmp_path / "photo.png"), min_score=0.25)
    lines = run.describe(prediction, local.classes)
    assert ended.stdout.splitlines() == [f"photo.png {line}" for line in lines]
    assert len(lines) > 1
    assert script(model, "photo.png").returncode == 0


@pytest.mark.parametrize(
    "name, error",
    [
        ("none.onnx", "NoSuchFile: "),
        ("foreign.onnx", "foreign.onnx was not written by xcit-mm export"),
    ],
)
def test_a_file_that_is_no_model_of_export_is_one_line(
    name, error, script, segmentor_file, tmp_path
):
    foreign = onnx.load(segmentor_file)
    onnx.helper.set_model_props(foreign, dict(classes="cat"))
    onnx.save(foreign, tmp_path / "foreign.onnx")
    ended = script(name, "photo.png")
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 1 and error in line
