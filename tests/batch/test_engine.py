"""Many images at once: batches, what fails among them, and runs that are stopped and gone on with."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from demo import save_untrained
from devices import on_each_device_in
from paths import CONFIGS, ROOT
from processes import CONTEXT
from tqdm import tqdm

from xcit_mm.batch import engine
from xcit_mm.batch import workers as hands
from xcit_mm.batch.manifest import open_run
from xcit_mm.prediction.predictor import Predictor

TRUNK = "model = dict(backbone=dict(arch='n12', init_cfg=None), {more})"
RETINANET = f"""
_base_ = "{CONFIGS}/retinanet/retinanet_xcit-s12-p16_fpn_1x_coco.py"
{TRUNK.format(more="neck=dict(in_channels=[128] * 3), test_cfg=dict(score_thr=0.0, max_per_img=20)")}
test_pipeline = [
    dict(type="LoadImageFromFile"), dict(type="Resize", scale=(160, 96), keep_ratio=True),
    dict(type="PackDetInputs", meta_keys=("img_path", "ori_shape", "img_shape", "scale_factor")),
]
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
"""
UPERNET = f"""
_base_ = "{CONFIGS}/upernet/upernet_xcit-s12-p16_8xb2-160k_ade20k-512x512.py"
{TRUNK.format(more="decode_head=dict(in_channels=[128] * 4), auxiliary_head=dict(in_channels=128)")}
test_pipeline = [
    dict(type="LoadImageFromFile"), dict(type="Resize", scale=(160, 96), keep_ratio=True), dict(type="PackSegInputs"),
]
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
"""


@pytest.fixture(scope="session")
def four_models(models, tmp_path_factory) -> dict[str, tuple[str, str]]:
    """Config and checkpoint by the model's name."""
    folder = tmp_path_factory.mktemp("heads")
    pairs = {"Mask R-CNN": models["det"], "Semantic FPN": models["seg"]}
    for name, text in (("RetinaNet", RETINANET), ("UperNet", UPERNET)):
        config, checkpoint = folder / f"{name}.py", folder / f"{name}.pth"
        config.write_text(text)
        save_untrained(config, checkpoint)
        pairs[name] = str(config), str(checkpoint)
    return pairs


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """Twelve images of three sizes."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(12):
        shape = [(96, 160), (160, 96), (96, 96)][number % 3]
        image = cv2.resize(rng.integers(0, 256, (6, 6, 3)).astype(np.uint8), shape[::-1], interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / f"{number:02}.png"), image)
    return folder


def rows_of(out: Path) -> list:
    run = open_run(out)
    return [row for part in range(len(run.parts)) for row in run.rows(part)]


@pytest.mark.parametrize("name", ["Mask R-CNN", "RetinaNet", "Semantic FPN", "UperNet"])
def test_batches_give_what_single_images_do(name, four_models, photos, call, tmp_path, monkeypatch):
    sizes = []
    forward = Predictor._forward
    monkeypatch.setattr(Predictor, "_forward", lambda self, batch: sizes.append(len(batch)) or forward(self, batch))
    for size in (1, 3):
        sizes.clear()
        options = ("--batch-size", size, "--out", tmp_path / str(size), "--no-pictures", "--format", "parquet")
        assert call("infer", photos, *four_models[name], *options)[0] == 0
        assert sizes == [1] * 12 if size == 1 else sizes == [3, 3, 3, 1, 1, 1]  # of three sizes
    compared = 0
    for alone, together in zip(rows_of(tmp_path / "1"), rows_of(tmp_path / "3"), strict=True):
        assert alone.path == together.path and (alone.height, alone.width) == (together.height, together.width)
        if alone.boxes is None:
            maps = [cv2.imdecode(np.frombuffer(one.segmentation_map, np.uint8), -1) for one in (alone, together)]
            assert (maps[0] == maps[1]).mean() > 0.999 and maps[0].shape == (alone.height, alone.width)
            compared += len(np.unique(maps[0])) > 1
        else:
            assert alone.labels == together.labels
            assert np.allclose(alone.boxes, together.boxes, atol=1e-3)
            assert np.allclose(alone.scores, together.scores, atol=1e-4)
            assert (alone.masks is None) == (name == "RetinaNet")
            compared += len(alone.boxes)
    assert compared > 5


def test_workers_and_this_process_read_alike(models, photos, call, tmp_path):
    for workers in (0, 2):
        options = ("--workers", workers, "--out", tmp_path / str(workers), "--part-size", 5)
        assert call("infer", photos, *models["seg"], *options)[0] == 0
    first, second = (sorted(path for path in (tmp_path / name).rglob("[!.]*.*")) for name in ("0", "2"))
    assert [path.name for path in first] == [path.name for path in second]
    for one, other in zip(first, second, strict=True):
        if one.name != "run.json":
            assert one.read_bytes() == other.read_bytes(), one


def test_one_that_fails_does_not_take_its_batch_along(models, photos, call, tmp_path, monkeypatch):
    forward = Predictor._forward

    def fail(self, batch):
        if any("07.png" in str(seen) for seen in ids[-len(batch) :]):
            raise RuntimeError("no kernel\nfor this image")
        return forward(self, batch)

    ids = []
    together = engine.Engine._predict_batch
    monkeypatch.setattr(
        engine.Engine,
        "_predict_batch",
        lambda self, batch: ids.extend(one.task.given.path for one in batch) or together(self, batch),
    )
    monkeypatch.setattr(Predictor, "_forward", fail)
    code, printed, errors = call("infer", photos, *models["seg"], "--out", tmp_path, "--batch-size", 4, "--workers", 0)
    assert code == 1 and "11 of 12 files done" in printed
    assert f"skipped {photos}/07.png: no kernel for this image" in errors
    assert [Path(row.path).name for row in rows_of(tmp_path) if row.error] == ["07.png"]


def test_what_cannot_be_drawn_does_not_end_the_run(models, photos, call, tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    for name in ("00.png", "03.png"):
        (tmp_path / "in" / name).symlink_to(photos / name)
    image = cv2.imread(str(photos / "00.png"))
    film = cv2.VideoWriter(str(tmp_path / "in" / "film.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 5, image.shape[1::-1])
    film.write(image)
    film.release()

    def fail(*_: object) -> None:
        raise IndexError("no colour\nfor label 9")

    monkeypatch.setattr(engine, "draw_segmentation_map", fail)
    code, printed, errors = call("infer", tmp_path / "in", *models["seg"], "--out", tmp_path / "out", "--workers", 0)
    assert code == 1 and "0 of 3 files done" in printed
    assert [row.error for row in rows_of(tmp_path / "out") if row.error] == ["its picture: no colour for label 9"] * 3
    assert f"skipped {tmp_path}/in/00.png: its picture: no colour for label 9" in errors


def test_out_of_memory_halves_the_batch(models, photos, call, tmp_path, monkeypatch):
    forward, sizes = Predictor._forward, []

    def limited(self, batch):
        sizes.append(len(batch))
        if len(batch) > 1:
            monkeypatch.setattr(self.model, "test_step", lambda data: torch.empty(2**60))
        found = forward(self, batch)
        if len(batch) > 1:
            monkeypatch.undo()
            monkeypatch.setattr(Predictor, "_forward", limited)
        return found

    monkeypatch.setattr(Predictor, "_forward", limited)
    code, *_ = call(
        "infer", f"{photos}/0[0369].png", *models["seg"], "--out", tmp_path, "--batch-size", 4, "--workers", 0
    )
    assert code == 0
    assert sizes == [4, 2, 1, 1, 1, 1]
    assert not any(row.error for row in rows_of(tmp_path))


def test_an_image_too_large_for_the_memory_is_told(models, photos, call, tmp_path, monkeypatch):
    monkeypatch.setattr(Predictor, "_forward", lambda self, batch: None)
    code, _, errors = call("infer", photos / "00.png", *models["seg"], "--out", tmp_path)
    assert code == 1
    assert "out of memory at 96x160 pixels: predict in tiles, or in half precision" in errors


@on_each_device_in(["bfloat16"], ["float32", "float16", "bfloat16"])
def test_another_precision_or_device(device, dtype, models, photos, call, tmp_path):
    """Finds what float32 on the CPU finds, exactly if it is float32 too."""
    exact = dtype == "float32"
    for number, given in enumerate((("cpu", "float32"), (device, dtype))):
        for kind in ("seg", "det"):
            options = (
                "--device",
                given[0],
                "--dtype",
                given[1],
                "--out",
                tmp_path / f"{kind}{number}",
                "--no-pictures",
            )
            assert call("infer", photos, *models[kind], *options)[0] == 0
    one, other = (rows_of(tmp_path / f"det{number}") for number in range(2))
    assert all(0 < len(row.boxes) <= 20 for row in other)
    scores = np.array([[a.scores[0], b.scores[0]] for a, b in zip(one, other, strict=True)])
    assert np.allclose(*scores.T, atol=1e-4 if exact else 0.02)
    best = np.array([[a.boxes[0], b.boxes[0]] for a, b in zip(one, other, strict=True)])
    assert exact or not np.array_equal(best[:, 0], best[:, 1])  # it was computed in another precision
    maps = [
        [cv2.imread(str(path), -1) for path in sorted((tmp_path / f"seg{number}" / "labels").iterdir())]
        for number in range(2)
    ]
    agreement = np.mean([(one == other).mean() for one, other in zip(*maps, strict=True)])
    assert agreement > 0.999 if exact else 0.9 < agreement < 1


def test_failures_are_tried_again_when_asked(models, photos, call, tmp_path, monkeypatch):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for path in sorted(photos.iterdir())[:6]:
        (folder / path.name).write_bytes(path.read_bytes())
    good = (folder / "03.png").read_bytes()
    (folder / "03.png").write_bytes(good[: len(good) // 4])
    arguments = ("infer", folder, *models["det"], "--part-size", 2)
    assert call(*arguments, "--out", out)[0] == 1
    before = json.loads((out / "predictions.json").read_text())
    parts = sorted((out / "parts").iterdir())
    times = [path.stat().st_mtime_ns for path in parts]
    assert call(*arguments, "--out", out)[0] == 1  # a second start is no second try
    assert [path.stat().st_mtime_ns for path in parts] == times

    (folder / "03.png").write_bytes(good)
    bars = []
    monkeypatch.setattr(hands, "tqdm", lambda **options: bars.append(tqdm(**options)) or bars[-1])
    code, printed, _ = call(*arguments, "--out", out, "--retry-failed")
    assert code == 0 and "6 of 6 files done" in printed
    assert [(bar.n, bar.total) for bar in bars] == [(1, 1)]  # of the two of its part
    assert [path.stat().st_mtime_ns == t for path, t in zip(parts, times, strict=True)] == [True, False, True]
    after = json.loads((out / "predictions.json").read_text())
    assert [one for one in after if one["image_id"] != 4] == before
    assert any(one["image_id"] == 4 for one in after)
    assert [one["image_id"] for one in after] == sorted(one["image_id"] for one in after)


@pytest.mark.parametrize("name", ["coco", "parquet"])
def test_a_damaged_part_is_predicted_again(name, models, photos, call, tmp_path):
    options = ("--part-size", 4, "--no-pictures", "--format", name, "--out", tmp_path)
    arguments = ("infer", photos, *models["seg"], *options)
    assert call(*arguments)[0] == 0
    files = sorted(path for path in tmp_path.rglob("[!.]*.*"))
    whole = [path.read_bytes() for path in files]
    part = sorted((tmp_path / "parts").iterdir())[1]
    part.write_bytes(part.read_bytes()[:-60])
    code, _, errors = call(*arguments)
    assert code == 0 and f"{part} is damaged" in errors and "predicting it again" in errors
    assert [path.read_bytes() for path in files] == whole


def infer(arguments: list[str], log: Path) -> None:
    """tools/infer.py in a process of its own."""
    import importlib

    for descriptor in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    torch.set_num_threads(1)
    sys.argv = ["infer.py", *arguments]
    sys.exit(importlib.import_module("infer").main())


def started(arguments: list[str], log: Path) -> "CONTEXT.Process":
    process = CONTEXT.Process(target=infer, args=(arguments, log))
    process.start()
    return process


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return list(map(int, found.read_text().split())) if found.exists() else []


def results(out: Path) -> dict[str, bytes]:
    """All that a run leaves, but for what tells where and when."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("[!.]*.*")
        if path.is_file() and path.name != "run.json"
    }


