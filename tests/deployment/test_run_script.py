"""run.py alone predicts files and draws them, each file by itself, and replaces no input."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
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


@pytest.mark.parametrize("fixture", ["mask_rcnn_file", "segmentor_file"])
def test_a_copy_runs_without_torch_and_draws(fixture, request, tmp_path):
    model = request.getfixturevalue(fixture)
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    shutil.copy(run.__file__, tmp_path / "runner.py")
    cv2.imwrite(str(tmp_path / "photo.png"), synthetic_photo(203, 330))
    arguments = [model, "photo.png", "--out", "drawn", "--score-thr", "0.25"]
    ended = subprocess.run(
        [sys.executable, "runner.py", *map(str, arguments)],
        cwd=tmp_path,
        env=dict(PYTHONPATH=str(tmp_path)),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    local = run.Model(model)
    image = run.read_image(tmp_path / "photo.png")
    prediction = local(image, min_score=0.25)
    drawn = run.read_image(tmp_path / "drawn" / "photo.png.png")
    assert np.array_equal(drawn, run.draw(image, prediction, local.classes))
    assert not np.array_equal(drawn, image)
    rows = run.list_rows(prediction, local.classes)
    assert len(ended.stdout.splitlines()) == len(rows) > 1


@pytest.fixture
def main(monkeypatch, tmp_path) -> Callable[..., int]:
    """Runs the script in this process, in a folder with photos/a.png, the only photo."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("photos")
    cv2.imwrite("photos/a.png", synthetic_photo(203, 330))

    def call(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["run.py", *map(str, arguments)])
        return run.main()

    return call


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ("photos/a.png photos/a.png", ValueError, "a.png cannot be run"),
        ("models/foreign.onnx photos/a.png", ValueError, "not of xcit-mm export"),
        ("{model} photos/a.png --out photos", FileExistsError, "File exists: 'photos'"),
    ],
)
def test_a_wrong_call_is_one_line_and_writes_nothing(
    arguments, error, message, main, segmentor_file
):
    os.mkdir("models")
    shutil.copy(segmentor_file, "models/model.onnx")
    foreign = onnx.load(segmentor_file)
    del foreign.metadata_props[:]
    onnx.save(foreign, "models/foreign.onnx")
    with pytest.raises(error, match=message) as raised:
        main(*arguments.format(model="models/model.onnx").split())
    assert "\n" not in str(raised.value)
    assert os.listdir("photos") == ["a.png"]
    assert not Path("drawn").exists()


def test_each_photo_that_fails_is_one_line_and_the_others_are_drawn(main, mask_rcnn_file, capsys):
    """A file that is no image, and a second photo of a name, which replaces no drawing."""
    Path("photos/b.png").write_bytes(b"no image")
    shutil.copy("photos/a.png", "photos/c.png")
    os.mkdir("more")
    cv2.imwrite("more/a.png", synthetic_photo(64, 64))
    photos = [*sorted(Path("photos").iterdir()), "more/a.png"]
    assert main(mask_rcnn_file, *photos, "--out", "drawn", "--score-thr", 0.25) == 3
    printed = capsys.readouterr()
    broken, second = printed.err.splitlines()
    assert "photos/b.png is missing, broken or not an image" in broken
    assert second.startswith("more/a.png: ") and "File exists: 'drawn/a.png.png'" in second
    prediction = run.Model(mask_rcnn_file)(run.read_image("photos/a.png"), min_score=0.25)
    assert printed.out.count("photos/a.png ") == len(prediction["scores"]) > 1
    assert sorted(os.listdir("drawn")) == ["a.png.png", "c.png.png"]
    assert run.read_image("drawn/a.png.png").shape == (203, 330, 3)


def test_drawing_that_cannot_be_written_is_one_line_and_the_exit_code_3(
    main, segmentor_file, capsys
):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # as a full disk
    try:
        code = main(segmentor_file, "photos/a.png", "--out", "drawn")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 3
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == f"photos/a.png: [Errno {errno.EFBIG}] File too large"
