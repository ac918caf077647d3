"""A Ray cluster predicts a folder. A process that is killed loses nothing."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.runs import merged, read_records

from xcit_mm.prediction import cluster as cluster_module

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def cluster(monkeypatch) -> Iterator[None]:
    """A local cluster of two CPUs, so of two tasks at a time."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    init = ray.init
    monkeypatch.setattr(ray, "init", lambda **options: init(**options, num_cpus=2))
    monkeypatch.setattr(cluster_module, "CHUNK", 3)
    yield
    ray.shutdown()


def task_pids() -> list[int]:
    """Return the processes that predict chunks."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(b"ray::predict_chunk"):
                pids.append(int(path.parent.name))
    return pids


def test_a_killed_process_loses_nothing(command, photos, call, out):
    killed = []
    finished = threading.Event()

    def kill_a_process() -> None:
        while not killed and not finished.wait(0.05):
            if list((out / "journal").glob("*")) and (pids := task_pids()):
                os.kill(pids[0], signal.SIGKILL)
                killed.append(pids[0])

    thread = threading.Thread(target=kill_a_process)
    thread.start()
    arguments = (*command(photos, kind="det"), "--no-visualizations")
    code, printed, errors = call(*arguments, "--ray", "local")
    finished.set()
    thread.join()
    assert code == 0 and killed and "12 predicted: " in printed, errors
    assert len({record["path"] for record in read_records(out)}) == 12
    assert len(merged(out)) == 12 + 1
