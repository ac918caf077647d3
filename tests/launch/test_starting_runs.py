"""`train` and `test` up to the point where mmengine's Runner is built, on a tiny data set."""

import re
from pathlib import Path

import pytest
from helpers.demo_runs import DEMO, SCORES, cfg_options
from helpers.locks import locked_by_another_process
from helpers.paths import CONFIGS
from helpers.processes import run_tool as run_in_process
from mmengine.config import Config
from mmengine.runner import Runner
from torch import nn

from xcit_mm import read_config
from xcit_mm.launch.runner import QuietRunner, build_runner
from xcit_mm.launch.training import change_training

SEG, DET = SCORES
CONFIG = DEMO / f"{SEG}.py"


@pytest.mark.parametrize(
    "config, change, message",
    [
        (DET, "model.neck.type=FPNN", "the model cannot be built: KeyError: 'FPNN is not in the"),
        (SEG, "val_dataloader.dataset.data_root=nowhere", "D311 val: no data at nowhere"),
    ],
)
def test_training_that_would_fail_does_not_start(config, change, message, shapes, refused):
    options = cfg_options(config, shapes, 1)
    assert message in refused("train", DEMO / f"{config}.py", *options, change)


def test_every_check_can_be_skipped(shapes, refused, start):
    wrong = (*cfg_options(SEG, shapes, 1), "model.decode_head.num_classes=3")
    assert "D303 decode_head.num_classes is 3" in refused("train", CONFIG, *wrong)
    assert start("train", CONFIG, "--skip-checks", *wrong).model.decode_head.num_classes == 3


def test_only_the_first_process_checks_and_prints(shapes, monkeypatch, capsys, refused, start):
    arguments = (CONFIG, *cfg_options(SEG, shapes, 1), "train_dataloader.dataset.data_root=nowhere")
    monkeypatch.setenv("RANK", "0")
    assert "no data at nowhere" in refused("train", *arguments)
    monkeypatch.setenv("RANK", "8")
    capsys.readouterr()
    assert start("train", *arguments) and capsys.readouterr().err == ""


def test_one_training_at_a_time_writes_into_a_work_folder(shapes, models, refused, start):
    options = ("--work-dir", "work", "--skip-checks", *cfg_options(SEG, shapes, 1))
    with locked_by_another_process(Path("work")):
        assert "another process writes into work: " in refused("train", CONFIG, *options)
        assert start("test", *models["seg"], *options)
    assert start("train", CONFIG, *options)


def test_a_kill_while_a_checkpoint_is_saved_leaves_the_config_whole(monkeypatch):
    def kill(cfg: Config) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "save_checkpoint", lambda runner: None)
    Path("own.py").write_text("a = 1")
    runner = QuietRunner(nn.Linear(1, 1), "work", cfg=Config.fromfile("own.py"))
    runner.save_checkpoint()
    monkeypatch.setattr(Config, "pretty_text", property(kill))
    with pytest.raises(KeyboardInterrupt):
        runner.save_checkpoint()
    assert Path("work/own.py").read_text() == "a = 1"


def test_curves_of_a_second_run_in_a_notebook_are_in_its_own_folder():
    for work in ("first", "second"):
        cfg = read_config(CONFIG)
        cfg.work_dir = cfg.experiment_name = work  # two within a second would have one name
        build_runner(cfg).visualizer.add_scalar("loss", 1.0)
        assert [*Path(work).glob("*/vis_data/scalars.json")]


def test_a_correct_run_starts_with_the_given_options(shapes, models, start):
    _, weights = models["seg"]
    options = (*cfg_options(SEG, shapes, 5), f"load_from={weights}")
    cfg = start("train", CONFIG, "--auto-scale-lr", *options)
    assert (cfg.train_cfg.max_iters, cfg.load_from, cfg.resume) == (5, weights, False)
    assert cfg.work_dir == f"work_dirs/{SEG}" and cfg.auto_scale_lr.enable
    cfg = start("test", CONFIG, weights, "--work-dir", "w", *options)
    assert (cfg.load_from, cfg.work_dir) == (weights, "w")
    assert start("test", CONFIG, "--checkpoint", weights, *options).load_from == weights


@pytest.mark.parametrize("flag", ["--amp", "AmpOptimWrapper", "mmengine.AmpOptimWrapper"])
def test_mixed_precision_on_a_cpu_is_bfloat16(flag, shapes, start):
    flags = [flag] if flag == "--amp" else ["--cfg-options", f"optim_wrapper.type={flag}"]
    cfg = start("train", CONFIG, "--skip-checks", *cfg_options(SEG, shapes, 1), *flags)
    assert cfg.optim_wrapper.type == "mmengine.CPUAmpOptimWrapper"


def test_testing_that_would_fail_does_not_start(shapes, models, refused):
    _, weights = models["seg"]
    options = cfg_options(SEG, shapes, 1)
    other_backbone = (*options, "model.backbone.arch=t12")
    assert "neck.in_channels is [" in refused("test", CONFIG, weights, *other_backbone)


def test_a_key_that_a_part_does_not_take_is_two_lines(shapes, tmp_path):
    change = "train_cfg.max_iter=3"  # of the loop, which is made when the training starts
    options = cfg_options(SEG, shapes, 1)
    run = run_in_process("train", CONFIG, "--skip-checks", *options, change, cwd=tmp_path)
    lines = run.stderr.splitlines()
    assert run.returncode == 1 and "new key in the config: train_cfg.max_iter" in lines
    assert re.match("TypeError: .*'max_iter'", lines[-1]) and "Traceback" not in run.stderr
    (log,) = tmp_path.glob("work_dirs/*/2*/*.log")
    assert "Traceback" in log.read_text()


def test_mask2former_does_not_train_in_float16(monkeypatch):
    monkeypatch.setattr("xcit_mm.launch.training.get_device", lambda: "cuda")
    cfg = read_config(CONFIGS / "mask2former/mask2former_xcit-s12-p16_8xb2-160k_ade20k-512x512.py")
    with pytest.raises(ValueError, match=r"the loss of masks is 0 in float16"):
        change_training(cfg, amp=True, auto_scale_lr=False)
    cfg.optim_wrapper.dtype = "bfloat16"
    change_training(cfg, amp=True, auto_scale_lr=False)
    assert cfg.optim_wrapper.type == "AmpOptimWrapper"
