"""Batches, failures among many images, retries, kills and full disks. A run ends in the bytes of an undisturbed run."""

import json
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from batch_runs import (
    can_mount,
    child_processes,
    read_records,
    result_files,
    start_infer,
    start_tool,
    time_limit,
    write_video,
)
from demo import save_untrained
from detections import assert_equal_detections, record_to_detections
from devices import on_each_device_in
from paths import CONFIGS

from xcit_mm.batch import engine, results
from xcit_mm.batch.run import Run
from xcit_mm.utils import cli

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
    checkpoint = pairs["RetinaNet"][1]
    content = torch.load(checkpoint)
    content["state_dict"]["bbox_head.retina_cls.weight"] *= 100  # scores from 0 to 1, not all of 0.01
    content["state_dict"]["bbox_head.retina_cls.bias"] *= 0
    torch.save(content, checkpoint)
    return pairs


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], None]]:
    """Limits the size of files that this process writes, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


class TestBatches:
    @pytest.mark.parametrize("name", ["Mask R-CNN", "RetinaNet", "Semantic FPN", "UperNet"])
    def test_results_of_a_batch_equal_those_of_single_images(
        self, name, four_models, photos, call, tmp_path, before_forward
    ):
        sizes: list[int] = []
        before_forward(lambda images: sizes.append(len(images)))
        for size in (1, 2):
            sizes.clear()
            options = ("--batch-size", size, "--out", tmp_path / str(size), "--no-visualizations")
            assert call("infer", f"{photos}/0[0-8].png", *four_models[name], *options, "--format", "parquet")[0] == 0
            assert sizes == [1] * 9 if size == 1 else sizes == [2, 2, 2, 1, 1, 1]  # of three sizes
        pairs = list(zip(read_records(tmp_path / "1"), read_records(tmp_path / "2"), strict=True))
        for single, batched in pairs:
            assert single.path == batched.path and (single.height, single.width) == (batched.height, batched.width)
            assert (single.masks is not None) == (name == "Mask R-CNN")
        if name in ("Mask R-CNN", "RetinaNet"):
            assert_equal_detections([tuple(map(record_to_detections, pair)) for pair in pairs], 20)
            return
        maps = [
            [cv2.imdecode(np.frombuffer(record.segmentation_map, np.uint8), -1) for record in pair] for pair in pairs
        ]
        assert all((single == batched).mean() > 0.999 for single, batched in maps)
        assert sum(len(np.unique(single)) > 1 for single, _ in maps) > 5

    def test_worker_processes_give_identical_files(self, models, photos, call, tmp_path):
        for workers in (0, 2):
            options = ("--workers", workers, "--out", tmp_path / str(workers), "--shard-size", 5)
            assert call("infer", photos, *models["seg"], *options)[0] == 0
        assert result_files(tmp_path / "0") == result_files(tmp_path / "2")

    @pytest.mark.slow
    def test_masks_that_take_much_memory_are_encoded_before_they_wait(
        self, models, photos, call, tmp_path, monkeypatch
    ):
        write_image, kinds = results.ResultWriter.write_image, set()

        def record(self, number, size, prediction):
            kinds.add(type(prediction.instances.masks))
            return write_image(self, number, size, prediction)

        monkeypatch.setattr(results.ResultWriter, "write_image", record)
        for size, kind in ((2**28, np.ndarray), (0, list)):
            kinds.clear()
            monkeypatch.setattr(engine, "MAX_MASK_BYTES", size)
            assert call("infer", f"{photos}/0[0-3].png", *models["det"], "--out", tmp_path / str(size))[0] == 0
            assert kinds == {kind}
        assert result_files(tmp_path / "0") == result_files(tmp_path / str(2**28))

    def test_an_image_that_fails_does_not_fail_its_batch(self, models, photos, call, tmp_path, before_forward):
        def fail(images: list[torch.Tensor]) -> None:
            if any((image == 255).all() for image in images):  # 07.png
                raise RuntimeError("no kernel\nfor this image")

        before_forward(fail)
        code, printed, errors = call("infer", photos, *models["seg"], "--out", tmp_path, "--batch-size", 4)
        assert code == 3 and "11 of 12 inputs predicted" in printed
        assert f"skipped {photos}/07.png: no kernel for this image" in errors
        assert [Path(record.path).name for record in read_records(tmp_path) if record.error] == ["07.png"]

    def test_out_of_memory_halves_the_batch_and_fails_single_images(
        self, models, photos, call, tmp_path, before_forward
    ):
        sizes: list[int] = []

        def allocate(images: list[torch.Tensor]) -> None:
            sizes.append(len(images))
            if len(images) > 1 or (images[0] == 255).all():
                torch.empty(2**60)

        before_forward(allocate)
        arguments = (f"{photos}/0[0-79]*.png", *models["seg"], "--out", tmp_path, "--batch-size", 4)
        code, _, errors = call("infer", *arguments)
        assert code == 3 and sizes[:6] == [4, 2, 1, 1, 1, 1]
        assert "07.png: out of memory at 160x96 pixels: predict in tiles, or in half precision" in errors
        assert [Path(record.path).name for record in read_records(tmp_path) if record.error] == ["07.png"]

    @pytest.mark.skipif(not can_mount(), reason="only root may mount a small /dev/shm")
    def test_a_small_shared_memory_suffices(self, models, weights, tmp_path):
        """Docker's default is 64 MB. Here, one image of 3 MB exceeds it."""
        (tmp_path / "in").mkdir()
        for number in range(6):
            cv2.imwrite(str(tmp_path / "in" / f"{number}.png"), np.full((1000, 1000, 3), number, np.uint8))
        runs = [
            ("infer", [tmp_path / "in", *models["seg"], "--workers", 2, "--batch-size", 2, "--out", tmp_path / "out"]),
            ("features", ["extract", tmp_path / "in", weights, "--size", 800, "--out", tmp_path / "features.npz"]),
        ]
        processes = [start_tool(name, arguments, tmp_path / name, 2**20) for name, arguments in runs]
        for (name, _), process in zip(runs, processes, strict=True):
            process.join(300)
            hangs = process.is_alive()
            process.kill()
            assert not hangs and process.exitcode == 0, (tmp_path / name).read_text()[-2000:]
        assert len(read_records(tmp_path / "out")) == 6

    @on_each_device_in(["bfloat16"], ["float32", "float16", "bfloat16"])
    def test_another_precision_or_device_finds_the_same(self, device, dtype, models, photos, call, tmp_path):
        is_exact = dtype == "float32"
        for number, (where, precision) in enumerate((("cpu", "float32"), (device, dtype))):
            for kind in ("seg", "det"):
                options = ("--device", where, "--dtype", precision, "--out", tmp_path / f"{kind}{number}")
                assert call("infer", f"{photos}/0[0-3].png", *models[kind], *options, "--no-visualizations")[0] == 0
        pairs = list(zip(*(read_records(tmp_path / f"det{number}") for number in range(2)), strict=True))
        assert all(0 < len(other.boxes) <= 20 for _, other in pairs)
        scores = np.array([[record.scores[0] for record in pair] for pair in pairs])
        assert np.allclose(*scores.T, atol=1e-4 if is_exact else 0.02)
        best = np.array([[record.boxes[0] for record in pair] for pair in pairs])
        assert is_exact or not np.array_equal(best[:, 0], best[:, 1])  # computed in another precision
        maps = [
            np.concatenate([cv2.imread(str(path), -1).ravel() for path in sorted((folder / "labels").iterdir())])
            for folder in (tmp_path / "seg0", tmp_path / "seg1")
        ]
        agreement = (maps[0] == maps[1]).mean()
        assert agreement > 0.999 if is_exact else 0.9 < agreement < 1


