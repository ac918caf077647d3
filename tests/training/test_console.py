"""What a person reads of a run: a line for each tenth or a bar, scores, and the path of the log."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest
from helpers.demo_runs import DEMO, SCORES, cfg_options
from helpers.processes import run_tool

from xcit_mm.training.console import ConsoleHook

SEG, _ = SCORES
CONFIG = DEMO / f"{SEG}.py"
END = 10


@pytest.fixture(scope="module")
def options(shapes) -> list[str]:
    return [*cfg_options(SEG, shapes, END), "train_cfg.val_interval=5"]


@pytest.fixture(scope="module")
def trained(options, tmp_path_factory) -> tuple[Path, CompletedProcess[str]]:
    """A work folder, and what its training printed without a terminal."""
    folder = tmp_path_factory.mktemp("console")
    accumulated = ("auto_scale_lr.base_batch_size=8", "optim_wrapper.accumulative_counts=2")
    arguments = (*options, *accumulated, "--auto-scale-lr", "--work-dir", "w")
    run = run_tool("train", CONFIG, *arguments, cwd=folder)
    assert run.returncode == 0, run.stderr
    return folder, run


def test_without_a_terminal_a_training_prints_tenths_scores_and_the_log(trained):
    folder, run = trained
    assert run.stdout == ""
    lines = run.stderr.splitlines()
    assert "EncoderDecoder from the config's initial weights, in w" in lines
    (log,) = [line.removeprefix("log: ") for line in lines if line.startswith("log: ")]
    tenths = [line for line in lines if re.search(r"loss [\d.]+  lr [\d.e-]+\]$", line)]
    assert [line.partition("%")[0].strip() for line in tenths] == [f"{n}0" for n in range(1, 11)]
    assert "  lr 0.0005]" in tenths[0]  # 0.001 is for eight images, and a step has four
    scores = [line for line in lines if line.startswith("validation after iteration ")]
    assert len(scores) == 2 and "mIoU " in scores[0]
    assert lines[-1].startswith("weights: w/")
    assert "UserWarning" not in run.stderr
    content = (folder / log).read_text()
    assert "Iter(train) [10/10]" in content and "per class results" in content


def test_a_folder_whose_run_was_resumed_is_tested_with_its_config(trained, options, tmp_path):
    """A resumed run has `resume=True` and another `load_from`, and may have other workers."""
    work = tmp_path / "w"
    arguments = (CONFIG, "--work-dir", work, "--resume", *options)
    run_tool("train", *arguments, cwd=tmp_path, kill_at=("before_train_iter", 9))
    more = ("train_dataloader.num_workers=1", "train_dataloader.persistent_workers=True")
    assert run_tool("train", *arguments, *more, cwd=tmp_path).returncode == 0
    assert "num_workers=1" in (work / CONFIG.name).read_text()
    run = run_tool("test", work, *options, cwd=tmp_path)
    assert run.returncode == 0 and "mIoU" in run.stdout, run.stderr


def test_a_test_prints_its_scores_and_leaves_the_config_as_a_refused_training(trained, options):
    folder, _ = trained
    path = folder / "w" / CONFIG.name
    config = path.read_text()
    run = run_tool("test", "w", *options, "default_hooks.logger.interval=7", cwd=folder)
    assert run.returncode == 0, run.stderr
    assert [line.split()[0] for line in run.stdout.splitlines()] == ["aAcc", "mIoU", "mAcc"]
    assert "\nlog: " in run.stderr and " 4/4 [" in run.stderr
    edit = "optim_wrapper.optimizer.lr=0.5"
    arguments = (CONFIG, "--work-dir", "w", "--resume", "w/iter_5.pth", *options, edit)
    assert run_tool("train", *arguments, cwd=folder).returncode == 1
    assert path.read_text() == config and f"max_iters={END}" in config


def test_in_a_terminal_a_training_shows_one_bar(options, tmp_path):
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "xcit_mm", "train", CONFIG, "--work-dir", "w", *options]
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    with subprocess.Popen(command, cwd=tmp_path, stdout=end, stderr=end) as run:
        os.close(end)
        shown = b""
        with suppress(OSError):  # when the other end is closed
            while part := os.read(terminal, 4096):
                shown += part
    assert run.returncode == 0, shown
    lines = shown.decode().replace("\r", "\n").splitlines()
    bars = [line for line in lines if re.match(r" *\d+%\|", line)]
    assert "100%|" in bars[-1] and "10/10 [" in bars[-1]
    assert any("validation 4/4" in line for line in bars)
    assert "UserWarning" not in shown.decode()


def test_a_validation_on_two_data_sets_prints_their_names(capsys):
    scores = {"streets/coco/bbox_mAP": 0.5, "fields/coco/bbox_mAP": 0.25}
    ConsoleHook().after_val_epoch(SimpleNamespace(iter=5), scores)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("iteration 5: streets/coco/bbox_mAP 0.5, fields/coco/bbox_mAP 0.25")
