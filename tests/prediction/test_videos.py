"""Videos: a record per frame, and one drawn video."""

import json
import shutil

import cv2
import numpy as np
import pytest
from helpers.runs import model_of, read_records, write_video

from xcit_mm.prediction.videos import iter_frames


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
    records = [record for record in read_records(out) if "error" not in record]
    assert [record["frame"] for record in records if record["name"] == "a.avi"] == list(range(6))
    content = json.loads((out / "images.json").read_text())["images"]
    assert [image["id"] for image in content] == [*(2 * 10**9 + frame for frame in range(6)), 2]
    drawn = list(iter_frames(str(out / "visualizations" / "a.avi.mp4")))
    assert (
        len(drawn) == 6 and drawn[0].shape[0] == 96 and (drawn[0].shape[1] > 160) == (kind == "seg")
    )
    if kind == "seg":
        names = [f"{frame:06}.png" for frame in range(6)]
        assert sorted(path.name for path in (out / "labels" / "a.avi").iterdir()) == names
    else:
        found = {
            result["image_id"] for result in json.loads((out / "predictions.json").read_text())
        }
        assert found == {image["id"] for image in content}
    before = (out / "visualizations" / "a.avi.mp4").stat().st_mtime_ns
    assert (
        call(*command)[0] == 3
        and (out / "visualizations" / "a.avi.mp4").stat().st_mtime_ns == before
    )
    assert call(*command, "--no-labels", "--score-thr", 0)[0] == 3
    redrawn = list(iter_frames(str(out / "visualizations" / "a.avi.mp4")))
    assert (
        len(redrawn) == 6
        and redrawn[0].shape == (96, 160, 3)
        and len(read_records(out)) == len(records) + 2
    )


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
    assert [record.get("frame", record.get("error")) for record in read_records(out)] == [
        0,
        1,
        "RuntimeError: the third frame",
    ]
    assert not (out / "visualizations" / "a.avi.mp4").exists()
    code, printed, _ = call(*command, "--retry-failed")
    assert code == 0 and "1 predicted: " in printed
    assert len(json.loads((out / "images.json").read_text())["images"]) == 6
    assert call(*command)[0] == 0


def test_a_video_cut_short_is_a_failure(frames, tmp_path):
    path = write_video(tmp_path / "a.avi", frames * 10)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(Exception, match=r"of 60 frames|Could not open"):
        list(iter_frames(str(path)))
    with pytest.raises(ValueError, match="download the file first"):
        next(iter_frames("http://host/a.mp4"))
    with pytest.raises(FileNotFoundError):
        next(iter_frames(str(tmp_path / "none.mp4")))