class TestVisualizations:
    @pytest.mark.parametrize("kind", ["seg", "det"])
    def test_an_image_that_cannot_be_drawn_keeps_its_predictions(
        self, kind, models, photos, call, tmp_path, monkeypatch, before_forward
    ):
        (tmp_path / "in").mkdir()
        for name in ("00.png", "03.png"):
            (tmp_path / "in" / name).symlink_to(photos / name)
        write_video(tmp_path / "in" / "video.mp4", cv2.imread(str(photos / "00.png")), 2)
        arguments = ("infer", tmp_path / "in", *models[kind], "--score-thr", 0, "--out")
        assert call(*arguments, tmp_path / "whole")[0] == 0
        expected = result_files(tmp_path / "whole")
        assert len([name for name in expected if name.startswith("visualizations")]) == 3

        def fail(*_: object) -> None:
            raise IndexError("no color\nfor label 9")

        name = "draw_segmentation_map" if kind == "seg" else "draw_instances"
        with monkeypatch.context() as patch:
            patch.setattr(f"xcit_mm.prediction.prediction.{name}", fail)
            code, printed, errors = call(*arguments, tmp_path / "out")
        assert code == 0 and "3 of 3 inputs predicted" in printed
        for name in ("00.png", "03.png", "video.mp4"):
            assert errors.count(f"not drawn: {tmp_path}/in/{name}: no color for label 9") == 1
        found = result_files(tmp_path / "out")
        assert found == {name: content for name, content in expected.items() if not name.startswith("visualizations")}
        before_forward(lambda images: pytest.fail("predicted again"))
        assert call(*arguments, tmp_path / "out", "--redraw")[0] == 0
        assert result_files(tmp_path / "out") == expected

    @pytest.mark.parametrize("name", ["coco", "parquet"])
    def test_other_drawings_need_no_prediction(self, name, models, photos, call, tmp_path, before_forward, capsys):
        if name == "parquet":
            pytest.importorskip("pyarrow")
        kind = "seg" if name == "parquet" else "det"  # whose maps are in the shards
        out = tmp_path / "out"
        arguments = ("infer", f"{photos}/0[0-2].png", *models[kind], "--format", name, "--out", out)
        assert call(*arguments, "--no-visualizations")[0] == 0
        before_forward(lambda images: pytest.fail("predicted again"))
        assert call(*arguments, "--alpha", 0.1)[0] == 0 and not (out / "visualizations").exists()
        images = []
        for alpha in (0, 1):
            assert call(*arguments, "--redraw", "--alpha", alpha, "--score-thr", 0, "--no-labels")[0] == 0
            assert len(list((out / "visualizations").iterdir())) == 3
            images.append(cv2.imread(str(out / "visualizations" / "00.jpg")).astype(int))
        assert np.abs(images[0] - images[1]).mean() > 5
        (out / "shards").rename(tmp_path / "shards")
        code, printed, errors = call(*arguments, "--redraw")
        assert code == 3 and "0 of 3 inputs predicted" in printed and "1 shards are pending" in errors


