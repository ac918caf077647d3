"""`--resume` resumes from the given checkpoint or the last one, and starts the run if there is no
checkpoint.
"""

import os
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from helpers.demo_runs import DEMO, SCORES, cfg_options

from xcit_mm.commands import train

SEG, DET = SCORES
CONFIG = DEMO / f"{SEG}.py"


def write_state(path: Path, **changes: object) -> Path:
    """Write a checkpoint of a run, without the keys whose value is None."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = dict(meta=dict(epoch=0, iter=2, seed=7), message_hub={}, state_dict={}, optimizer={})
    state |= changes
    torch.save({key: value for key, value in state.items() if value is not None}, path)
    return path


URL = "https://example.com/run.pth"


@pytest.mark.parametrize("config", SCORES)
@pytest.mark.parametrize("checkpoint", ["the last", "the newest", "a path", "a URL"])
def test_a_run_resumes_from_a_checkpoint(checkpoint, config, shapes, start):
    work = Path("work, of today")  # with a space, which mmengine's --cfg-options cannot have
    if checkpoint in ("the last", "the newest"):
        path = str(write_state(work / "iter_2.pth"))
        # A kill may leave an empty pointer.
        (work / "last_checkpoint").write_text(path if checkpoint == "the last" else "")
        flags = ["--resume"]
    elif checkpoint == "a path":
        path = str(write_state(Path("else, where.pth")))
        flags = [f"--resume={path}"]
    else:
        path = URL
        write_state(Path("downloads") / f"run-{sha256(URL.encode()).hexdigest()[:8]}.pth")
        flags = ["--resume", URL]
    # The file of `load_from` is not needed.
    options = (*cfg_options(config, shapes, 4), "load_from=none.pth")
    rate = "optim_wrapper.optimizer.lr=0.5"
    cfg = start(DEMO / f"{config}.py", "--work-dir", work, *flags, *options, rate)
    assert (cfg.resume, cfg.load_from, cfg.work_dir) == (True, path, str(work))
    assert (cfg.train_cfg.max_iters, cfg.optim_wrapper.optimizer.lr) == (4, 0.5)


@pytest.mark.parametrize("content", ["missing", "broken", "it holds weights"])
def test_resume_from_what_is_not_a_state_is_refused(content, shapes, refused):
    if content != "missing":
        write_state(Path("state.pth"), message_hub=None)
    if content == "broken":
        os.truncate("state.pth", 500)
    message = refused(CONFIG, "--resume", "state.pth", *cfg_options(SEG, shapes, 4))
    assert "state.pth" in message and ("it holds weights" in message) == (
        content == "it holds weights"
    )


@pytest.mark.parametrize(
    "saved, instead",
    [
        (["iter_2.pth", "iter_4.pth"], "work/iter_2.pth"),
        (["epoch_0.pth", "iter_4.pth"], "work/epoch_0.pth"),
        ([], "a checkpoint of iterations or epochs"),
    ],
)
def test_resume_from_the_best_checkpoint_names_the_checkpoint_to_take(
    saved, instead, shapes, refused
):
    best = write_state(Path("work/best_mIoU_iter_2.pth"), optimizer=None)
    for name in saved:
        write_state(Path("work") / name)
    message = refused(CONFIG, "--resume", best, *cfg_options(SEG, shapes, 8))
    assert f"cannot resume from {best}: it holds no optimizer" in message
    assert message.endswith(f": take {instead}")


@pytest.mark.parametrize("zeros", [0, 1000])  # a power failure leaves them, and torch reads them
def test_a_damaged_last_checkpoint_is_named_with_the_newest_whole_one(zeros, shapes, refused):
    work = Path("work")
    for number in (1, 2, 3, 4):
        path = write_state(work / f"iter_{number}.pth", padding=torch.ones(1000))
        if number > 2:
            content = path.read_bytes()
            place = content.index(torch.ones(1000).numpy().tobytes())
            end = content[place + zeros :] if zeros else b""
            path.write_bytes(content[:place] + bytes(zeros) + end)
        os.utime(path, (number, number))
    (work / "last_checkpoint").write_text("work/iter_4.pth")
    flags = ("--work-dir", work, "--resume", *cfg_options(SEG, shapes, 8))
    message = refused(CONFIG, *flags)
    assert re.search(r"cannot (read|resume from) work/iter_4\.pth", message)
    assert message.endswith("resume from it with --resume work/iter_2.pth")


@pytest.fixture(
    params=[
        ("iters", dict(epoch=0, iter=3)),
        ("epochs", dict(epoch=3, iter=12)),
        ("epochs", dict(epoch=2, iter=12)),  # saved before the epoch counts
    ],
    ids=str,
)
def trained_for_three(request, shapes) -> tuple[str, Callable[[int], list[str]]]:
    """The unit of a run that was trained for 3 iterations or epochs, and the command line that
    resumes it with another length.
    """
    unit, meta = request.param
    hub = dict(runtime_info=dict(max_epochs=3, max_iters=12))
    work = write_state(Path("work/iter_3.pth"), meta=meta, message_hub=hub).parent
    (work / "last_checkpoint").write_text("work/iter_3.pth")

    def command(length: int) -> list[str]:
        loop = f"{unit[:-1].title()}BasedTrainLoop"
        train_cfg = f"dict(_delete_=True, type='{loop}', max_{unit}={length})"
        Path("own.py").write_text(f"_base_ = {str(CONFIG)!r}\ntrain_cfg = {train_cfg}\n")
        options = [option for option in cfg_options(SEG, shapes, 3) if "train_cfg" not in option]
        return ["own.py", "--work-dir", "work", "--resume", *options]

    return unit, command


def test_a_complete_run_says_so_and_changes_nothing(trained_for_three, capsys):
    unit, command = trained_for_three
    before = {path: path.stat().st_mtime_ns for path in Path("work").rglob("*")}
    assert train.main(command(3)) == 0
    assert {path: path.stat().st_mtime_ns for path in Path("work").rglob("*")} == before
    line = f"the run is complete: work/iter_3.pth has all 3 {unit}; raise max_{unit} to extend"
    assert [line in text for text in capsys.readouterr().err.splitlines()] == [True]


def test_a_run_that_is_longer_than_its_config_is_refused_or_extended(
    trained_for_three, refused, start
):
    unit, command = trained_for_three
    message = refused(*command(2))
    assert f"max_{unit}=2, but 3 {unit} are trained: raise max_{unit}, or resume" in message
    assert start(*command(4)).resume


@pytest.mark.parametrize("checkpoint", [[], ["work/iter_2.pth"]], ids=["last", "chosen"])
def test_resume_from_a_run_of_other_classes_is_refused(checkpoint, shapes, refused):
    classes = ("road", "circle", "square", "triangle", "star")
    meta = dict(epoch=0, iter=2, dataset_meta=dict(classes=classes))
    write_state(Path("work/iter_2.pth"), meta=meta)
    flags = ["--work-dir", "work", "--resume", *checkpoint]
    message = refused(CONFIG, *flags, *cfg_options(SEG, shapes, 4))
    assert "other classes than the config: road instead of background" in message


def test_the_last_checkpoint_of_a_run_on_other_data_resumes_only_by_its_name(
    shapes, refused, start
):
    Path("old").mkdir()
    saved_config = (
        "train_dataloader = dict(dataset=dict(data_root='old', data_prefix=dict(img='')))"
    )
    path = write_state(Path("work/iter_2.pth"), meta=dict(epoch=0, iter=2, cfg=saved_config))
    options = cfg_options(SEG, shapes, 4)
    message = refused(CONFIG, "--work-dir", "work", "--resume", *options)
    assert "work/iter_2.pth is of an earlier run on" in message
    assert message.endswith(f"--resume {path}")
    assert start(CONFIG, "--work-dir", "work", "--resume", path, *options).resume
    Path("old").rename("moved")
    assert start(CONFIG, "--work-dir", "work", "--resume", *options).resume
