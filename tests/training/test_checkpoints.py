"""Checkpoints are complete and finite, replace each other in time, and tell the next batch."""

import itertools
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.demo_runs import assert_same_state
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader

import xcit_mm  # noqa: F401  # registers the hook
from xcit_mm.weights.reader import load_from_file
from xcit_mm.weights.work_dirs import find_checkpoint_in


class Line(BaseModel):
    """A model that is quick to train."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, inputs, mode="loss"):
        out = self.linear(inputs)
        return dict(loss=out.square().mean()) if mode == "loss" else [out]


class Scores(BaseMetric):
    """The scores of one validation after another."""

    def __init__(self, scores: Iterable[float]) -> None:
        super().__init__()
        self.scores = iter(scores)

    def process(self, data_batch, data_samples) -> None:
        self.results.append(0)

    def compute_metrics(self, results) -> dict:
        score = next(self.scores)
        return dict(score=score, other=score)


RUNS = itertools.count()  # for mmengine's names


def train(work_dir: Path, hook: dict[str, Any], **options: Any) -> None:
    """Train a line, or resume, with arguments of the checkpoint's hook and of the Runner."""
    torch.manual_seed(0)
    checkpoint = dict(type="ResumableCheckpointHook", by_epoch=False, interval=1) | hook
    runner = Runner(
        Line(),
        work_dir=str(work_dir),
        optim_wrapper=dict(optimizer=dict(type="SGD", lr=0.1)),
        default_hooks=dict(checkpoint=checkpoint),
        resume=True,
        randomness=dict(seed=0),
        experiment_name=f"{work_dir.name}{next(RUNS)}",
        **options,
    )
    runner.train()


def train_with_scores(
    work_dir: Path,
    iterations: int = 3,
    scores: Iterable[float] = (1, 2, 3, 4),
    momentum: float | None = None,
    load_from: Path | None = None,
    **hook: Any,
) -> None:
    """Train, with a validation of each iteration, and averaged weights if they have a momentum."""
    batches = DataLoader([dict(inputs=torch.ones(1))] * 9)
    train(
        work_dir,
        hook,
        train_dataloader=batches,
        train_cfg=dict(type="IterBasedTrainLoop", max_iters=iterations, val_interval=1),
        val_dataloader=batches,
        val_cfg=dict(),
        val_evaluator=Evaluator(Scores(scores)),
        load_from=load_from and str(load_from),
        custom_hooks=[dict(type="EMAHook", momentum=momentum)] if momentum else None,
    )


def test_constant_file_name_is_one_complete_file(tmp_path):
    for iterations in (3, 4):  # resumed with fewer to keep
        keep = 5 - iterations
        train_with_scores(tmp_path, iterations, filename_tmpl="last.pth", max_keep_ckpts=keep)
    assert [path.name for path in tmp_path.glob("*.pth")] == ["last.pth"]
    assert load_from_file((tmp_path / "last_checkpoint").read_text())["meta"]["iter"] == 4


def test_former_checkpoints_are_removed_after_the_new_ones_are_written(tmp_path, monkeypatch):
    pointer = tmp_path / "last_checkpoint"
    counts = set()
    unlink = Path.unlink

    def count(path: Path, **options) -> None:
        counts.update(len(list(tmp_path.glob(name))) for name in ("best_score*", "iter_*"))
        unlink(path, **options)
        if pointer.exists():
            assert Path(pointer.read_text()).is_file()

    monkeypatch.setattr(Path, "unlink", count)
    train_with_scores(tmp_path, max_keep_ckpts=1, save_best=["score", "other"], rule="greater")
    assert {2} < counts  # the former and the new one
    kept = {path.name for path in tmp_path.glob("*.pth")}
    assert kept == {"iter_3.pth", "best_score_iter_3.pth", "best_other_iter_3.pth"}


BEST = dict(save_best="score", rule="greater", max_keep_ckpts=2)


def kill_after_best(work_dir: Path, iteration: int, monkeypatch, **run) -> None:
    """Train until the best checkpoint of an iteration is saved, but not yet the last again."""
    save = Runner.save_checkpoint

    def save_and_stop(runner, out_dir, filename, *args, **options) -> None:
        save(runner, out_dir, filename, *args, **options)
        if filename.startswith("best_score") and runner.iter == iteration:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "save_checkpoint", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            train_with_scores(work_dir, **run)


def best_files(work_dir: Path) -> list[str]:
    return sorted(path.name for path in work_dir.glob("best_*"))


