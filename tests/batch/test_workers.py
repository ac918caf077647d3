"""Several processes share a run: torchrun's ranks, and actors of a Ray cluster of two machines."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT
from test_engine import photos, results  # noqa: F401

from xcit_mm.batch.manifest import open_run

INFER = str(ROOT / "tools" / "infer.py")


def run(*command: object, timeout: float = 300) -> subprocess.CompletedProcess:
    # One thread each: how many there are moves what is found by rounding.
    env = dict(os.environ, OMP_NUM_THREADS="1", RAY_AUTH_MODE="disabled")
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=timeout, env=env)


def test_two_ranks(models, photos, tmp_path):  # noqa: F811
    arguments = [photos, *models["seg"], "--part-size", 2]
    assert run(sys.executable, INFER, *arguments, "--out", tmp_path / "alone").returncode == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", 2, "--master_port", 29571]
    arguments += ["--out", tmp_path / "shared", "--launcher", "pytorch"]
    ended = run(*torchrun, INFER, *arguments)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert f"12 of 12 files done: {tmp_path}/shared" in ended.stdout
    assert results(tmp_path / "shared") == results(tmp_path / "alone")
    assert all(f"rank {rank}: " in ended.stderr for rank in (0, 1))
    again = run(*torchrun, INFER, *arguments)  # nothing is left to do
    assert again.returncode == 0 and "going on: 6 of 6 parts are done" in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind, made", [("seg", "labels/scene.tif"), ("det", "instances/scene.geojson")])
def test_two_ranks_share_a_scene(kind, made, shapes, models, tmp_path):
    """Of four rows of tiles, each a part: whoever has the next one needs what reaches in from above."""
    pytest.importorskip("rasterio")
    import cv2
    import numpy as np
    from test_scenes import write

    picture = cv2.imread(str(shapes / "images" / "validation" / "00000.jpg"))
    scene = write(tmp_path / "scene.tif", np.tile(picture, (2, 9, 1))[:104, :800])
    arguments = [scene, *models[kind], "--tile", 32, "--overlap", 8, "--batch-size", 8, "--workers", 0]
    assert run(sys.executable, INFER, *arguments, "--out", tmp_path / "alone").returncode == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", 2, "--master_port", 29573]
    ended = run(*torchrun, INFER, *arguments, "--out", tmp_path / "shared", "--launcher", "pytorch")
    assert ended.returncode == 0 and "1 of 1 files done" in ended.stdout, ended.stderr[-2000:]
    assert len(open_run(tmp_path / "shared").parts) == 4
    assert (tmp_path / "shared" / made).read_bytes() == (tmp_path / "alone" / made).read_bytes()


@pytest.mark.slow
def test_ctrl_c_in_ranks(models, photos, tmp_path):  # noqa: F811
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", 2, "--master_port", 29572]
    log, out = (tmp_path / "log").open("w"), tmp_path / "out"
    arguments = [tmp_path / "in", *models["seg"], "--part-size", 1, "--workers", 0, "--no-pictures", "--out", out]
    (tmp_path / "in").mkdir()
    for number in range(200):
        (tmp_path / "in" / f"{number:03}.png").symlink_to(photos / "00.png")
    command = list(map(str, [*torchrun, INFER, *arguments, "--launcher", "pytorch"]))
    env = dict(os.environ, OMP_NUM_THREADS="1")
    with subprocess.Popen(command, stdout=log, stderr=log, env=env) as process:
        deadline = time.time() + 120
        while len(list(out.glob("parts/part-*"))) < 4:
            assert time.time() < deadline and process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    printed = (tmp_path / "log").read_text()
    done = len(list(out.glob("parts/part-*")))
    assert 4 <= done < 200
    assert re.search(r"^interrupted: \d+ of 200 files done", printed, re.MULTILINE)
    assert "nothing was predicted" not in printed
    assert len(json.loads((out / "images.json").read_text())["images"]) >= 4


def test_ray_is_asked_for_by_name(models, photos, refusal, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setitem(sys.modules, "ray", None)
    message = refusal("infer", photos, *models["seg"], "--out", tmp_path, "--ray", "local")
    assert "--ray needs Ray: pip install xcit_mm[ray]" in message


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Address of a Ray cluster of two nodes, which this machine holds both."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    os.environ |= dict(RAY_AUTH_MODE="disabled", RAY_worker_niceness="0", PYTHONPATH=str(ROOT))
    nodes = Cluster(initialize_head=True, head_node_args=dict(num_cpus=1))
    nodes.add_node(num_cpus=1)
    yield nodes.address
    nodes.shutdown()


def actors() -> list[int]:
    """Processes of Ray that are predicting."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::_Actor"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_ray_does_what_has_failed_again_but_once(cluster, models, photos, tmp_path):  # noqa: F811
    folder = tmp_path / "in"
    folder.mkdir()
    for path in sorted(photos.iterdir())[:4]:
        (folder / path.name).write_bytes(path.read_bytes() if path.name != "03.png" else b"")
    command = [sys.executable, INFER, folder, *models["seg"], "--part-size", 2, "--out", tmp_path / "out"]
    assert run(*command).returncode == 1
    part = tmp_path / "out" / "parts" / "part-000001.jsonl.gz"
    before = part.stat().st_mtime_ns
    ended = run(*command, "--retry-failed", "--workers", 0, "--ray", cluster)
    assert ended.returncode == 1 and "3 of 4 files done" in ended.stdout, ended.stderr[-2000:]
    assert part.stat().st_mtime_ns > before


@pytest.mark.slow
def test_ray_starts_no_more_actors_than_there_is_room_for(models, photos, tmp_path):  # noqa: F811
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    os.environ |= dict(RAY_AUTH_MODE="disabled", RAY_worker_niceness="0", PYTHONPATH=str(ROOT))
    nodes = Cluster(initialize_head=True, head_node_args=dict(num_cpus=3))
    nodes.add_node(num_cpus=3)
    try:  # six processors for actors of two, but no machine has room for two of them
        options = ["--part-size", 4, "--workers", 1, "--out", tmp_path, "--ray", nodes.address]
        ended = run(sys.executable, INFER, photos, *models["seg"], *options)
    finally:
        nodes.shutdown()
    assert ended.returncode == 0 and "12 of 12 files done" in ended.stdout, ended.stderr[-2000:]


@pytest.mark.slow
def test_a_ray_cluster_of_which_a_worker_dies(cluster, models, photos, tmp_path):  # noqa: F811
    arguments = [photos, *models["det"], "--part-size", 1, "--workers", 0]
    assert run(sys.executable, INFER, *arguments, "--out", tmp_path / "alone").returncode == 0
    out = tmp_path / "shared"
    log = (tmp_path / "log").open("w")
    command = [sys.executable, INFER, *arguments, "--out", out, "--ray", cluster]
    with subprocess.Popen(list(map(str, command)), stdout=log, stderr=log) as process:
        deadline = time.time() + 300
        while len(list(out.glob("parts/part-*"))) < 2:
            assert time.time() < deadline and process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
        working = actors()
        assert len(working) == 2  # one a node
        os.kill(working[0], signal.SIGKILL)
        assert process.wait(300) == 0
    printed = (tmp_path / "log").read_text()
    assert "an actor died" in printed and f"12 of 12 files done: {out}" in printed
    assert results(out) == results(tmp_path / "alone")
