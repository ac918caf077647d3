"""`--resume` resumes from the given checkpoint or the last one, and starts the run if there is no
checkpoint.
"""

import os
import re
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from helpers.demo_runs import DEMO, SCORES, cfg_options

from xcit_mm.commands import train

SEG, _ = SCORES
CONFIG = DEMO / f"{SEG}.py"


def write_state(path: Path, **changes: object) -> Path:
    """Write a checkpoint of a run, without the keys whose value is None."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = dict(meta=dict(epoch=0, iter=2, seed=7), message_hub={}, state_dict={}, optimizer={})
    state |= changes
    torch.save({key: value for key, value in state.items() if value is not None}, path)
    return path


URL = "https://example.com/run.pth"


@pytest.mark.parametrize("checkpoint", ["the last", "a path", "a URL"])
def test_a_run_resumes_from_a_checkpoint(checkpoint, shapes, start):
    work = Path("work, of today")  # with a space, which mmengine's --cfg-options cannot have
    if checkpoint == "the last":
        path = str(write_state(work / "iter_2.pth"))
        flags = ["--resume"]
    elif checkpoint == "a path":
        path = str(write_state(Path("else, where.pth")))
        flags = [f"--resume={path}"]
    else:
        path = URL
        write_state(Path("downloads") / f"run-{sha256(URL.encode()).hexdigest()[:8]}.pth")
        flags = ["--resume", URL]
    # The file of `load_from` is not needed.
    options = (*cfg_options(SEG, shapes, 4), "load_from=none.pth")
    rate = "optim_wrapper.optimizer.lr=0.5"
    cfg = start(CONFIG, "--work-dir", work, *flags, *options, rate)
    assert (cfg.resume, cfg.load_from, cfg.work_dir) == (True, path, str(work))
    assert (cfg.train_cfg.max_iters, cfg.optim_wrapper.optimizer.lr) == (4, 0.5)


COMPLETE = dict(runtime_info=dict(max_iters=3))
SHORTER = "train_cfg = dict(max_iters=3, type='IterBasedTrainLoop', val_interval=3)"
ROAD = ("road", "circle", "square", "triangle", "star")
LONGER = r"train_cfg is dict\(max_iters=4, .* docs/recipes.md"


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(message_hub=None), "holds no state of a run"),  # weights
        (dict(optimizer=None), "holds no state of a run"),  # a best checkpoint
        (dict(meta=dict(config="import os")), "holds no state of a run"),  # mmengine would run it
        (
            dict(meta=dict(dataset_meta=dict(classes=ROAD))),
            "classes .*: road instead of background",
        ),
        (dict(meta=dict(iter=3, cfg=SHORTER), message_hub=COMPLETE), LONGER),
    ],
    ids=str,
)
def test_resume_from_the_state_of_another_run_is_refused(changes, message, shapes, refused):
    meta = dict(epoch=0, iter=2) | changes.get("meta", {})
    write_state(Path("state.pth"), **changes | dict(meta=meta))
    error = refused(CONFIG, "--resume", "state.pth", *cfg_options(SEG, shapes, 4))
    assert re.search(message, error)


def test_a_broken_checkpoint_is_named(shapes, refused):
    os.truncate(write_state(Path("state.pth")), 500)
    assert "state.pth" in refused(CONFIG, "--resume", "state.pth", *cfg_options(SEG, shapes, 4))


def test_resume_in_a_config_means_the_option(shapes, start):
    path = write_state(Path("work/iter_2.pth"))
    cfg = start(CONFIG, "--work-dir", "work", *cfg_options(SEG, shapes, 4), "resume=True")
    assert (cfg.resume, cfg.load_from) == (True, str(path))


def test_a_run_starts_in_no_folder_with_a_checkpoint(shapes, refused):
    write_state(Path("work/iter_2.pth"))
    message = refused(CONFIG, "--work-dir", "work", *cfg_options(SEG, shapes, 8))
    assert "work has a checkpoint, and a work folder is one run: --resume continues it" in message


def test_a_run_without_a_checkpoint_starts_from_the_weights_of_its_config(shapes, models, start):
    """A requeued job must not start from scratch."""
    _, weights = models["seg"]
    options = (*cfg_options(SEG, shapes, 4), f"load_from={weights}")
    cfg = start(CONFIG, "--work-dir", "work", "--resume", *options)
    assert (cfg.resume, cfg.load_from) == (False, weights)


def test_a_complete_run_says_so_and_changes_nothing(shapes, capsys):
    meta = dict(epoch=0, iter=3)
    state = write_state(Path("work/iter_3.pth"), meta=meta, message_hub=COMPLETE)
    before = {path: path.stat().st_mtime_ns for path in Path("work").rglob("[!.]*")}
    options = cfg_options(SEG, shapes, 3)
    assert train.main([str(CONFIG), "--work-dir", "work", "--resume", *options]) == 0
    assert {path: path.stat().st_mtime_ns for path in Path("work").rglob("[!.]*")} == before
    line = f"the run is complete: {state} is its end; a longer run starts from it by load_from"
    assert [line in text for text in capsys.readouterr().err.splitlines()] == [True]
