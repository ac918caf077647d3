"""SIGTERM, as torchrun sends it to the process group of a run: the training saves, and resumes as
if it had not been stopped.
"""

import signal
from pathlib import Path

import pytest
from helpers.demo_runs import DEMO, SCORES, assert_same_state, cfg_options
from helpers.processes import run_tool

SEG, _ = SCORES
END = 6
EPOCHS = [
    "train_cfg._delete_=True",
    "train_cfg.type=EpochBasedTrainLoop",
    "train_cfg.max_epochs=2",
    "train_cfg.val_interval=1",
    "train_dataloader.sampler._delete_=True",
    "train_dataloader.sampler.type=DefaultSampler",
    "train_dataloader.sampler.shuffle=True",
]


@pytest.fixture(params=["iterations", "epochs"], scope="module")
def command(request, shapes) -> tuple:
    """A training of six iterations, or of two epochs of four, with validations."""
    options = cfg_options(SEG, shapes, END, 2)
    if request.param == "epochs":
        options = [option for option in options if not option.startswith("train_cfg")] + EPOCHS
    else:
        options.append("train_cfg.val_interval=3")
    best = "default_hooks.checkpoint.save_best=mIoU"
    return ("train", DEMO / f"{SEG}.py", *options, best, "model.backbone.drop_path_rate=0.2")


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory) -> Path:
    """The work folder of the same training that was not stopped."""
    folder = tmp_path_factory.mktemp("whole")
    run = run_tool(*command, "--work-dir", folder, cwd=folder)
    assert run.returncode == 0, run.stderr
    return folder


@pytest.mark.parametrize(
    "call, count",
    [
        pytest.param("before_train_iter", 2, marks=pytest.mark.slow),
        ("after_train_iter", 3),
        ("after_val_iter", 1),
    ],
)
def test_a_terminated_training_saves_and_resumes_bit_identically(
    call, count, command, whole, tmp_path
):
    work = tmp_path / "work"
    death = (call, count, signal.SIGTERM)
    run = run_tool(*command, "--work-dir", work, cwd=tmp_path, kill_at=death)
    assert run.returncode == 128 + signal.SIGTERM
    line = run.stderr.splitlines()[-1]
    assert line.startswith("stopped by SIGTERM after iteration ")
    assert f"{work / 'stopped.pth'} is saved: --resume continues" in line
    assert (work / "last_checkpoint").read_text() == str(work / "stopped.pth")
    run = run_tool(*command, "--work-dir", work, "--resume", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    (last,) = {Path((folder / "last_checkpoint").read_text()).name for folder in (whole, work)}
    assert_same_state(whole / last, work / last)
    best = {path.name for path in whole.glob("best_*.pth")}
    assert {path.name for path in work.glob("best_*.pth")} == best and len(best) == 1
    assert not (work / "stopped.pth").exists()
