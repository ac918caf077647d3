"""Content of a folder of predictions, synthetic videos, and tools/infer.py in processes to kill."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from helpers.paths import ROOT
from helpers.processes import CONTEXT

INFER = str(ROOT / "tools" / "infer.py")
# The number of threads changes results by rounding.
ENV = dict(OMP_NUM_THREADS="1", RAY_AUTH_MODE="disabled")


def model_of(model: Sequence[object]) -> list[object]:
    """Return the arguments of a config and a checkpoint."""
    return ["--model", model[0], "--checkpoint", model[1]]


def run(*command: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=300, env=os.environ | ENV
    )


def torchrun(port: int) -> list[str]:
    options = ["--nproc_per_node", "2", "--master_port", str(port)]
    return [sys.executable, "-m", "torch.distributed.run", *options, INFER]


def read_records(out: Path) -> list[dict[str, Any]]:
    """Read all records, in the order of their part files."""
    lines = [
        line
        for part in sorted((out / "parts").glob("*.jsonl"))
        for line in part.read_text().splitlines()
    ]
    return list(map(json.loads, lines))


def merged(out: Path) -> list[Any]:
    """Names of a folder's maps and drawings, and its images and results in the order of their ids."""
    images = json.loads((out / "images.json").read_text())["images"]
    path = out / "predictions.json"
    results = json.loads(path.read_text()) if path.exists() else []
    names = {
        str(path.relative_to(out))
        for folder in ("labels", "visualizations")
        for path in out.glob(f"{folder}/**/*.*")
    }
    by_id = [
        sorted(images, key=lambda each: each["id"]),
        sorted(results, key=lambda each: each["image_id"]),
    ]
    return [*by_id, sorted(name for name in names if not name.rpartition("/")[2].startswith("."))]


def write_video(path: Path, images: Sequence[np.ndarray]) -> Path:
    code = "mp4v" if path.suffix == ".mp4" else "MJPG"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*code), 5, images[0].shape[1::-1])
    for image in images:
        writer.write(image)
    writer.release()
    return path


def start_infer(
    arguments: Sequence[object], log: Path, max_records: int = 256, **env: object
) -> BaseProcess:
    """Start tools/infer.py in a process with imported libraries, part files of some records and
    variables.
    """
    variables = {name: str(value) for name, value in env.items()}
    process = CONTEXT.Process(
        target=_run_tool, args=(list(map(str, arguments)), log, max_records, variables)
    )
    process.start()
    return process


def _run_tool(arguments: list[str], log: Path, max_records: int, env: dict[str, str]) -> None:
    os.environ |= env
    importlib.import_module("xcit_mm.prediction.records").MAX_RECORDS = max_records
    for descriptor in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    torch.set_num_threads(1)
    sys.argv = ["infer.py", *arguments]
    sys.exit(importlib.import_module("infer").main())
