"""Videos: a record per frame, and one drawn video."""

import json
import resource
import shutil
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.runs import read_images, read_records

from xcit_mm.prediction.results import Results
from xcit_mm.prediction.videos import iter_frames
from xcit_mm.prediction.videos import write_video as write_mp4


def write_video(path: Path, frames: list[np.ndarray], code: str = "MJPG") -> Path:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*code), 10, (160, 96))
    for frame in frames:
        writer.write(frame)
    writer.release()
    return path


@pytest.fixture
def frames(photos) -> list[np.ndarray]:
    images = [cv2.imread(str(photos / name)) for name in ("00.png", "03.png", "06.png")]
    return [np.roll(images[number % 3], 4 * number, axis=1) for number in range(6)]


@pytest.fixture
def video(frames, tmp_path) -> Path:
    """A video of six frames."""
    (tmp_path / "in").mkdir()
    return write_video(tmp_path / "in" / "a.avi", frames)


def read_drawing(out: Path) -> np.ndarray:
    """Return the frames of the drawn video, (n, H, W, 3)."""
    return np.stack(list(iter_frames(str(out / "visualizations" / "a.avi.mp4"))))


@pytest.mark.parametrize("kind", ["seg", "det"])
def test_a_frame_has_a_record_and_the_drawing_its_frames(kind, command, video, photos, call, out):
    shutil.copy(photos / "00.png", video.parent / "b.png")
    (video.parent / "empty.mp4").touch()
    (video.parent / "text.mp4").write_text("no video")
    arguments = command(video.parent, kind=kind)
    code, printed, errors = call(*arguments, "--batch-size", 4)
    assert code == 3 and "2 predicted, 2 failed" in printed
    assert "empty.mp4: ValueError: the file is empty" in errors and "text.mp4: " in errors
    images = read_images(out)
    ids = [2, *(2 * 10**9 + frame for frame in range(6))]
    assert [image["id"] for image in images] == ids
    assert [image.get("frame") for image in images] == [None, *range(6)]
    width = 160
    assert len(read_drawing(out)) == 6
    assert (read_drawing(out).shape[2] > width) == (kind == "seg")  # the legend
    if kind == "seg":
        names = [f"{frame:06}.png" for frame in range(6)]
        assert sorted(path.name for path in (out / "labels" / "a.avi").iterdir()) == names
    else:
        results = json.loads((out / "predictions.json").read_text())
        assert {result["image_id"] for result in results} == set(ids)
    records = read_records(out)
    path = out / "visualizations" / "a.avi.mp4"
    time = path.stat().st_mtime_ns
    assert call(*arguments)[0] == 3 and path.stat().st_mtime_ns == time
    assert call(*arguments, "--no-labels", "--score-thr", 0)[0] == 3
    assert read_records(out) == records and path.stat().st_mtime_ns == time


def test_a_video_that_fails_keeps_its_frames_and_may_succeed_later(
    command, video, call, out, before_forward
):
    seen = []

    def fail(inputs):
        seen.append(inputs)
        if len(seen) == 3:
            raise RuntimeError("the third frame")

    before_forward(fail)
    arguments = command(video, kind="det")
    assert call(*arguments)[0] == 3
    (record,) = read_records(out)
    assert record["error"] == "RuntimeError: the third frame"
    assert [image["frame"] for image in read_images(out)] == [0, 1]
    assert not list(out.rglob("*.mp4"))
    code, printed, _ = call(*arguments, "--retry-failed")
    assert code == 0 and "1 predicted: " in printed
    assert len(read_images(out)) == 6


def test_a_disk_that_is_full_ends_the_run_and_the_same_command_ends_it_later(
    command, video, call, refusal, out, monkeypatch
):
    """OpenCV writes a video without an error on a full disk. This is no death of a process."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    draw_video = Results.draw_video

    def draw_limited(*arguments: object) -> int:  # enough for the journal, not for the video
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, unlimited[1]))
        try:
            return draw_video(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)

    with monkeypatch.context() as patched:
        patched.setattr(Results, "draw_video", draw_limited)
        for _ in range(4):
            assert "of 6 frames of a.avi.mp4 can be read back" in refusal(*command(video))
    assert not list(out.rglob("*.mp4"))
    assert call(*command(video))[0] == 0
    assert len(read_drawing(out)) == len(read_images(out)) == 6


def test_a_video_with_a_wrong_number_of_frames_in_its_header_is_complete(
    frames, command, call, tmp_path, out
):
    webm = bytearray(write_video(tmp_path / "good.webm", frames * 5, "VP80").read_bytes())
    start = webm.index(b"D\x89\x88")
    (duration,) = struct.unpack(">d", webm[start + 3 : start + 11])
    webm[start + 3 : start + 11] = struct.pack(">d", 2 * duration)
    (tmp_path / "double.webm").write_bytes(webm)
    webm[start : start + 2] = b"\xec\x89"  # nothing, as of a WebM that was written to a pipe
    (tmp_path / "none.webm").write_bytes(webm)
    code, printed, errors = call(*command(tmp_path / "*.webm"))
    assert code == 0 and "3 predicted" in printed
    assert "double.webm ends after 30 frames, though its header says 60" in errors
    assert errors.count("ends after") == 1
    for name in ("good", "double", "none"):
        drawing = cv2.VideoCapture(str(out / "visualizations" / f"{name}.webm.mp4"))
        assert drawing.get(cv2.CAP_PROP_FRAME_COUNT) == 30 and drawing.get(cv2.CAP_PROP_FPS) == 10


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("http://host/a.mp4", ValueError, "download the file first"),
        ("none.mp4", FileNotFoundError, "none.mp4"),
        ("not-utf-8-\udcff.mp4", ValueError, "rename the file"),
    ],
)
def test_a_video_that_cannot_be_opened_is_named(path, error, message):
    with pytest.raises(error, match=message):
        next(iter_frames(path))


def test_frames_that_are_too_large_are_counted_and_not_drawn(video, tmp_path, capsys):
    """A legend makes the frames of a large video wider than MPEG-4 can be."""
    frames = (np.zeros((16, 8200, 3), np.uint8) for _ in range(3))
    assert write_mp4(tmp_path / "a.mp4", frames, str(video), tmp_path / "b.mp4") == 3
    assert "a.avi: 8200x16 pixels are too large for MPEG-4" in capsys.readouterr().err
    assert not (tmp_path / "a.mp4").exists()
