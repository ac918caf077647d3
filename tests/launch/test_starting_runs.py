"""`train` and `test` up to the point where mmengine's Runner is built, on a tiny data set."""

import multiprocessing
import re
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import mmengine.runner
import pytest
from helpers.demo_runs import DEMO, SCORES, cfg_options
from helpers.processes import run_tool as run_in_process
from mmengine.config import Config

from xcit_mm.commands import train
from xcit_mm.utils.folders import lock_folder

SEG, DET = SCORES
CONFIG = DEMO / f"{SEG}.py"


def test_ctrl_c_prints_one_line(shapes, monkeypatch, capsys):
    def interrupt(cfg: Config) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mmengine.runner.Runner, "from_cfg", interrupt)
    assert train.main([str(CONFIG), "--skip-checks", *cfg_options(SEG, shapes, 1)]) == 130
    line = "interrupted: --resume resumes from the last checkpoint"
    assert capsys.readouterr().err.splitlines()[-1] == line


@pytest.mark.parametrize(
    "config, change, message",
    [
        (DET, "model.neck.type=FPNN", "the model cannot be built: KeyError: 'FPNN is not in the"),
        (SEG, "val_dataloader.dataset.data_root=nowhere", "D311 val: no data at nowhere"),
        (SEG, "model.neck", "write KEY=VALUE"),
    ],
)
def test_training_that_would_fail_does_not_start(config, change, message, shapes, refused):
    options = cfg_options(config, shapes, 1)
    assert message in refused(DEMO / f"{config}.py", *options, change)


def test_config_with_an_error_is_named(refused):
    Path("own.py").write_text("model = dict(\n    a=1,,\n)")
    assert "own.py cannot be read: SyntaxError: invalid syntax" in refused("own.py")


def test_every_check_can_be_skipped(shapes, refused, start):
    wrong = (*cfg_options(SEG, shapes, 1), "model.decode_head.num_classes=3")
    assert "D303 decode_head.num_classes is 3" in refused(CONFIG, *wrong)
    assert start(CONFIG, "--skip-checks", *wrong).model.decode_head.num_classes == 3


def hold(is_locked: Event) -> None:
    with lock_folder(Path("work"), "--work-dir"):
        is_locked.set()
        time.sleep(600)


@pytest.fixture
def other(folder) -> Iterator[BaseProcess]:
    """A process that trains in the folder `work`."""
    context = multiprocessing.get_context("fork")
    is_locked = context.Event()
    process = context.Process(target=hold, args=(is_locked,))
    process.start()
    assert is_locked.wait(30)
    yield process
    process.kill()
    process.join()


def test_only_the_first_process_checks_prints_and_locks(
    other, shapes, monkeypatch, capsys, refused, start
):
    arguments = (CONFIG, *cfg_options(SEG, shapes, 1), "train_dataloader.dataset.data_root=nowhere")
    monkeypatch.setenv("RANK", "0")
    assert "no data at nowhere" in refused(*arguments)
    monkeypatch.setenv("RANK", "8")
    capsys.readouterr()
    assert start("--work-dir", "work", *arguments) and capsys.readouterr().err == ""


def test_one_training_at_a_time_writes_into_a_work_folder(other, shapes, weights, refused, start):
    options = ("--work-dir", "work", "--skip-checks", *cfg_options(SEG, shapes, 1))
    assert "another process writes into work: " in refused(CONFIG, *options)
    assert start(CONFIG, weights[SEG], *options, tool="test")
    other.kill()
    other.join()
    assert start(CONFIG, *options)


@pytest.mark.parametrize("config", SCORES)
def test_correct_runs_start_with_the_given_options(config, shapes, weights, start):
    file = DEMO / f"{config}.py"
    options = (*cfg_options(config, shapes, 5), f"load_from={weights[config]}")
    cfg = start(file, "--auto-scale-lr", *options)
    assert (cfg.train_cfg.max_iters, cfg.load_from, cfg.resume) == (5, str(weights[config]), False)
    assert cfg.work_dir.endswith(f"work_dirs/{config}") and cfg.auto_scale_lr.enable
    options = ("--work-dir", "w", *cfg_options(config, shapes, 1))
    cfg = start(file, weights[config], *options, tool="test")
    assert (cfg.load_from, cfg.work_dir) == (str(weights[config]), "w")


@pytest.mark.parametrize("flag", ["--amp", "AmpOptimWrapper", "mmengine.AmpOptimWrapper"])
def test_mixed_precision_on_a_cpu_is_bfloat16(flag, shapes, start):
    flags = [flag] if flag == "--amp" else ["--cfg-options", f"optim_wrapper.type={flag}"]
    cfg = start(CONFIG, "--skip-checks", *cfg_options(SEG, shapes, 1), *flags)
    assert cfg.optim_wrapper.type == "mmengine.CPUAmpOptimWrapper"


def test_testing_that_would_fail_does_not_start(shapes, weights, refused):
    options = cfg_options(SEG, shapes, 1)
    missing = refused(CONFIG, "none.pth", *options, tool="test")
    assert "no checkpoint at none.pth" in missing
    other_backbone = (*options, "model.backbone.arch=t12")
    assert "neck.in_channels is [" in refused(CONFIG, weights[SEG], *other_backbone, tool="test")
    swapped = refused(weights[SEG], CONFIG, tool="test")
    assert "the config comes before the checkpoint" in swapped and str(weights[SEG]) in swapped


def test_weights_that_do_not_load_end_a_test_in_one_line(shapes, weights, tmp_path):
    run = run_in_process("test", CONFIG, weights[DET], *cfg_options(SEG, shapes, 1), cwd=tmp_path)
    message = "the checkpoint does not fit the model: "
    assert run.returncode == 1 and message in run.stderr.splitlines()[-1]


def test_a_key_that_a_part_does_not_take_is_two_lines(shapes, tmp_path):
    change = "train_cfg.max_iter=3"  # of the loop, which is made when the training starts
    options = cfg_options(SEG, shapes, 1)
    run = run_in_process("train", CONFIG, "--skip-checks", *options, change, cwd=tmp_path)
    lines = run.stderr.splitlines()
    assert run.returncode == 1 and "--cfg-options train_cfg.max_iter: new key" in lines
    assert re.match("TypeError: .*'max_iter'", lines[-1]) and "Traceback" not in run.stderr
    (log,) = tmp_path.glob("work_dirs/*/2*/*.log")
    assert "Traceback" in log.read_text()
