"""run.py alone predicts files and draws them, each file by itself, and replaces no input."""

import errno
import os
import resource
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from helpers.small_models import synthetic_photo
from PIL import Image

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
    command = [sys.executable, "runner.py", str(model), "photo.png", "--out", "drawn"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=dict(PYTHONPATH=str(tmp_path)), capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    local = run.Model(model)
    image = run.read_image(tmp_path / "photo.png")
    prediction = local(image, min_score=0.3)
    drawn = run.read_image(tmp_path / "drawn" / "photo.png.png")
    assert np.array_equal(drawn, run.draw(image, prediction, local.classes))
    assert not np.array_equal(drawn, image)
    rows = run.list_rows(prediction, local.classes)
    assert len(ended.stdout.splitlines()) == len(rows) > 1


def test_script_ends_in_one_line_without_a_model(tmp_path):
    command = [sys.executable, run.__file__, "none.onnx", "photo.png"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "none.onnx" in ended.stderr
    assert ended.stderr.count("\n") == 1


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
    "arguments, message",
    [
        ("photos/a.png photos", "a.png cannot be run"),
        ("models/foreign.onnx photos", "not of xcit-mm export"),
        ("{model} photos --provider TPU", "--provider TPU: onnxruntime has .*CPU"),
        ("{model} empty", "empty has no photos among 0 entries: give another"),
        ("{model} other", "other has no photos among 2 entries: name its sub-folders"),
        ("{model} photos --out photos/../photos", "--out .* the input photos: give another"),
        ("{model} photos/a.png --out link", "--out .* the input photos/a.png: give another"),
        ("{model} photos --out models", "--out .* the input models/model.onnx: give another"),
    ],
)
def test_a_wrong_call_is_one_line_and_replaces_no_input(arguments, message, main, segmentor_file):
    for folder in ("models", "empty", "other/sub"):
        os.makedirs(folder)
    shutil.copy(segmentor_file, "models/model.onnx")
    foreign = onnx.load(segmentor_file)
    del foreign.metadata_props[:]
    onnx.save(foreign, "models/foreign.onnx")
    Path("other/notes.txt").touch()
    Path("link").symlink_to("photos")
    with pytest.raises(ValueError, match=message) as error:
        main(*arguments.format(model="models/model.onnx").split())
    assert "\n" not in str(error.value)
    assert os.listdir("photos") == ["a.png"]


@pytest.mark.parametrize("name", ["setLogLevel", "utils"])
def test_opencv_is_silent_by_the_name_of_each_version(name, main, monkeypatch):
    """`cv2.setLogLevel` until 4.12, `cv2.utils.logging.setLogLevel` from 4.13 on."""
    levels = []
    functions = dict(
        setLogLevel=levels.append,
        utils=SimpleNamespace(logging=SimpleNamespace(setLogLevel=levels.append)),
    )
    monkeypatch.delattr(cv2, "setLogLevel", raising=False)
    monkeypatch.setattr(cv2, "utils", SimpleNamespace())
    monkeypatch.setattr(cv2, name, functions[name], raising=False)
    with pytest.raises(ValueError, match=r"none\.onnx"):
        main("none.onnx", "photos")
    assert levels == [0]


def png_of_many_pixels() -> bytes:
    """Return a PNG whose header claims 1.6e9 pixels."""
    chunks = [
        b"IHDR" + struct.pack(">IIBBBBB", 40000, 40000, 8, 2, 0, 0, 0),
        b"IDAT" + zlib.compress(bytes(100)),
        b"IEND",
    ]
    png = b"\x89PNG\r\n\x1a\n"
    for chunk in chunks:
        png += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return png


@pytest.mark.parametrize(
    "content", [b"", b"no image", png_of_many_pixels()], ids=["empty", "text", "huge"]
)
def test_bad_image_is_one_line_and_the_others_of_a_folder_are_predicted(
    content, main, mask_rcnn_file, capsys
):
    Path("photos/b.png").write_bytes(content)
    shutil.copy("photos/a.png", "photos/c.png")
    assert main(mask_rcnn_file, "photos", "--out", "drawn", "--score-thr", 0.3) == 3
    printed = capsys.readouterr()
    provider, error = printed.err.splitlines()
    assert provider == "provider: CPUExecutionProvider" and error.startswith("photos/b.png ")
    assert "OpenCV" not in error and "cv::" not in error
    prediction = run.Model(mask_rcnn_file)(run.read_image("photos/a.png"), min_score=0.3)
    assert printed.out.count("a.png ") == len(prediction["scores"]) > 1
    assert sorted(os.listdir("drawn")) == ["a.png.png", "c.png.png"]


def test_several_photos_and_folders_are_predicted_each_once(main, segmentor_file, capsys):
    os.mkdir("more")
    shutil.copy("photos/a.png", "more/a.png")
    Path("more/notes.txt").write_text("text")
    Path("link").symlink_to("photos")
    assert main(segmentor_file, "photos/a.png", "more", "link", "--out", "drawn") == 0
    assert sorted(os.listdir("drawn")) == ["a.png-2.png", "a.png.png"]
    assert "more: 1 entries are not photos and left out\n" in capsys.readouterr().err


def test_drawings_replace_only_drawings_of_the_script(main, segmentor_file):
    call = segmentor_file, "photos", "--out", "maps"
    os.mkdir("maps")
    drawn = Path("maps/a.png.png")  # also the name of a map of `xcit-mm predict`
    drawn.write_bytes(b"labels")
    with pytest.raises(ValueError, match=r"a\.png\.png is not a drawing .* move it"):
        main(*call)
    assert drawn.read_bytes() == b"labels"
    drawn.unlink()
    assert main(*call) == 0
    first = drawn.stat().st_mtime_ns
    assert main(*call) == 0 and drawn.stat().st_mtime_ns > first
    assert Image.open(drawn).text == {"Software": "run.py of xcit_mm"}


def test_drawing_of_an_image_whose_name_is_not_utf8(main, segmentor_file, capsys):
    os.rename("photos/a.png", b"photos/gr\xfcn.png")
    assert main(segmentor_file, "photos", "--out", "drawn") == 0
    assert "photos/gr\\udcfcn.png" in capsys.readouterr().out
    assert os.listdir(b"drawn") == [b"gr\xfcn.png.png"]


def test_drawings_that_cannot_be_written_are_one_line_each_and_leave_no_file(
    main, segmentor_file, capsys
):
    long = f"{'x' * 251}.png"
    cv2.imwrite(f"photos/{long}", np.zeros((8, 8, 3), np.uint8))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # as a full disk
    try:
        code = main(segmentor_file, "photos", "--out", "drawn")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 3
    printed = capsys.readouterr()
    _, full, too_long = printed.err.splitlines()
    assert full == f"photos/a.png: [Errno {errno.EFBIG}] File too large"
    assert too_long.startswith(f"photos/{long}: [Errno {errno.ENAMETOOLONG}]")
    assert f"photos/{long} " in printed.out  # its classes are reported
    assert os.listdir("drawn") == []


def test_name_that_opencv_cannot_draw_is_the_number_of_its_class():
    image = synthetic_photo(60, 90)
    box = np.array([[10, 10, 40, 40]], np.float32)
    prediction = dict(boxes=box, scores=np.array([0.5]), labels=np.array([1]))
    drawn = run.draw(image, prediction, ["dog", "\u732b"])
    assert np.array_equal(drawn, run.draw(image, prediction, ["dog", "class 1"]))
    assert [text for _, text, _ in run.list_rows(prediction, ["dog", "\u732b"])] == ["\u732b 0.50"]
