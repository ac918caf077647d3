"""Videos of a run: damaged files, names, ids, and their distribution over processes."""

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from batch_runs import read_records, result_files, start_infer, time_limit, write_video

from xcit_mm.batch import predict_many
from xcit_mm.batch.engine import Engine
from xcit_mm.batch.merging import merge_shards
from xcit_mm.batch.run import open_run


@pytest.fixture
def folder(photos, tmp_path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.png").symlink_to(photos / "00.png")
    return tmp_path / "in"


def test_a_video_is_claimed_when_it_is_reached(models, folder, call, tmp_path, monkeypatch):
    """Otherwise, one of two ranks claims all videos by reading ahead."""
    for name in "acd":
        write_video(folder / f"{name}.avi", np.zeros((64, 64, 3), np.uint8), 2)
    work, completed = Engine.work, []

    def count(shards: Iterable[int]) -> Iterator[int]:
        for shard in shards:
            completed.append(len(list((tmp_path / "out" / "shards").glob("shard-*"))))
            yield shard

    monkeypatch.setattr(Engine, "work", lambda self, shards: work(self, count(shards)))
    options = ("--workers", 1, "--no-visualizations", "--out", tmp_path / "out")
    assert call("infer", folder, *models["seg"], *options)[0] == 0
    assert completed == [0, 1, 1, 3]  # the second video while the image is predicted


@pytest.mark.slow
@pytest.mark.parametrize("kind, name, frames", [("seg", "coco", 150), ("det", "parquet", 75)])
def test_a_killed_run_resumes_within_a_video(kind, name, frames, models, photos, call, tmp_path):
    pytest.importorskip("pyarrow")
    images = [cv2.imread(str(path)) for path in sorted(photos.glob("0[0369].png"))]
    writer = cv2.VideoWriter(str(tmp_path / "a.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 5, images[0].shape[1::-1])
    for number in range(frames):
        writer.write(np.roll(images[number % 4], number, axis=1))
    writer.release()
    arguments, shards = [tmp_path / "a.avi", *models[kind], "--format", name], tmp_path / "out" / "shards"
    options = ["--batch-size", 3, "--workers", 0, "--out"]
    process = start_infer([*arguments, *options, tmp_path / "out"], tmp_path / "log")
    with time_limit(120) as tick:
        while len(list(shards.glob(".frames-*"))) < 1:
            assert process.is_alive(), (tmp_path / "log").read_text()[-2000:]
            tick()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    chunks = len(list(shards.glob(".frames-*")))
    assert not list(shards.glob("shard-*")) and 1 <= chunks <= 2
    time.sleep(0.1)
    (tmp_path / "killed").touch()

    assert call("infer", *arguments, *options, tmp_path / "out")[0] == 0
    assert call("infer", *arguments, *options, tmp_path / "undisturbed")[0] == 0
    assert result_files(tmp_path / "out") == result_files(tmp_path / "undisturbed")
    assert len(read_records(tmp_path / "out")) == frames and not list(shards.glob(".frames-*"))
    if kind == "seg":  # maps of restored frames are not written again
        maps = sorted((tmp_path / "out" / "labels" / "a.avi").iterdir())
        killed = (tmp_path / "killed").stat().st_mtime_ns
        restored = [path.stat().st_mtime_ns < killed for path in maps]
        assert restored == [True] * 66 * chunks + [False] * (frames - 66 * chunks)


def test_a_video_too_wide_for_mp4_is_predicted_and_not_drawn(models, folder, call, tmp_path):
    video = write_video(folder / "wide.avi", np.zeros((32, 9000, 3), np.uint8), 3)
    code, printed, errors = call("infer", folder, *models["seg"], "--out", tmp_path / "out")
    assert code == 0 and "2 of 2 inputs predicted" in printed
    assert f"not drawn: {video}: 32x" in errors and not (tmp_path / "out" / "visualizations" / "wide.mp4").exists()


def test_a_video_whose_end_is_missing_is_a_failure_with_the_frames_before(models, folder, call, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    video = write_video(folder / "a.avi", noise, 40)
    arguments = ("infer", folder, *models["seg"], "--no-visualizations", "--out", tmp_path / "out")
    assert call(*arguments)[0] == 0
    video.write_bytes(video.read_bytes()[: video.stat().st_size // 4])
    code, printed, errors = call(*arguments, "--overwrite")
    assert code == 3 and "1 of 2 inputs predicted" in printed
    *frames, failure = [record for record in read_records(tmp_path / "out") if record.file_name == "a.avi"]
    assert 5 <= len(frames) <= 12 and not any(record.error for record in frames)
    assert failure.error == f"{len(frames)} of 40 frames can be read: repair the video, or its header"
    assert f"skipped {video}: {failure.error}" in errors


def test_a_video_whose_name_is_not_utf_8_fails_alone(models, folder, tmp_path):
    write_video(folder / "a.avi", np.zeros((64, 64, 3), np.uint8), 2)
    os.rename(os.fsencode(folder / "a.avi"), os.fsencode(folder) + b"/\xff.avi")
    report = predict_many(folder, *models["seg"], tmp_path / "out")
    assert report.predicted == 1
    assert report.failures == [f"{folder}/\udcff.avi: OpenCV crashes on a path that is not UTF-8: rename the file"]


def test_an_id_belongs_to_its_input(models, folder, call, tmp_path):
    """The number of frames changes by a repair, and the first shard is missing after an interrupt."""
    out, video = tmp_path / "out", folder / "a.avi"
    video.touch()
    arguments = ("infer", folder, *models["seg"], "--no-visualizations", "--out", out)

    def ids() -> dict[tuple[str, int | None], int]:
        images = json.loads((out / "images.json").read_text())["images"]
        return {(image["file_name"], image.get("frame")): image["id"] for image in images}

    assert call(*arguments)[0] == 3 and ids() == {("b.png", None): 2}
    write_video(video, np.zeros((64, 64, 3), np.uint8), 2)
    assert call(*arguments, "--retry-failed")[0] == 0
    assert ids() == {("a.avi", 0): 1_000_000_000, ("a.avi", 1): 1_000_000_001, ("b.png", None): 2}
    run = open_run(out)
    run.shard_path(0).unlink()
    merge_shards(run, interrupted=True)
    assert ids() == {("b.png", None): 2}
