"""Training that is killed, finds broken files or a full disk, and goes on."""

import json
import random
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from demo_runs import DEMO, SCORES, cfg_options, printed_scores

from xcit_mm.training.random_state import get_random_state, set_random_state
from xcit_mm.training.resuming import AtomicBackend
from xcit_mm.weights.reader import load_from_file

SEG, DET = SCORES
EPOCHS = """
_base_ = {base!r}
train_cfg = dict(_delete_=True, type="EpochBasedTrainLoop", max_epochs=3, val_interval=1)
train_dataloader = dict(sampler=dict(_delete_=True, type="DefaultSampler", shuffle=True))
default_hooks = dict(checkpoint=dict(by_epoch=True, interval=1, max_keep_ckpts=5))
model = dict(backbone=dict(drop_path_rate=0.2))
"""


def kill_when(process: subprocess.Popen, condition, delay: float) -> bool:
    """Kill a process `delay` seconds after a condition holds; False if it ended by itself."""
    deadline = time.time() + 300
    while not condition() and process.poll() is None:
        assert time.time() < deadline, "training hangs"
        time.sleep(0.02)
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True
    return False


def start(tool, *arguments) -> subprocess.Popen:
    return subprocess.Popen(
        tool.command("train", *arguments), cwd=tool.cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def assert_same_state(one: Path, other: Path) -> None:
    a, b = load_from_file(str(one)), load_from_file(str(other))
    torch.testing.assert_close(a["state_dict"], b["state_dict"], rtol=0, atol=0)
    torch.testing.assert_close(a["optimizer"], b["optimizer"], rtol=0, atol=0)
    assert a["param_schedulers"] == b["param_schedulers"]
    for state, same in zip(a["random_state"], b["random_state"], strict=True):
        assert torch.equal(state.pop("torch"), same.pop("torch"))
        assert state == same


@pytest.mark.parametrize(
    "config, workers, kills",
    [(SEG, 2, 2), (DET, 0, 1), *(pytest.param(*case, 20, marks=pytest.mark.slow) for case in ((SEG, 2), (DET, 0)))],
)
def test_killed_training_ends_where_uninterrupted_training_does(config, workers, kills, shapes, tool, tmp_path):
    chance = random.Random(kills)
    length = max(12 * kills, 16)
    options = [*cfg_options(config, shapes, length, workers), "model.backbone.drop_path_rate=0.2"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert tool("train", DEMO / f"{config}.py", "--work-dir", whole, *options).returncode == 0
    last = f"iter_{length}.pth"
    period = (whole / last).stat().st_mtime - (whole / f"iter_{length - 2}.pth").stat().st_mtime  # of two iterations

    pointer = broken / "last_checkpoint"
    for kill in range(kills):
        before = pointer.read_text() if pointer.exists() else ""
        process = start(tool, DEMO / f"{config}.py", "--work-dir", broken, "--resume", *options)
        if kill % 4 == 1:  # at any time of starting up
            assert kill_when(process, lambda: True, chance.uniform(0, 6))
        else:  # at any time of an iteration or of saving
            saved = lambda before=before: pointer.exists() and pointer.read_text() != before  # noqa: E731
            assert kill_when(process, saved, chance.uniform(0, 2 * period))
        if pointer.exists():
            load_from_file(pointer.read_text())  # raises if it is not whole
    run = tool("train", DEMO / f"{config}.py", "--work-dir", broken, "--resume", *options)
    assert run.returncode == 0, run.stderr[-2000:]

    assert_same_state(whole / last, broken / last)
    scores = [printed_scores(folder)[-1] for folder in (whole, broken)]
    assert scores[0][SCORES[config]] == scores[1][SCORES[config]]
    assert not list(broken.glob(".*.part")) or kills > 3  # one may be left by a kill while it was written
    assert len(list(broken.glob("iter_*.pth"))) <= 3

    run = tool("test", DEMO / f"{config}.py", broken / last, "--work-dir", tmp_path / "test", *options)
    assert run.returncode == 0, run.stderr[-2000:]
    tested = json.loads(next((tmp_path / "test").glob("2*/2*.json")).read_text())
    assert tested[SCORES[config]] == scores[1][SCORES[config]]


def test_epochs_resume_as_well(shapes, tool, tmp_path):
    config = tmp_path / "config.py"
    config.write_text(EPOCHS.format(base=str(DEMO / f"{SEG}.py")))
    options = [o for o in cfg_options(SEG, shapes, 1) if not o.startswith(("train_cfg", "default_hooks.checkpoint"))]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert tool("train", config, "--work-dir", whole, *options).returncode == 0
    process = start(tool, config, "--work-dir", broken, *options)
    assert kill_when(process, (broken / "last_checkpoint").exists, 0.3)
    # The seed is left to chance by many configs; here it is taken from the checkpoint.
    run = tool("train", config, "--work-dir", broken, "--resume", *options, "randomness.seed=None")
    assert run.returncode == 0, run.stderr[-2000:]
    assert_same_state(whole / "epoch_3.pth", broken / "epoch_3.pth")


def test_broken_checkpoint_is_named_and_the_one_before_offered(shapes, tool, tmp_path):
    work = tmp_path / "work"
    arguments = (DEMO / f"{SEG}.py", "--work-dir", work)
    assert tool("train", *arguments, *cfg_options(SEG, shapes, 4)).returncode == 0
    last = work / "iter_4.pth"
    content = last.read_bytes()
    last.write_bytes(content[: len(content) // 2])
    run = tool("train", *arguments, "--resume", *cfg_options(SEG, shapes, 6))
    assert run.returncode == 1
    message = run.stderr.strip()
    assert len(message.splitlines()) == 1
    assert f"cannot resume from {last}" in message
    assert f"go on from {work / 'iter_2.pth'}: --resume {work / 'iter_2.pth'}" in message


def test_a_full_disk_is_an_error_and_the_checkpoint_before_it_is_whole(shapes, tool, tmp_path):
    work = tmp_path / "work"
    arguments = (DEMO / f"{SEG}.py", "--work-dir", work)
    assert tool("train", *arguments, *cfg_options(SEG, shapes, 2)).returncode == 0
    size = (work / "iter_2.pth").stat().st_size

    def limit_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))

    run = subprocess.run(
        tool.command("train", *arguments, "--resume", *cfg_options(SEG, shapes, 4)),
        cwd=tool.cwd,
        capture_output=True,
        text=True,
        preexec_fn=limit_files,
    )
    assert run.returncode == 1
    assert f"{work / 'iter_4.pth'}" in run.stderr.splitlines()[-1]
    assert "could not be written: File too large; earlier checkpoints are whole: make room" in run.stderr
    assert (work / "last_checkpoint").read_text() == str(work / "iter_2.pth")
    load_from_file(str(work / "iter_2.pth"))
    assert not list(work.glob("*iter_4*")) + list(work.glob(".*iter_4*"))


def test_writing_replaces_a_file_whole(tmp_path, monkeypatch):
    backend = AtomicBackend()
    backend.put(b"old", tmp_path / "file")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="could not be written: No space left on device; earlier"):
        backend.put(b"new", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_random_state_goes_through_a_checkpoint(tmp_path):
    import numpy as np

    def draw() -> tuple:
        return random.random(), np.random.rand(), torch.rand(()).item()

    state = get_random_state()
    drawn = draw()
    torch.save(dict(meta={}, state_dict={}, random_state=[state]), tmp_path / "file.pth")
    set_random_state(load_from_file(str(tmp_path / "file.pth"))["random_state"][0])
    assert draw() == drawn