@pytest.mark.parametrize("is_former_removed", [True, False])
def test_after_a_kill_the_best_checkpoint_and_its_score_are_kept(
    is_former_removed, tmp_path, monkeypatch
):
    kill_after_best(tmp_path, 1, monkeypatch, scores=[40], **BEST)
    former = (tmp_path / "best_score_iter_1.pth").read_bytes()
    kill_after_best(tmp_path, 2, monkeypatch, scores=[90], **BEST)
    if not is_former_removed:
        (tmp_path / "best_score_iter_1.pth").write_bytes(former)
    train_with_scores(tmp_path, 4, scores=[50, 60], **BEST)
    assert best_files(tmp_path) == ["best_score_iter_2.pth"]
    assert find_checkpoint_in(tmp_path) == str(tmp_path / "best_score_iter_2.pth")
    train_with_scores(tmp_path, 5, scores=[95], **BEST)
    assert best_files(tmp_path) == ["best_score_iter_5.pth"]


def test_best_and_last_checkpoint_hold_averaged_weights_also_after_a_kill(tmp_path, monkeypatch):
    plain, averaged, killed = (tmp_path / name for name in ("plain", "averaged", "killed"))
    train_with_scores(plain)
    train_with_scores(averaged, momentum=0.5, **BEST)
    kill_after_best(killed, 2, monkeypatch, momentum=0.5, **BEST)
    train_with_scores(killed, scores=[3], momentum=0.5, **BEST)
    weights = [read_weight(plain / f"iter_{number}.pth") for number in (1, 2, 3)]
    mean = (weights[0] + weights[1]) / 4 + weights[2] / 2
    for folder in (averaged, killed):
        for name in ("iter_3.pth", "best_score_iter_3.pth"):
            assert read_weight(folder / name) == pytest.approx(mean, rel=1e-6)
    assert_same_state(averaged / "iter_3.pth", killed / "iter_3.pth")


def read_weight(checkpoint: Path) -> float:
    return load_from_file(checkpoint)["state_dict"]["linear.weight"].item()


def test_a_copied_folder_resumes_without_the_original(tmp_path):
    first = tmp_path / "first"
    copy = tmp_path / "copy"
    train_with_scores(first, 2, scores=[40, 50], **BEST)
    shutil.copytree(first, copy)
    train_with_scores(copy, 3, scores=[60], load_from=copy / "iter_2.pth", **BEST)
    assert best_files(first) == ["best_score_iter_2.pth"]
    assert best_files(copy) == ["best_score_iter_3.pth"]


def test_weights_that_are_not_finite_replace_no_checkpoint(tmp_path, monkeypatch):
    hook = dict(BEST, filename_tmpl="last.pth")
    steps = iter([1.0, float("inf")])

    def train_step(model: Line, *_, **__) -> dict:
        return dict(loss=model.linear.bias.data.add_(next(steps)))

    with monkeypatch.context() as patch:
        patch.setattr(Line, "train_step", train_step)
        with pytest.raises(FloatingPointError, match=r"linear\.bias"):
            train_with_scores(tmp_path, **hook)
    saved = [load_from_file(path) for path in tmp_path.glob("*.pth")]
    assert [checkpoint["meta"]["iter"] for checkpoint in saved] == [1, 1]
    assert all(checkpoint["state_dict"]["linear.bias"].isfinite() for checkpoint in saved)
    train_with_scores(tmp_path, **hook)  # resumes


class Batches(Hook):
    """Collects epoch, number and samples of each batch, and stops before an iteration."""

    def __init__(self, stop: int | None) -> None:
        self.seen: list[tuple[int, ...]] = []
        self.stop = stop

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter == self.stop:
            raise KeyboardInterrupt
        self.seen.append((runner.epoch, batch_idx, *map(int, data_batch["inputs"])))


def train_in_epochs(work_dir: Path, batch_size: int, stop: int | None = None) -> list[tuple]:
    """Train two epochs of eight samples, and return the batches."""
    batches = Batches(stop)
    loader = dict(
        dataset=[dict(inputs=torch.tensor([float(number)])) for number in range(8)],
        batch_size=batch_size,
        sampler=dict(type="DefaultSampler", shuffle=True),
        collate_fn=dict(type="default_collate"),
    )
    length = dict(type="EpochBasedTrainLoop", max_epochs=2)
    run = dict(train_dataloader=loader, train_cfg=length, custom_hooks=[batches])
    try:
        train(work_dir, {}, **run)
    except KeyboardInterrupt:
        assert (work_dir / f"iter_{stop}.pth").is_file()
    return batches.seen


@pytest.mark.parametrize("stop", [2, 4, 5])
def test_numbers_of_batches_continue_after_a_resume(stop, tmp_path):
    """Also from the checkpoint of an epoch's last iteration."""
    whole = train_in_epochs(tmp_path / "whole", 2)
    assert [batch[1] for batch in whole] == [0, 1, 2, 3] * 2
    first_part = train_in_epochs(tmp_path / "work", 2, stop)
    assert first_part + train_in_epochs(tmp_path / "work", 2) == whole


def test_run_of_other_batches_goes_on_within_its_epoch(tmp_path):
    """As with another number of processes."""
    train_in_epochs(tmp_path, 2, stop=5)
    assert [batch[:2] for batch in train_in_epochs(tmp_path, 4)] == [(1, 1)]
