"""Training resumes after a kill, a broken checkpoint or a full disk."""

import json
import random
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from demo_runs import DEMO, SCORES, assert_same_state, cfg_options, printed_scores
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.fileio import LocalBackend
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler
from mmengine.registry import PARAM_SCHEDULERS
from mmengine.runner import Runner
from processes import run_tool
from torch import nn

from xcit_mm import ResumableCheckpointHook
from xcit_mm.training.random_state import get_random_state, set_random_state
from xcit_mm.training.resuming import AtomicBackend
from xcit_mm.weights.reader import load_from_file

SEG, DET = SCORES
# Calls at which a process is killed: the n-th call of a method of hooks, or of fsync. A checkpoint calls fsync for its
# file and for last_checkpoint. Checkpoints are two iterations apart.
STARTUP, ITERATION, WRITING, POINTING = ("before_run", 1), ("before_train_iter", 4), ("fsync", 3), ("fsync", 4)
CHANCE = random.Random(0)
CALLS = ("before_train_iter", "after_train_iter", "before_save_checkpoint", "fsync")
OFTEN = [STARTUP, *((CHANCE.choice(CALLS), CHANCE.randint(1, 3)) for _ in range(18)), STARTUP]


@pytest.mark.parametrize(
    "config, workers, length, kills",
    [
        pytest.param(SEG, 2, 8, [POINTING, STARTUP, ITERATION], id="segmentor"),
        pytest.param(DET, 0, 4, [WRITING], id="detector", marks=pytest.mark.slow),
        pytest.param(SEG, 2, 80, OFTEN, id="segmentor-often", marks=pytest.mark.slow),
        pytest.param(DET, 0, 80, OFTEN, id="detector-often", marks=pytest.mark.slow),
    ],
)
def test_resume_after_kill_is_bit_identical(config, workers, length, kills, shapes, tmp_path):
    options = [*cfg_options(config, shapes, length, workers), "model.backbone.drop_path_rate=0.2"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train = ("train", DEMO / f"{config}.py", *options, "--work-dir")
    assert run_tool(*train, whole, cwd=tmp_path).returncode == 0
    last = f"iter_{length}.pth"

    pointer = broken / "last_checkpoint"
    for kill in kills:
        assert run_tool(*train, broken, "--resume", cwd=tmp_path, kill_at=kill).returncode == -signal.SIGKILL
        assert not (broken / last).exists()
        if pointer.exists():
            load_from_file(pointer.read_text())  # raises if the file is incomplete
    run = run_tool(*train, broken, "--resume", cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]

    assert_same_state(whole / last, broken / last)
    scores = [printed_scores(folder)[-1] for folder in (whole, broken)]
    assert scores[0][SCORES[config]] == scores[1][SCORES[config]]
    assert not list(broken.glob(".*.part"))
    assert len(list(broken.glob("iter_*.pth"))) <= 3

    tested = ("test", DEMO / f"{config}.py", broken / last, "--work-dir", tmp_path / "test", *options)
    run = run_tool(*tested, cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]
    tested = json.loads(next((tmp_path / "test").glob("2*/2*.json")).read_text())
    assert tested[SCORES[config]] == scores[1][SCORES[config]]


def test_full_disk_and_broken_checkpoint_name_a_complete_checkpoint(shapes, tmp_path):
    work = tmp_path / "work"
    train = ("train", DEMO / f"{SEG}.py", "--work-dir", work)
    assert run_tool(*train, *cfg_options(SEG, shapes, 4), cwd=tmp_path).returncode == 0
    last = work / "iter_4.pth"
    resume = (*train, "--resume", *cfg_options(SEG, shapes, 6))
    run = run_tool(*resume, cwd=tmp_path, file_size=last.stat().st_size // 2)
    assert run.returncode == 1
    assert f"{work / 'iter_6.pth'}" in run.stderr.splitlines()[-1]
    assert "could not be written: File too large; earlier checkpoints are complete" in run.stderr
    assert (work / "last_checkpoint").read_text() == str(last)
    load_from_file(str(last))
    assert not list(work.glob("*iter_6*")) + list(work.glob(".*iter_6*"))

    last.write_bytes(last.read_bytes()[:-1000])
    run = run_tool(*resume, cwd=tmp_path)
    assert run.returncode == 1
    (message,) = run.stderr.strip().splitlines()
    assert f"cannot resume from {last}" in message
    assert f"resume from {work / 'iter_2.pth'}: --resume {work / 'iter_2.pth'}" in message


class Line(BaseModel):
    """A model that is quick to train."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, inputs, mode="loss"):
        out = self.linear(inputs)
        return dict(loss=out.square().mean()) if mode == "loss" else [out]


class Rising(BaseMetric):
    """A score that improves every time."""

    score = 0

    def process(self, data_batch, data_samples) -> None:
        self.results.append(0)

    def compute_metrics(self, results) -> dict:
        self.score += 1
        return dict(score=self.score, other=self.score)


def train_a_line(
    work_dir: Path, iterations: int = 3, param_scheduler: dict | None = None, **hook
) -> ResumableCheckpointHook | None:
    torch.manual_seed(0)
    batches = torch.utils.data.DataLoader([dict(inputs=torch.ones(1))] * 2)
    checkpoint = dict(dict(type="ResumableCheckpointHook", by_epoch=False, interval=1), **hook)
    runner = Runner(
        Line(),
        work_dir=str(work_dir),
        train_dataloader=batches,
        val_dataloader=batches,
        optim_wrapper=dict(optimizer=dict(type="SGD", lr=0.1)),
        train_cfg=dict(type="IterBasedTrainLoop", max_iters=iterations, val_interval=1),
        val_cfg=dict(),
        val_evaluator=Evaluator(Rising()),
        param_scheduler=param_scheduler,
        default_hooks=dict(checkpoint=checkpoint),
        resume=True,
        experiment_name=f"{work_dir.name}{iterations}",
    )
    runner.train()
    return next((hook for hook in runner._hooks if isinstance(hook, ResumableCheckpointHook)), None)


def wait_for(path: Path) -> None:
    """Wait for a thread of training that an exception ended."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("keep", [1, 2])
def test_constant_file_name_is_one_complete_file(keep, tmp_path):
    name = dict(filename_tmpl="last.pth", max_keep_ckpts=keep)
    train_a_line(tmp_path, **name)
    assert [path.name for path in tmp_path.glob("*.pth")] == ["last.pth"]
    assert load_from_file(str(tmp_path / "last.pth"))["meta"]["iter"] == 3
    train_a_line(tmp_path, iterations=4, **dict(name, max_keep_ckpts=1))  # resumed with fewer to keep
    assert load_from_file((tmp_path / "last_checkpoint").read_text())["meta"]["iter"] == 4


def test_checkpoint_by_time_exists_until_the_next_numbered_checkpoint(tmp_path, monkeypatch):
    timed = dict(minutes=1e-9, interval=3, max_keep_ckpts=1)
    with monkeypatch.context() as killed:
        killed.setattr(Rising, "process", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))  # after iteration 1
        with pytest.raises(KeyboardInterrupt):
            train_a_line(tmp_path, 4, **timed)
    wait_for(tmp_path / "last_checkpoint")
    assert (tmp_path / "last_checkpoint").read_text() == str(tmp_path / "latest.pth")
    assert load_from_file(str(tmp_path / "latest.pth"))["meta"]["iter"] == 1
    train_a_line(tmp_path, 4, **timed)
    assert [path.name for path in tmp_path.glob("*.pth")] == ["iter_4.pth"]
    train_a_line(tmp_path, 5, minutes=60, interval=9)
    assert {path.name for path in tmp_path.glob("*.pth")} == {"iter_4.pth", "iter_5.pth"}


def test_outdated_checkpoint_of_a_killed_run_is_removed_and_no_other_file(tmp_path, monkeypatch):
    work, other = tmp_path / "work", tmp_path / "other"
    with monkeypatch.context() as killed:
        killed.setattr(AtomicBackend, "remove", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train_a_line(work, iterations=2, max_keep_ckpts=1)
    assert {path.name for path in work.glob("*.pth")} == {"iter_1.pth", "iter_2.pth"}
    for folder, name in ((work, "iter_0.pth"), (other, "iter_1.pth")):  # files of another run
        folder.mkdir(exist_ok=True)
        (folder / name).touch()
    (other / "last_checkpoint").write_text(str(work / "iter_2.pth"))
    train_a_line(other, iterations=3, max_keep_ckpts=2)
    assert {path.name for path in other.glob("*.pth")} == {"iter_1.pth", "iter_3.pth"}
    train_a_line(work, iterations=3, max_keep_ckpts=1)
    assert {path.name for path in work.glob("*.pth")} == {"iter_0.pth", "iter_3.pth"}


@pytest.mark.parametrize("best", ["score", ["score", "other"]])
def test_former_best_checkpoint_is_removed_after_the_new_one_is_written(best, tmp_path, monkeypatch):
    names = {f"best_{key}_last.pth" for key in ([best] if isinstance(best, str) else best)}
    train_a_line(tmp_path, iterations=2, filename_tmpl="last.pth", max_keep_ckpts=1, save_best=best, rule="greater")
    assert {path.name for path in tmp_path.glob("*.pth")} == {"last.pth", *names}
    assert all(load_from_file(str(tmp_path / name))["meta"]["iter"] == 2 for name in names)
    numbered = tmp_path / "numbered"
    with monkeypatch.context() as patch:
        existing = []
        remove = AtomicBackend.remove
        patch.setattr(
            AtomicBackend,
            "remove",
            lambda self, path: (existing.append(len(list(numbered.glob("best_score*")))), remove(self, path)),
        )
        train_a_line(numbered, max_keep_ckpts=2, save_best=best, rule="greater")
    assert max(existing) == 2  # the former and the new file
    assert {path.name for path in numbered.glob("iter_*.pth")} == {"iter_2.pth", "iter_3.pth"}
    assert {path.name for path in numbered.glob("best_*")} == {name.replace("last", "iter_3") for name in names}


@pytest.mark.parametrize("names", [dict(), dict(filename_tmpl="last.pth", save_best="score", rule="greater")])
def test_weights_that_are_not_finite_replace_no_checkpoint(names, tmp_path, monkeypatch):
    added = iter([1.0, float("inf")])
    with monkeypatch.context() as patch:
        patch.setattr(Line, "train_step", lambda model, *_, **__: dict(loss=model.linear.bias.data.add_(next(added))))
        with pytest.raises(FloatingPointError, match=r"linear\.bias is not finite"):
            train_a_line(tmp_path, max_keep_ckpts=1, **names)
    saved = [load_from_file(str(path)) for path in tmp_path.glob("*.pth")]
    assert [content["meta"]["iter"] for content in saved] == [1] * (1 + ("save_best" in names))
    assert all(content["state_dict"]["linear.bias"].isfinite() for content in saved)
    train_a_line(tmp_path, max_keep_ckpts=1, **names)  # resumes


def test_explicit_local_backends_are_atomic_too(tmp_path):
    for number, given in enumerate(
        ({}, dict(file_client_args=dict(backend="disk")), dict(backend_args=dict(backend="local")))
    ):
        hook = train_a_line(tmp_path / str(number), iterations=1, **given)
        assert isinstance(hook.file_backend, AtomicBackend)
    remote = ResumableCheckpointHook(file_client_args=dict(backend="petrel"))
    assert (remote.file_client_args, remote.backend_args) == (dict(backend="petrel"), None)


def test_failed_write_keeps_the_former_file(tmp_path, monkeypatch):
    backend = AtomicBackend()
    backend.put(b"old", tmp_path / "file")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="could not be written: No space left on device; earlier"):
        backend.put(b"new", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_random_state_survives_a_checkpoint(tmp_path):
    import numpy as np

    def draw() -> tuple:
        return random.random(), np.random.rand(), torch.rand(()).item()

    state = get_random_state()
    drawn = draw()
    torch.save(dict(meta={}, state_dict={}, random_state=[state]), tmp_path / "file.pth")
    set_random_state(load_from_file(str(tmp_path / "file.pth"))["random_state"][0])
    assert draw() == drawn


# Arguments of a scheduler besides the optimizer, by its name up to LR, Momentum or ParamScheduler.
SCHEDULERS = dict(
    Constant=dict(factor=0.5, end=4),
    CosineAnnealing=dict(T_max=8),
    CosineRestart=dict(periods=[3, 5], restart_weights=[1, 0.5], eta_min=0.0),
    Exponential=dict(gamma=0.9),
    Linear=dict(start_factor=0.1, end=5),
    MultiStep=dict(milestones=[2, 4]),
    OneCycle=dict(eta_max=1.0, total_steps=10, anneal_strategy="linear"),
    Poly=dict(power=2.0, end=6),
    ReduceOnPlateau=dict(monitor="loss", rule="less", patience=1),
    Step=dict(step_size=2),
)
MAKERS = {name: maker for name, maker in PARAM_SCHEDULERS.module_dict.items() if issubclass(maker, _ParamScheduler)}


def scheduler_of(name: str) -> _ParamScheduler:
    part = next(part for part in SCHEDULERS if name in (f"{part}{end}" for end in ("LR", "Momentum", "ParamScheduler")))
    given = SCHEDULERS[part] | (dict(param_name="lr") if name.endswith("ParamScheduler") else {})
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    return MAKERS[name](optimizer, **given)


def values_of(scheduler: _ParamScheduler, steps: int) -> list[float]:
    values = []
    for step in range(steps):
        scheduler.optimizer.step()
        scheduler.step(*([dict(loss=float(step))] if "Plateau" in type(scheduler).__name__ else []))
        values.append(scheduler.optimizer.param_groups[0][scheduler.param_name])
    return values


@pytest.mark.parametrize("by", ["this hook", "mmengine's"])
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_every_scheduler_resumes(name, by, tmp_path):
    whole, resumed = scheduler_of(name), scheduler_of(name)
    values_of(whole, 2)
    states = dict(optimizer=whole.optimizer.state_dict(), state_dict={})
    checkpoint = dict(param_schedulers=[whole.state_dict()], **states)
    if by == "this hook":
        ResumableCheckpointHook().before_save_checkpoint(None, checkpoint)
    torch.save(checkpoint, tmp_path / "file.pth")
    if by == "this hook":
        torch.load(tmp_path / "file.pth", weights_only=True)  # raises if the file holds functions
    content = load_from_file(str(tmp_path / "file.pth"))
    resumed.optimizer.load_state_dict(content["optimizer"])
    (state,) = content["param_schedulers"]
    resumed.load_state_dict(state)
    assert values_of(resumed, 4) == values_of(whole, 4)


@pytest.mark.parametrize("hook", ["CheckpointHook", "ResumableCheckpointHook"])
def test_one_cycle_schedule_resumes_bit_identical(hook, tmp_path):
    schedule = dict(type="OneCycleLR", eta_max=0.1, total_steps=6, end=6, by_epoch=False)
    whole = tmp_path / "whole"
    train_a_line(tmp_path, 1, schedule, type=hook)
    train_a_line(tmp_path, 2, schedule, type=hook)
    train_a_line(whole, 2, schedule, type=hook)
    weights = [load_from_file(str(folder / "iter_2.pth"))["state_dict"] for folder in (tmp_path, whole)]
    torch.testing.assert_close(*weights, rtol=0, atol=0)


class Numbers(torch.utils.data.Dataset):
    """Eight samples."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict:
        return dict(inputs=torch.tensor([float(index)]))


class Indices(Hook):
    """Collects the sample and the number of every batch."""

    def __init__(self, stop: int | None = None) -> None:
        self.seen, self.stop = [], stop

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter == self.stop:
            raise KeyboardInterrupt
        self.seen.append((runner.epoch, batch_idx, *(int(sample) for sample in data_batch["inputs"])))


def train_in_epochs(work_dir: Path, batch_size: int, stop: int | None = None, loop: str = "Epoch") -> list[tuple]:
    indices = Indices(stop)
    length = dict(max_epochs=2) if loop == "Epoch" else dict(max_iters=16 // batch_size)
    runner = Runner(
        Line(),
        work_dir=str(work_dir),
        train_dataloader=dict(
            dataset=Numbers(),
            batch_size=batch_size,
            sampler=dict(type="DefaultSampler", shuffle=True),
            collate_fn=dict(type="default_collate"),
        ),
        optim_wrapper=dict(optimizer=dict(type="SGD", lr=1e-3)),
        train_cfg=dict(type=f"{loop}BasedTrainLoop", **length),
        default_hooks=dict(checkpoint=dict(type="ResumableCheckpointHook", by_epoch=False, interval=1)),
        custom_hooks=[indices],
        resume=True,
        randomness=dict(seed=0),
        experiment_name=f"{work_dir.name}{loop}{batch_size}{stop}",
    )
    try:
        runner.train()
    except KeyboardInterrupt:
        wait_for(work_dir / f"iter_{stop}.pth")
    return indices.seen


@pytest.mark.parametrize("loop", ["Epoch", "Iter"])
def test_fewer_processes_resume_with_the_batches_that_are_left(loop, tmp_path, capfd):
    """Two processes with two samples per batch have read half of the second epoch when both are killed."""
    whole = train_in_epochs(tmp_path / "whole", 2, loop=loop)
    train_in_epochs(tmp_path / "work", 4, stop=3, loop=loop)  # a batch of both processes
    last = tmp_path / "work" / "iter_3.pth"
    content = torch.load(last, weights_only=False)
    content["random_state"] *= 2
    torch.save(content, last)
    seen = train_in_epochs(tmp_path / "work", 2, loop=loop)
    assert [batch[2:] for batch in seen][:2] == [batch[2:] for batch in whole[6:]]
    line = "the checkpoint is of 2 processes with 2 batches per epoch, and 1 with 4 resume: the run continues with"
    assert line in capfd.readouterr().out
    if loop == "Epoch":
        assert seen == whole[6:]  # with their numbers
        assert (tmp_path / "work" / "iter_8.pth").exists()  # and the last checkpoint


def test_numbers_of_batches_continue_after_a_resume(tmp_path):
    whole = train_in_epochs(tmp_path / "whole", 2)
    assert [batch[1] for batch in whole] == [0, 1, 2, 3] * 2
    resumed = train_in_epochs(tmp_path / "work", 2, stop=2) + train_in_epochs(tmp_path / "work", 2)
    assert resumed == whole


def test_training_continues_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """The file holds the weights of its iteration, and the next one is written after it."""
    written, trained = threading.Event(), []

    def put(backend: AtomicBackend, content: bytes, path: str | Path) -> None:
        if Path(path).name == "iter_3.pth":
            assert written.wait(60)
        LocalBackend.put(backend, content, path)

    step = Line.train_step

    def train_step(model: Line, *args, **kwargs) -> dict:
        trained.append(model.linear.bias.item())
        if len(trained) == 6:  # after two more iterations
            assert not list(tmp_path.glob("*.pth")) and not (tmp_path / "last_checkpoint").exists()
            written.set()
        return step(model, *args, **kwargs)

    monkeypatch.setattr(AtomicBackend, "put", put)
    monkeypatch.setattr(Line, "train_step", train_step)
    train_a_line(tmp_path, 6, interval=3)
    assert load_from_file(str(tmp_path / "iter_3.pth"))["state_dict"]["linear.bias"].item() == trained[3]
    assert load_from_file((tmp_path / "last_checkpoint").read_text())["meta"]["iter"] == 6


def test_failed_write_stops_training_and_keeps_what_was_complete(tmp_path, monkeypatch, capfd):
    def put(backend: AtomicBackend, content: bytes, path: str | Path) -> None:
        if Path(path).name == "iter_2.pth":
            raise OSError(28, "No space left on device")
        LocalBackend.put(backend, content, path)

    monkeypatch.setattr(AtomicBackend, "put", put)
    with pytest.raises(OSError, match="No space left on device"):
        train_a_line(tmp_path, 50, max_keep_ckpts=1)
    assert (tmp_path / "last_checkpoint").read_text() == str(tmp_path / "iter_1.pth")
    assert [path.name for path in tmp_path.glob("*.pth")] == ["iter_1.pth"]
    assert "No space left on device" in capfd.readouterr().out  # also logged, if training stopped for another reason
