"""A Ray cluster predicts a folder. An actor that is killed loses nothing and repeats nothing."""

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.runs import merged, model_of, read_records

from xcit_mm.prediction import cluster as cluster_module

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def cluster(monkeypatch) -> Iterator[None]:
    """A local cluster of two CPUs, so of two actors."""
    for name, value in dict(
        RAY_AUTH_MODE="disabled", OMP_NUM_THREADS="1", RAY_DEDUP_LOGS="0"
    ).items():
        monkeypatch.setenv(name, value)
    init = ray.init
    monkeypatch.setattr(ray, "init", lambda **options: init(**options, num_cpus=2))
    monkeypatch.setattr(cluster_module, "CHUNK", 3)
    yield
    ray.shutdown()


def actor_pids() -> list[int]:
    """Return the processes of Ray's actors."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if re.match(rb"ray::.*Actor", path.read_bytes()):
                found.append(int(path.parent.name))
    return found


def test_a_killed_actor_loses_and_repeats_nothing(models, photos, call, tmp_path):
    command = ("infer", photos, *model_of(models["det"]), "--no-visualizations", "--out")
    assert call(*command, tmp_path / "fresh")[0] == 0
    killed = []

    def kill_one() -> None:
        deadline = time.time() + 200
        while not killed and time.time() < deadline:
            time.sleep(0.05)
            if list((tmp_path / "out" / "journal").glob("*")) and (pids := actor_pids()):
                os.kill(pids[0], signal.SIGKILL)
                killed.append(pids[0])

    thread = threading.Thread(target=kill_one)
    thread.start()
    code, printed, errors = call(*command, tmp_path / "out", "--ray", "local")
    thread.join()
    assert code == 0 and killed and "12 predicted: " in printed, errors
    records = read_records(tmp_path / "out")
    assert len(records) == len({record["path"] for record in records}) == 12
    expected = merged(tmp_path / "fresh")
    assert merged(tmp_path / "out").keys() == expected.keys()
    (sorted((tmp_path / "out" / "journal").glob("*.jsonl"))[0]).unlink()
    assert call(*command, tmp_path / "out")[0] == 0  # without Ray
    assert merged(tmp_path / "out").keys() == expected.keys()


def test_a_missing_cluster_is_one_line(models, photos, refusal, tmp_path):
    command = ("infer", photos / "00.png", *model_of(models["seg"]), "--out", tmp_path / "out")
    assert "onnect" in refusal(*command, "--ray", "127.0.0.1:1")
