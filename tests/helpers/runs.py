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
    options = dict(capture_output=True, text=True, timeout=300, env=os.environ | ENV)
    return subprocess.run(list(map(str, command)), **options)


def torchrun(port: int) -> list[str]:
    options = ["--nproc_per_node", "2", "--master_port", str(port)]
    return [sys.executable, "-m", "torch.distributed.run", *options, INFER]


def read_journal(out: Path) -> list[dict[str, Any]]:
    """Read all complete lines of all journals, in the order of the journals."""
    lines = []
    for path in sorted((out / "journal").glob("*.jsonl")):
        lines += path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def read_records(out: Path) -> list[dict[str, Any]]:
    """Read all records of images, videos and failures, in the order of their journals."""
    return [line for line in read_journal(out) if "path" in line]


def read_images(out: Path) -> list[dict[str, Any]]:
    """Read the list of images in images.json."""
    return json.loads((out / "images.json").read_text())["images"]


def merged(out: Path) -> dict[str, Any]:
    """Describe the results of a folder without ids, which depend on the order of predictions.

    Returns:
        By the name of an image or the name and number of a frame its size and its results, and
        under `files` the names of maps and drawings.
    """
    images = read_images(out)
    path = out / "predictions.json"
    results = json.loads(path.read_text()) if path.exists() else []
    described: dict[str, Any] = {}
    for image in images:
        objects = [dict(result) for result in results if result["image_id"] == image["id"]]
        for result in objects:
            del result["image_id"]
        name = f"{image['file_name']} {image.get('frame', '')}".strip()
        assert name not in described, f"{name} has two results"
        described[name] = [image["height"], image["width"], objects]
    assert len({image["id"] for image in images}) == len(images)
    files = [*out.glob("labels/**/*.*"), *out.glob("visualizations/**/*.*")]
    described["files"] = sorted(str(path.relative_to(out)) for path in files)
    return described


def write_video(path: Path, images: Sequence[np.ndarray]) -> Path:
    code = "mp4v" if path.suffix == ".mp4" else "MJPG"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*code), 5, images[0].shape[1::-1])
    for image in images:
        writer.write(image)
    writer.release()
    return path


def start_infer(arguments: Sequence[object], log: Path, **env: object) -> BaseProcess:
    """Start tools/infer.py in a process with imported libraries, with variables."""
    variables = {name: str(value) for name, value in env.items()}
    process = CONTEXT.Process(target=_run_tool, args=(list(map(str, arguments)), log, variables))
    process.start()
    return process


def _run_tool(arguments: list[str], log: Path, env: dict[str, str]) -> None:
    os.environ |= env
    for descriptor in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    torch.set_num_threads(1)
    sys.argv = ["infer.py", *arguments]
    sys.exit(importlib.import_module("infer").main())