def survive(arguments: list[str], out: Path, kills: int, seed: int, log: Path) -> int:
    """Start a run again and again, each time killing it or one of its workers, until it ends; kills that hit."""
    rng, hit = random.Random(seed), 0
    for _ in range(kills):
        process = started([*arguments, "--out", str(out)], log)
        deadline = time.time() + 60
        while process.is_alive() and not children(process.pid) and time.time() < deadline:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 1.5))
        victims = [process.pid, *children(process.pid)]
        victim = victims[0] if rng.random() < 0.5 else rng.choice(victims)
        if process.is_alive():
            os.kill(victim, signal.SIGKILL)
            hit += 1
        process.join(120)
        assert process.exitcode is not None, "it hangs"
    process = started([*arguments, "--out", str(out)], log)
    process.join(300)
    assert process.exitcode == 0, log.read_text()[-2000:]
    return hit


@pytest.mark.parametrize(
    ("kind", "name", "kills"),
    [
        ("seg", "coco", 3),
        pytest.param("det", "coco", 20, marks=pytest.mark.slow),
        pytest.param("det", "parquet", 20, marks=pytest.mark.slow),
    ],
)
def test_killed_at_any_moment(kind, name, kills, models, photos, tmp_path):
    arguments = [
        str(photos),
        *models[kind],
        "--part-size",
        "2",
        "--batch-size",
        "2",
        "--workers",
        "2",
        "--format",
        name,
    ]
    process = started([*arguments, "--out", str(tmp_path / "calm")], tmp_path / "log")
    process.join(300)
    assert process.exitcode == 0
    assert survive(arguments, tmp_path / "killed", kills, seed=0, log=tmp_path / "log") > 0
    assert results(tmp_path / "killed") == results(tmp_path / "calm")


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Callable[[int], None]]:
    """Limits the size of files that this process writes, as a full disk would."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize(("size", "pictures"), [(1000, True), (100, False)])
def test_a_full_disk(size, pictures, models, photos, refusal, small_disk, tmp_path, call, monkeypatch):
    # In this process: what workers hand over goes through files too.
    options = ["--part-size", 4, "--workers", 0, "--out", tmp_path, *["--no-pictures"] * (not pictures)]
    arguments = ["infer", photos, *models["seg"], *options, "--format", "parquet"]
    work = engine.Engine.work
    monkeypatch.setattr(engine.Engine, "work", lambda self, parts: small_disk(size) or work(self, parts))
    message = refusal(*arguments)
    assert "File too large" in message and "(0 of 3 parts are done: start again to go on)" in message
    assert not list((tmp_path / "parts").iterdir())
    monkeypatch.setattr(engine.Engine, "work", work)
    small_disk(10**9)
    assert call(*arguments)[0] == 0
    assert len(rows_of(tmp_path)) == 12


def test_a_killed_worker_ends_the_run_in_one_line(models, photos, refusal, tmp_path, monkeypatch, call):
    arguments = ["infer", photos, *models["seg"], "--part-size", 4, "--out", tmp_path, "--workers", 1]
    predicted = engine.Engine._predict_batch

    def kill(self, batch):
        if batch[0].task.number == 5:
            os.kill(children(os.getpid())[-1], signal.SIGKILL)
        return predicted(self, batch)

    monkeypatch.setattr(engine.Engine, "_predict_batch", kill)
    message = refusal(*arguments)
    assert "DataLoader worker" in message and "(1 of 3 parts are done: start again to go on)" in message
    monkeypatch.undo()
    assert call(*arguments)[0] == 0


def test_what_waits_for_a_batch_is_kept_by_ctrl_c(models, photos, call, tmp_path, monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    forward, calls = Predictor._forward, []

    def interrupted(self, batch):
        calls.append(batch)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return forward(self, batch)

    monkeypatch.setattr(Predictor, "_forward", interrupted)
    # The first, of a size of its own, waits until the end.
    for number in (0, 1, 4, 7, 10):
        (tmp_path / f"{number:02}.png").write_bytes((photos / f"{number:02}.png").read_bytes())
    options = ("--batch-size", 2, "--workers", 0, "--out", tmp_path / "out")
    code, printed, _ = call("infer", tmp_path, *models["seg"], *options)
    signal.signal(signal.SIGINT, before)
    assert code == 130 and "interrupted: 4 of 5 files done" in printed
    assert [Path(row.path).name for row in rows_of(tmp_path / "out")] == ["01.png", "04.png", "07.png", "10.png"]
    assert call("infer", tmp_path, *models["seg"], *options)[0] == 0
    assert len(rows_of(tmp_path / "out")) == 5


def test_ctrl_c_beside_a_damaged_part(models, photos, call, tmp_path, monkeypatch):
    arguments = ("infer", photos, *models["seg"], "--part-size", 4, "--no-pictures", "--out", tmp_path)
    assert call(*arguments)[0] == 0
    first, _, last = sorted((tmp_path / "parts").iterdir())
    first.write_bytes(first.read_bytes()[:-20])
    last.unlink()

    def interrupt(self, parts):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.Engine, "work", interrupt)
        code, _, errors = call(*arguments)
    assert code == 130 and f"interrupted: {first} is damaged" in errors and "start again to go on" in errors
    assert call(*arguments)[0] == 0
    assert len(rows_of(tmp_path)) == 12


def test_retrying_what_failed_leaves_the_rest_undone_and_says_so(models, photos, call, tmp_path, monkeypatch):
    arguments = ("infer", photos, *models["seg"], "--part-size", 4, "--no-pictures", "--out", tmp_path)
    assert call(*arguments)[0] == 0
    sorted((tmp_path / "parts").iterdir())[-1].unlink()
    code, printed, errors = call(*arguments, "--retry-failed")
    assert code == 1 and "8 of 12 files done" in printed
    assert "1 parts are not done: start again without --retry-failed to go on" in errors


def test_a_part_is_read_once_to_try_its_failures_again(models, photos, call, tmp_path, monkeypatch):
    folder = tmp_path / "in"
    folder.mkdir()
    for path in sorted(photos.iterdir()):
        (folder / path.name).write_bytes(path.read_bytes() if path.name != "03.png" else b"")
    arguments = ("infer", folder, *models["seg"], "--no-pictures", "--out", tmp_path / "out")
    assert call(*arguments)[0] == 1
    kept, read = engine.Engine._kept, []
    monkeypatch.setattr(engine.Engine, "_kept", lambda self, part: read.append(part) or kept(self, part))
    assert call(*arguments, "--retry-failed")[0] == 1
    assert len(read) == 2  # before and after


def test_images_wait_in_no_larger_number_for_tiles(models, photos, call, tmp_path, monkeypatch):
    ahead, loader = [], engine.DataLoader

    def noted(*args, **options):
        ahead.append(options["prefetch_factor"])
        return loader(*args, **options)

    monkeypatch.setattr(engine, "DataLoader", noted)
    for options in (["--batch-size", 16], ["--batch-size", 16, "--tile", 64]):
        out = tmp_path / str(len(options))
        assert call("infer", photos / "00.png", *models["seg"], "--workers", 1, *options, "--out", out)[0] == 0
    assert ahead == [32, 2]


def test_more_images_at_once_than_files_may_be_open(models, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(96):
        cv2.imwrite(str(folder / f"{number:03}.png"), np.zeros((32 + 16 * (number // 24), 32, 3), np.uint8))
    limit = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 4096)); "
    command = [sys.executable, "-c", limit + "sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"]
    options = ["--batch-size", "32", "--out", tmp_path / "out"]
    ended = subprocess.run(
        [*command, ROOT / "tools" / "infer.py", folder, *models["seg"], *options], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-500:]


@pytest.mark.parametrize("kind", ["seg", "det"])
def test_a_video_that_no_film_can_hold_fails_alone(kind, models, photos, call, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    film = cv2.VideoWriter(str(folder / "wide.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 5, (9000, 32))
    for _ in range(3):
        film.write(np.zeros((32, 9000, 3), np.uint8))
    film.release()
    (folder / "x.png").write_bytes((photos / "00.png").read_bytes())
    code, printed, errors = call("infer", folder, *models[kind], "--out", tmp_path / "out")
    assert code == 1 and "1 of 2 files done" in printed
    assert f"skipped {folder}/wide.avi: its picture: MP4 has no room for 32x" in errors


def test_ids_that_parquet_cannot_hold(models, photos, refusal, tmp_path):
    pytest.importorskip("pyarrow")
    images = [dict(id="first", file_name="00.png")]
    (tmp_path / "list.json").write_text(json.dumps(dict(images=images)))
    options = ("--root", photos, "--format", "parquet", "--out", tmp_path / "out")
    message = refusal("infer", tmp_path / "list.json", *models["seg"], *options)
    assert "ids that are no whole numbers, which --format parquet cannot hold" in message


def test_a_killed_worker_is_no_fault_of_a_video(models, refusal, tmp_path, monkeypatch):
    film = cv2.VideoWriter(str(tmp_path / "film.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 5, (64, 64))
    for _ in range(6):
        film.write(np.zeros((64, 64, 3), np.uint8))
    film.release()
    forward, calls = Predictor._forward, []

    def kill(self, batch):
        calls.append(batch)
        if len(calls) == 3:
            os.kill(children(os.getpid())[-1], signal.SIGKILL)
        return forward(self, batch)

    monkeypatch.setattr(Predictor, "_forward", kill)
    out = tmp_path / "out"
    message = refusal("infer", tmp_path / "film.avi", *models["seg"], "--workers", 1, "--out", out)
    assert "DataLoader worker" in message and "(0 of 1 parts are done: start again to go on)" in message
    assert not list((out / "parts").iterdir())
