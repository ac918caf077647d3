"""Several processes share a run: ranks of torchrun, and actors of a Ray cluster of two machines."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import pytest
from batch_runs import ENV, INFER, result_files, run, save_raster, start_infer, time_limit, torchrun, write_video
from paths import ROOT

from xcit_mm.batch.run import open_run


def infer(*arguments: object) -> subprocess.CompletedProcess:
    return run(sys.executable, INFER, *arguments)


@contextmanager
def started(command: list[object], out: Path, log: Path, shards: int) -> Iterator[subprocess.Popen]:
    """Start a command and wait until it has written some shards."""
    with (
        log.open("w") as file,
        subprocess.Popen(list(map(str, command)), stdout=file, stderr=file, env=os.environ | ENV) as process,
    ):
        with time_limit(300) as tick:
            while len(list(out.glob("shards/shard-*"))) < shards:
                assert process.poll() is None, log.read_text()
                tick()
        yield process


class TestRanks:
    def test_two_ranks_write_the_files_of_one_process(self, models, photos, tmp_path):
        arguments = [photos, *models["seg"], "--shard-size", 2]
        process = start_infer([*arguments, "--out", tmp_path / "alone"], tmp_path / "log")
        ended = run(*torchrun(29571), *arguments, "--out", tmp_path / "shared", "--launcher", "pytorch")
        process.join()
        assert process.exitcode == 0, (tmp_path / "log").read_text()[-2000:]
        assert ended.returncode == 0, ended.stderr[-2000:]
        assert f"12 of 12 inputs predicted: {tmp_path}/shared" in ended.stdout
        assert result_files(tmp_path / "shared") == result_files(tmp_path / "alone")
        assert all(f"rank {rank}: " in ended.stderr for rank in (0, 1))

    @pytest.mark.slow
    @pytest.mark.parametrize("kind, result", [("seg", "labels/raster.tif"), ("det", "instances/raster.geojson")])
    def test_two_ranks_share_a_raster(self, kind, result, shapes, models, tmp_path):
        """The raster has four rows of tiles, a shard each, and each map depends on the row above."""
        rasterio = pytest.importorskip("rasterio")
        image = cv2.imread(str(shapes / "images" / "validation" / "00000.jpg"))
        raster = save_raster(
            tmp_path / "raster.tif", np.tile(image, (2, 9, 1))[:104, :800], transform=rasterio.Affine.scale(2)
        )
        arguments = [raster, *models[kind], "--tile", 32, "--overlap", 8, "--batch-size", 8, "--workers", 0]
        assert infer(*arguments, "--out", tmp_path / "alone").returncode == 0
        ended = run(*torchrun(29573), *arguments, "--out", tmp_path / "shared", "--launcher", "pytorch")
        assert ended.returncode == 0 and "1 of 1 inputs predicted" in ended.stdout, ended.stderr[-2000:]
        assert len(open_run(tmp_path / "shared").shards) == 4
        assert (tmp_path / "shared" / result).read_bytes() == (tmp_path / "alone" / result).read_bytes()

    @pytest.mark.slow
    def test_ctrl_c_merges_the_records_of_both_ranks(self, models, photos, tmp_path):
        out = tmp_path / "out"
        (tmp_path / "in").mkdir()
        for number in range(200):
            (tmp_path / "in" / f"{number:03}.png").symlink_to(photos / "00.png")
        arguments = [tmp_path / "in", *models["seg"], "--shard-size", 1, "--workers", 0, "--no-visualizations"]
        command = [*torchrun(29572), *arguments, "--out", out, "--launcher", "pytorch"]
        with started(command, out, tmp_path / "log", shards=4) as process:
            process.send_signal(signal.SIGINT)
            assert process.wait(60) != 0
        printed = (tmp_path / "log").read_text()
        assert 4 <= len(list(out.glob("shards/shard-*"))) < 200
        assert re.search(r"^interrupted: \d+ of 200 inputs predicted", printed, re.MULTILINE)
        assert "nothing was predicted" not in printed
        assert len(json.loads((out / "images.json").read_text())["images"]) >= 4


def test_the_error_of_a_missing_ray_names_its_extra(models, photos, refusal, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    message = refusal("infer", photos, *models["seg"], "--out", tmp_path, "--ray", "local")
    assert "--ray needs Ray: pip install xcit_mm[ray]" in message


@contextmanager
def ray_cluster(num_cpus: int) -> Iterator[str]:
    """Start a cluster of two nodes on this machine, and yield its address."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    os.environ |= dict(RAY_AUTH_MODE="disabled", RAY_worker_niceness="0", PYTHONPATH=str(ROOT))
    nodes = Cluster(initialize_head=True, head_node_args=dict(num_cpus=num_cpus))
    nodes.add_node(num_cpus=num_cpus)
    try:
        yield nodes.address
    finally:
        nodes.shutdown()


