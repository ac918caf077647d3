"""`make demo` in a fresh clone, shortened to two iterations on 12 images."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT
from make_shapes import write_dataset

SHORT = """
train_cfg = dict(max_iters=2, val_interval=2)
default_hooks = dict(logger=dict(interval=1))
"""


@pytest.mark.slow
def test_the_demo_trains_scores_and_draws_both_tasks(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__", ".mim")
    for name in ("configs", "tools", "xcit_mm"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("Makefile", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    for config in ("fpn_xcit-n12-p16_shapes", "mask-rcnn_xcit-n12-p16_shapes"):
        with (tmp_path / "configs" / "demo" / f"{config}-quick.py").open("a") as file:
            file.write(SHORT)
    write_dataset(tmp_path / "data" / "shapes", train=8, val=4)
    (tmp_path / "ready").touch()  # with BIN, this environment replaces .venv
    command = ["make", "demo", "READY=ready", f"BIN={Path(sys.executable).parent}"]
    options = dict(capture_output=True, text=True, timeout=1800)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(command, cwd=tmp_path, env=env, **options)
    assert run.returncode == 0, run.stderr[-2000:]
    *_, table = run.stdout.split("\n\n")
    *_, first, second, third, end, next_command = table.splitlines()
    scores = [line[14:24].strip() for line in (first, second, third)]
    assert scores == ["mIoU", "box AP50", "mask AP50"]
    drawing = tmp_path / "work_dirs" / "demo" / "predictions.png"
    assert str(drawing) in end and "xcit-mm predict maskrcnn" in next_command
    # Two iterations of ten tenths are printed.
    assert len((run.stdout + run.stderr).splitlines()) <= 40 - 2 * 8
    assert drawing.read_bytes().startswith(b"\x89PNG")
