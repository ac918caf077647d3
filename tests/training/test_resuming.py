"""Training resumes after a kill, a broken checkpoint or a full disk."""

import json
import random
import signal

import pytest
from helpers.demo_runs import DEMO, SCORES, assert_same_state, cfg_options, printed_scores
from helpers.processes import run_tool

from xcit_mm.weights.reader import load_from_file

SEG, DET = SCORES
# Calls at which a process is killed: the n-th call of a method of hooks, or of os.replace, by which
# a checkpoint gets its name. Checkpoints are two iterations apart.
STARTUP = ("before_run", 1)
ITERATION = ("before_train_iter", 4)
WRITING = ("before_replace", 2)
POINTING = ("after_replace", 2)
CHANCE = random.Random(0)
CALLS = (
    "before_train_iter",
    "after_train_iter",
    "before_save_checkpoint",
    "before_replace",
    "after_replace",
)
OFTEN = [STARTUP, *((CHANCE.choice(CALLS), CHANCE.randint(1, 3)) for _ in range(18)), STARTUP]


@pytest.mark.forks
@pytest.mark.parametrize(
    "config, workers, length, kills",
    [
        pytest.param(SEG, 2, 6, [POINTING, ITERATION], id="segmentor"),
        pytest.param(DET, 0, 4, [WRITING], id="detector", marks=pytest.mark.slow),
        pytest.param(SEG, 2, 80, OFTEN, id="20_kills", marks=pytest.mark.slow),
    ],
)
def test_resume_after_kill_is_bit_identical(config, workers, length, kills, shapes, tmp_path):
    options = [*cfg_options(config, shapes, length, workers), "model.backbone.drop_path_rate=0.2"]
    whole = tmp_path / "whole"
    broken = tmp_path / "broken"
    train = ("train", DEMO / f"{config}.py", *options, "--work-dir")
    assert run_tool(*train, whole, cwd=tmp_path).returncode == 0
    last = f"iter_{length}.pth"

    pointer = broken / "last_checkpoint"
    for kill in kills:
        run = run_tool(*train, broken, "--resume", cwd=tmp_path, kill_at=kill)
        assert run.returncode == -signal.SIGKILL
        assert not (broken / last).exists()
        if pointer.exists():
            load_from_file(pointer.read_text())  # raises if the file is incomplete
    run = run_tool(*train, broken, "--resume", cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]

    assert_same_state(whole / last, broken / last)
    score = printed_scores(whole)[-1][SCORES[config]]
    assert printed_scores(broken)[-1][SCORES[config]] == score
    assert not list(broken.glob(".unfinished"))
    assert len(list(broken.glob("iter_*.pth"))) <= 3

    test = ("test", DEMO / f"{config}.py", broken / last, *options)
    run = run_tool(*test, "--work-dir", tmp_path / "test", cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]
    tested = json.loads(next((tmp_path / "test").glob("2*/2*.json")).read_text())
    assert tested[SCORES[config]] == score


def test_full_disk_and_broken_checkpoint_name_a_complete_checkpoint(shapes, tmp_path):
    work = tmp_path / "work"
    train = ("train", DEMO / f"{SEG}.py", "--work-dir", work)
    assert run_tool(*train, *cfg_options(SEG, shapes, 4), cwd=tmp_path).returncode == 0
    last = work / "iter_4.pth"
    resume = (*train, "--resume", *cfg_options(SEG, shapes, 6))
    run = run_tool(*resume, cwd=tmp_path, file_size=last.stat().st_size // 2)
    assert run.returncode == 1
    message = run.stderr.splitlines()[-1]
    assert str(work / "iter_6.pth") in message and "File too large" in message
    assert "Traceback" not in run.stdout + run.stderr
    assert (work / "last_checkpoint").read_text() == str(last)
    load_from_file(str(last))
    assert not list(work.glob("*iter_6*")) + list(work.glob(".unfinished"))

    last.write_bytes(last.read_bytes()[:-1000])
    run = run_tool(*resume, cwd=tmp_path)
    assert run.returncode == 1
    (message,) = run.stderr.strip().splitlines()
    assert str(last) in message
