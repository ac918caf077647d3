"""Videos: a record per frame, and one drawn video."""

import json
import shutil
import struct
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.runs import INFER, model_of, read_images, read_records, run, write_video

from xcit_mm.prediction.videos import iter_frames

# A file may have as many bytes as the journal needs, and a video more.
LIMITED = """
import resource, signal, sys
sys.path.insert(0, {tools!r})
from xcit_mm.prediction.results import Results
import infer

draw_video = Results.draw_video
def draw_limited(*arguments):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY))
    try:
        return draw_video(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
Results.draw_video = draw_limited
sys.argv = {command!r}
sys.exit(infer.main())
"""


@pytest.fixture
def frames(photos) -> list[np.ndarray]:
    images = [cv2.imread(str(photos / name)) for name in ("00.png", "03.png", "06.png")]
    return [np.roll(images[number % 3], 4 * number, axis=1) for number in range(6)]


@pytest.fixture
def folder(photos, frames, tmp_path):
    (tmp_path / "in").mkdir()
    shutil.copy(photos / "00.png", tmp_path / "in" / "b.png")
    write_video(tmp_path / "in" / "a.avi", frames)
    (tmp_path / "in" / "empty.mp4").touch()
    (tmp_path / "in" / "text.mp4").write_text("no video")
    return tmp_path / "in"


@pytest.mark.parametrize("kind", ["seg", "det"])
def test_a_frame_has_a_record_and_the_drawing_its_frames(kind, models, folder, call, tmp_path):
    out = tmp_path / "out"
    command = ("infer", folder, *model_of(models[kind]), "--out", out, "--batch-size", 4)
    code, printed, errors = call(*command)
    assert code == 3 and "2 predicted, 2 failed" in printed
    assert "empty.mp4: ValueError: the file is empty" in errors and "text.mp4: " in errors
    content = read_images(out)
    assert [image["id"] for image in content] == [1, *(3 * 10**9 + frame for frame in range(6))]
    assert [image.get("frame") for image in content] == [None, *range(6)]
    drawn = list(iter_frames(str(out / "visualizations" / "a.avi.mp4")))
    has_legend = drawn[0].shape[1] > 160
    assert len(drawn) == 6 and drawn[0].shape[0] == 96 and has_legend == (kind == "seg")
    if kind == "seg":
        names = [f"{frame:06}.png" for frame in range(6)]
        assert sorted(path.name for path in (out / "labels" / "a.avi").iterdir()) == names
    else:
        found = {
            result["image_id"] for result in json.loads((out / "predictions.json").read_text())
        }
        assert found == {image["id"] for image in content}
    before = (out / "visualizations" / "a.avi.mp4").stat().st_mtime_ns
    records = read_records(out)
    assert call(*command)[0] == 3
    assert (out / "visualizations" / "a.avi.mp4").stat().st_mtime_ns == before
    assert call(*command, "--no-labels", "--score-thr", 0)[0] == 3
    redrawn = list(iter_frames(str(out / "visualizations" / "a.avi.mp4")))
    assert len(redrawn) == 6 and redrawn[0].shape == (96, 160, 3)
    assert read_records(out) == records  # drawn again, not predicted again


def test_a_video_that_fails_keeps_its_frames_and_may_succeed_later(
    models, folder, call, tmp_path, before_forward
):
    calls, out = [], tmp_path / "out"

    def fail(inputs):
        calls.append(inputs)
        if len(calls) == 3:
            raise RuntimeError("the third frame")

    before_forward(fail)
    command = ("infer", folder / "a.avi", *model_of(models["det"]), "--out", out)
    assert call(*command)[0] == 3
    assert [record.get("error") for record in read_records(out)] == [
        "RuntimeError: the third frame"
    ]
    images = read_images(out)
    assert [image["frame"] for image in images] == [0, 1]
    assert not (out / "visualizations" / "a.avi.mp4").exists()
    code, printed, _ = call(*command, "--retry-failed")
    assert code == 0 and "1 predicted: " in printed
    assert len(read_images(out)) == 6
    assert call(*command)[0] == 0


def test_a_disk_that_is_full_ends_the_run_and_the_same_command_ends_it_later(
    models, folder, tmp_path
):
    """OpenCV writes a video without an error on a full disk."""
    command = ["infer.py", folder / "a.avi", *model_of(models["seg"]), "--out", tmp_path / "out"]
    script = tmp_path / "limited.py"
    script.write_text(LIMITED.format(tools=str(ROOT / "tools"), command=list(map(str, command))))
    ended = run(sys.executable, script)
    assert ended.returncode == 1, ended.stderr[-2000:]
    assert "of 6 frames of a.avi.mp4 can be read back; free space" in ended.stderr.splitlines()[-1]
    assert not list((tmp_path / "out").rglob("*.mp4"))
    assert run(sys.executable, INFER, *command[1:]).returncode == 0
    drawing = tmp_path / "out" / "visualizations" / "a.avi.mp4"
    assert len(list(iter_frames(str(drawing)))) == 6
    assert len(read_images(tmp_path / "out")) == 6


def write_webm(path: Path, frames: list[np.ndarray]) -> bytearray:
    """Write a WebM of 10 frames per second, and return its bytes."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"VP80"), 10, frames[0].shape[1::-1])
    for frame in frames:
        writer.write(frame)
    writer.release()
    return bytearray(path.read_bytes())


def test_a_video_with_a_wrong_number_of_frames_in_its_header_is_complete(
    frames, models, call, tmp_path
):
    content = write_webm(tmp_path / "good.webm", frames * 5)
    start = content.index(b"D\x89\x88")
    (duration,) = struct.unpack(">d", content[start + 3 : start + 11])
    content[start + 3 : start + 11] = struct.pack(">d", 2 * duration)
    (tmp_path / "double.webm").write_bytes(content)
    content[start : start + 2] = b"\xec\x89"  # nothing, as of a WebM that was written to a pipe
    (tmp_path / "none.webm").write_bytes(content)
    out = tmp_path / "out"
    code, printed, errors = call("infer", tmp_path, *model_of(models["seg"]), "--out", out)
    assert code == 0 and "3 predicted" in printed
    assert "double.webm ends after 30 frames, though its header says 60" in errors
    assert errors.count("ends after") == 1
    for name in ("good", "double", "none"):
        drawing = cv2.VideoCapture(str(out / "visualizations" / f"{name}.webm.mp4"))
        assert drawing.get(cv2.CAP_PROP_FRAME_COUNT) == 30 and drawing.get(cv2.CAP_PROP_FPS) == 10


def test_a_video_cut_short_is_named_and_keeps_its_frames(frames, tmp_path, capsys):
    path = write_video(tmp_path / "a.avi", frames * 10)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    count = len(list(iter_frames(str(path))))
    assert 20 < count < 40
    assert f"a.avi ends after {count} frames, though its header says 60" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("http://host/a.mp4", ValueError, "download the file first"),
        ("none.mp4", FileNotFoundError, "none.mp4"),
    ],
)
def test_a_video_that_is_no_file_is_named(path, error, message):
    with pytest.raises(error, match=message):
        next(iter_frames(path))