def actor_pids() -> list[int]:
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::_Actor"):
                pids.append(int(path.parent.name))
        except OSError:
            continue
    return pids


@pytest.mark.slow
class TestRay:
    @pytest.fixture(scope="class")
    def cluster(self) -> Iterator[str]:
        with ray_cluster(num_cpus=1) as address:
            yield address

    def test_a_retry_that_fails_again_ends(self, cluster, models, photos, tmp_path):
        folder = tmp_path / "in"
        folder.mkdir()
        for path in sorted(photos.iterdir())[:4]:
            (folder / path.name).write_bytes(path.read_bytes() if path.name != "03.png" else b"")
        arguments = [folder, *models["seg"], "--shard-size", 2, "--out", tmp_path / "out"]
        assert infer(*arguments).returncode == 3
        shard = tmp_path / "out" / "shards" / "shard-000001.jsonl.gz"
        before = shard.stat().st_mtime_ns
        cv2.imwrite(str(folder / "03.png"), np.zeros((2, 70000, 3), np.uint8))  # too wide to predict
        write_video(folder / "wide.avi", np.zeros((32, 9000, 3), np.uint8), 2)  # too wide to draw
        options = ["--update", "--workers", 0, "--ray", cluster]
        ended = infer(*arguments, *options)
        assert f"not drawn: {folder}/wide.avi: 32x" in ended.stderr, ended.stderr[-2000:]
        options[0] = "--retry-failed"
        ended = infer(*arguments, *options)
        assert ended.returncode == 3 and "4 of 5 inputs predicted" in ended.stdout, ended.stderr[-2000:]
        assert f"failed: {folder}/03.png: " in ended.stderr
        assert shard.stat().st_mtime_ns > before

    def test_an_actor_dies(self, cluster, models, photos, tmp_path):
        arguments = [photos, *models["det"], "--shard-size", 1, "--workers", 0]
        assert infer(*arguments, "--out", tmp_path / "alone").returncode == 0
        out = tmp_path / "shared"
        command = [sys.executable, INFER, *arguments, "--out", out, "--ray", cluster]
        with started(command, out, tmp_path / "log", shards=2) as process:
            pids = actor_pids()
            assert len(pids) == 2  # one per node
            os.kill(pids[0], signal.SIGKILL)
            assert process.wait(300) == 0
        printed = (tmp_path / "log").read_text()
        assert "an actor died" in printed and f"12 of 12 inputs predicted: {out}" in printed
        assert result_files(out) == result_files(tmp_path / "alone")

    def test_actors_fit_on_the_nodes(self, models, photos, tmp_path):
        """Six cores would suffice for three actors of two cores, but each of the two nodes has room for one."""
        with ray_cluster(num_cpus=3) as address:
            options = ["--shard-size", 4, "--workers", 1, "--out", tmp_path, "--ray", address]
            ended = infer(photos, *models["seg"], *options)
        assert ended.returncode == 0 and "12 of 12 inputs predicted" in ended.stdout, ended.stderr[-2000:]