class TestRetries:
    def test_retry_predicts_failed_inputs_and_nothing_else(self, models, photos, call, tmp_path, monkeypatch):
        folder, out = tmp_path / "in", tmp_path / "out"
        folder.mkdir()
        for path in sorted(photos.iterdir())[:6]:
            (folder / path.name).write_bytes(path.read_bytes())
        content = (folder / "03.png").read_bytes()
        (folder / "03.png").write_bytes(content[: len(content) // 4])
        arguments = ("infer", folder, *models["det"], "--shard-size", 2, "--out", out)
        assert call(*arguments)[0] == 3
        before = json.loads((out / "predictions.json").read_text())
        shards = sorted((out / "shards").iterdir())
        times = [path.stat().st_mtime_ns for path in shards]
        assert call(*arguments)[0] == 3  # without --retry-failed nothing is predicted
        assert [path.stat().st_mtime_ns for path in shards] == times

        (folder / "03.png").write_bytes(content)
        bars, reads = [], []
        tqdm, read = cli.tqdm, Run.kept_records
        monkeypatch.setattr(cli, "tqdm", lambda **options: bars.append(tqdm(**options)) or bars[-1])
        monkeypatch.setattr(
            Run, "kept_records", lambda self, *args, **options: reads.append(args) or read(self, *args, **options)
        )
        code, printed, _ = call(*arguments, "--retry-failed")
        assert code == 0 and "6 of 6 inputs predicted" in printed
        assert [(bar.n, bar.total) for bar in bars] == [(1, 1)]
        assert len(reads) == 3  # not once per input
        assert [path.stat().st_mtime_ns == t for path, t in zip(shards, times, strict=True)] == [True, False, True]
        after = json.loads((out / "predictions.json").read_text())
        assert [result for result in after if result["image_id"] != 4] == before
        ids = [result["image_id"] for result in after]
        assert 4 in ids and ids == sorted(ids)

        shards[-1].unlink()
        code, printed, errors = call(*arguments, "--retry-failed")
        assert code == 3 and "4 of 6 inputs predicted" in printed
        assert "1 shards are pending: start again without --retry-failed and --redraw to resume" in errors

    @pytest.mark.parametrize("name", ["coco", "parquet"])
    def test_a_damaged_shard_is_predicted_again(self, name, models, photos, call, tmp_path):
        options = ("--shard-size", 2, "--no-visualizations", "--format", name, "--out", tmp_path)
        arguments = ("infer", f"{photos}/0[0-5].png", *models["seg"], *options)
        assert call(*arguments)[0] == 0
        before = result_files(tmp_path)
        shard = sorted((tmp_path / "shards").iterdir())[1]
        shard.write_bytes(shard.read_bytes()[:-60])
        code, _, errors = call(*arguments)
        assert code == 0 and f"{shard} is damaged" in errors and "predicting it again" in errors
        assert result_files(tmp_path) == before


class TestKills:
    @pytest.mark.parametrize(
        ("kind", "name", "kills"),
        [
            ("seg", "coco", 3),
            pytest.param("det", "coco", 20, marks=pytest.mark.slow),
            pytest.param("det", "parquet", 20, marks=pytest.mark.slow),
        ],
    )
    def test_resume_after_kills_is_bit_identical(self, kind, name, kills, models, photos, tmp_path):
        options = ["--shard-size", 2, "--batch-size", 2, "--workers", 2, "--format", name]
        arguments, log = [photos, *models[kind], *options], tmp_path / "log"

        def run_to_its_end(out: Path) -> None:
            process = start_infer([*arguments, "--out", out], log)
            process.join(300)
            assert process.exitcode == 0, log.read_text()[-2000:]

        run_to_its_end(tmp_path / "undisturbed")
        rng, hits = random.Random(0), 0
        for _ in range(kills):  # of the process or of one of its workers
            process = start_infer([*arguments, "--out", tmp_path / "killed"], log)
            with time_limit(60) as tick:
                while process.is_alive() and not child_processes(process.pid):
                    tick()
            time.sleep(rng.uniform(0, 1.5) if hits else 0)
            pids = [process.pid, *child_processes(process.pid)]
            victim = pids[0] if rng.random() < 0.5 else rng.choice(pids)
            if process.is_alive():
                os.kill(victim, signal.SIGKILL)
                hits += 1
            process.join(120)
            assert process.exitcode is not None, "the process hangs"
        run_to_its_end(tmp_path / "killed")
        assert hits > 0
        assert result_files(tmp_path / "killed") == result_files(tmp_path / "undisturbed")

    def test_a_killed_reader_ends_the_run_in_one_line(self, models, photos, refusal, call, tmp_path, before_forward):
        arguments = ("infer", photos, *models["seg"], "--shard-size", 4)
        arguments += ("--out", tmp_path / "out", "--workers", 1, "--no-visualizations")
        calls: list[int] = []

        def kill(images: list[torch.Tensor]) -> None:
            calls.append(len(images))
            if len(calls) == 6:
                os.kill(child_processes(os.getpid())[-1], signal.SIGKILL)

        before_forward(kill)
        message = refusal(*arguments)
        assert "a process that reads images died" in message and "(1 of 3 shards are completed: start" in message
        assert call(*arguments)[0] == 0
        assert len(read_records(tmp_path / "out")) == 12

    @pytest.mark.parametrize(("size", "visualize"), [(1000, True), (100, False)])
    def test_a_full_disk_ends_the_run_in_one_line(
        self, size, visualize, models, photos, refusal, small_disk, tmp_path, call, before_forward
    ):
        """The first limit stops a visualization, the second one a shard."""
        options = ["--shard-size", 4, "--workers", 0, "--out", tmp_path, "--format", "parquet"]
        arguments = ["infer", photos, *models["seg"], *options, *["--no-visualizations"] * (not visualize)]
        before_forward(lambda _: small_disk(size))
        message = refusal(*arguments)
        assert "File too large" in message and "(0 of 3 shards are completed: start the run again" in message
        assert not list((tmp_path / "shards").iterdir())
        before_forward(lambda _: small_disk(10**9))
        small_disk(10**9)
        assert call(*arguments)[0] == 0
        assert len(read_records(tmp_path)) == 12
