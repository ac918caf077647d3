"""Helpers for tests of tools/infer.py: content of a run's folder, synthetic inputs, and processes to kill."""

import ctypes
import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import cv2
import numpy as np
import torch
from paths import ROOT
from processes import CONTEXT

from xcit_mm.batch.run import open_run
from xcit_mm.batch.shards import Record

INFER = str(ROOT / "tools" / "infer.py")
# The number of threads changes results by rounding.
ENV = dict(OMP_NUM_THREADS="1", RAY_AUTH_MODE="disabled")


def run(*command: object) -> subprocess.CompletedProcess:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, env=os.environ | ENV)


def torchrun(port: int) -> list[str]:
    options = ["--nproc_per_node", "2", "--master_port", str(port)]
    return [sys.executable, "-m", "torch.distributed.run", *options, INFER]


def read_records(out: Path) -> list[Record]:
    run = open_run(out)
    return [record for shard in range(len(run.shards)) for record in run.records(shard)]


def result_files(out: Path) -> dict[str, bytes]:
    """Content of a run's visible files by path, without the manifest, which has the paths of config and checkpoint."""
    files = (path for path in out.rglob("[!.]*.*") if path.is_file() and path.name != "run.json")
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(files)}


def write_video(path: Path, image: np.ndarray, frames: int) -> Path:
    code = "mp4v" if path.suffix == ".mp4" else "MJPG"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*code), 5, image.shape[1::-1])
    for _ in range(frames):
        writer.write(image)
    writer.release()
    return path


def save_raster(path: Path, image: np.ndarray, **profile: object) -> Path:
    """Write an image (h, w, n) as a GeoTIFF."""
    import rasterio

    height, width, count = image.shape
    with rasterio.open(path, "w", "GTiff", width, height, count, dtype=image.dtype, **profile) as file:
        file.write(np.moveaxis(image, -1, 0))
    return path


def map_in(out: Path, name: str = "raster") -> np.ndarray:
    """Read the segmentation map of a raster from a run's folder."""
    import rasterio

    with rasterio.open(out / "labels" / f"{name}.tif") as file:
        return file.read(1)


def child_processes(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return list(map(int, path.read_text().split())) if path.exists() else []


def start_infer(arguments: list[object], log: Path, shared_memory: int | None = None) -> BaseProcess:
    """Start tools/infer.py in a process with imported libraries; as root, with a limit of /dev/shm in bytes."""
    return start_tool("infer", arguments, log, shared_memory)


def start_tool(name: str, arguments: list[object], log: Path, shared_memory: int | None = None) -> BaseProcess:
    """Start tools/NAME.py in a process with imported libraries; as root, with a /dev/shm of some bytes."""
    process = CONTEXT.Process(target=_run_tool, args=(name, list(map(str, arguments)), log, shared_memory))
    process.start()
    return process


def _run_tool(name: str, arguments: list[str], log: Path, shared_memory: int | None) -> None:
    for descriptor in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    if shared_memory is not None:
        _limit_shared_memory(shared_memory)
    torch.set_num_threads(1)
    sys.argv = [f"{name}.py", *arguments]
    sys.exit(importlib.import_module(name).main())


def _limit_shared_memory(size: int) -> None:
    """Mount a small /dev/shm that only this process and its children see."""
    CLONE_NEWNS = 0x20000
    assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", "/dev/shm"], check=True)


def can_mount() -> bool:
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Wait for a condition: `with time_limit(9) as tick: while not done: tick()`."""
    deadline = time.time() + seconds

    def tick() -> None:
        assert time.time() < deadline, "the condition does not become true"
        time.sleep(0.02)

    yield tick
