"""`--resume` resumes from the given checkpoint or the last one, and starts the run if there is no
checkpoint.
"""

import re
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from helpers.demo_runs import DEMO, SCORES, cfg_options

from xcit_mm import read_config
from xcit_mm.__main__ import main

SEG, _ = SCORES
CONFIG = DEMO / f"{SEG}.py"
URL = "https://example.com/run.pth"


def write_state(path: Path, **changes: object) -> Path:
    """Write a checkpoint of a run, without the keys whose value is None."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = dict(meta=dict(epoch=0, iter=2, seed=7), message_hub={}, state_dict={}, optimizer={})
    state |= changes
    torch.save({key: value for key, value in state.items() if value is not None}, path)
    return path


@pytest.mark.parametrize(
    "checkpoint, file, flags",
    [
        ("work, of today/iter_2.pth", "work, of today/iter_2.pth", ["--resume"]),
        ("else, where.pth", "else, where.pth", ["--resume=else, where.pth"]),
        (URL, f"downloads/run-{sha256(URL.encode()).hexdigest()[:8]}.pth", ["--resume", URL]),
    ],
)
def test_a_run_resumes_from_a_checkpoint(checkpoint, file, flags, shapes, start):
    work = "work, of today"  # with spaces, which mmengine's --cfg-options cannot have
    write_state(Path(file))
    # The file of `load_from` is not needed.
    options = (*cfg_options(SEG, shapes, 4), "load_from=none.pth")
    rate = "optim_wrapper.optimizer.lr=0.5"
    cfg = start("train", CONFIG, "--work-dir", work, *flags, *options, rate)
    assert (cfg.resume, cfg.load_from, cfg.work_dir) == (True, checkpoint, work)
    assert (cfg.train_cfg.max_iters, cfg.optim_wrapper.optimizer.lr) == (4, 0.5)


@pytest.mark.parametrize(
    "changes",
    [
        dict(message_hub=None),  # weights
        dict(optimizer=None),  # a best checkpoint
        dict(meta=dict(epoch=0, iter=2, config="import os")),  # mmengine would run it
    ],
    ids=str,
)
def test_a_file_without_the_state_of_a_run_resumes_nothing(changes, shapes, refused):
    write_state(Path("state.pth"), **changes)
    error = refused("train", CONFIG, "--resume", "state.pth", *cfg_options(SEG, shapes, 4))
    assert "does not have the state of a run: start a new run" in error


def test_a_run_of_other_classes_is_not_resumed(shapes, refusal):
    classes = ("road", "circle", "square", "triangle", "star")
    meta = dict(epoch=0, iter=2, dataset_meta=dict(classes=classes))
    write_state(Path("state.pth"), meta=meta)
    error = refusal("train", CONFIG, "--resume", "state.pth", *cfg_options(SEG, shapes, 4))
    assert re.search("other classes .*: class 0 is road, not background", error)


def test_resume_in_a_config_means_the_option(shapes, start):
    path = write_state(Path("work/iter_2.pth"))
    cfg = start("train", CONFIG, "--work-dir", "work", *cfg_options(SEG, shapes, 4), "resume=True")
    assert (cfg.resume, cfg.load_from) == (True, str(path))


@pytest.mark.parametrize("name", ["copy", "~/copy"])
def test_a_copy_of_a_work_folder_is_resumed_in_the_copy(name, shapes, start, folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    path = write_state(folder / "copy" / "iter_2.pth")
    (path.parent / "last_checkpoint").write_text("work_dirs/first/iter_2.pth")
    cfg = read_config(CONFIG)
    cfg.work_dir = "work_dirs/first"
    cfg.dump("copy/own.py")
    cfg = start("train", name, "--resume", *cfg_options(SEG, shapes, 4))
    assert Path(cfg.work_dir).resolve() == path.parent and Path(cfg.load_from).resolve() == path


def test_a_folder_to_resume_from_is_refused(shapes, refused):
    write_state(Path("work/iter_2.pth"))
    Path("work/last_checkpoint").write_text("iter_2.pth")
    read_config(CONFIG).dump("work/own.py")
    message = refused("train", CONFIG, "--resume", "work", *cfg_options(SEG, shapes, 4))
    assert message == "--resume: work is a folder: give a checkpoint in it"


def test_a_run_starts_in_no_folder_with_a_checkpoint(shapes, refused):
    write_state(Path("work/iter_2.pth"))
    message = refused("train", CONFIG, "--work-dir", "work", *cfg_options(SEG, shapes, 8))
    assert "work has a checkpoint, and a work folder is one run: resume it" in message


def test_a_run_without_a_checkpoint_starts_from_the_weights_of_its_config(shapes, models, start):
    """A requeued job must not start from scratch."""
    _, weights = models["seg"]
    options = (*cfg_options(SEG, shapes, 4), f"load_from={weights}")
    cfg = start("train", CONFIG, "--work-dir", "work", "--resume", *options)
    assert (cfg.resume, cfg.load_from) == (False, weights)


@pytest.mark.parametrize("length", [3, 4])  # that of the run, or a longer one
def test_a_complete_run_says_so_and_changes_nothing(length, shapes, capsys):
    progress = dict(meta=dict(iter=3), message_hub=dict(runtime_info=dict(max_iters=3)))
    state = write_state(Path("work/iter_3.pth"), **progress)
    before = {path: path.stat().st_mtime_ns for path in Path("work").rglob("[!.]*")}
    options = cfg_options(SEG, shapes, length)
    assert main(["train", str(CONFIG), "--work-dir", "work", "--resume", *options]) == 0
    assert {path: path.stat().st_mtime_ns for path in Path("work").rglob("[!.]*")} == before
    line = f"the run is complete: {state} is its end; to train longer, start a new run from it"
    assert [line in text for text in capsys.readouterr().err.splitlines()] == [True]
