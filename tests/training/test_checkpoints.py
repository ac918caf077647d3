"""Checkpoints are complete and finite, replace each other in time, and tell the next batch."""

import itertools
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader

import xcit_mm  # noqa: F401  # registers the hook
from xcit_mm.weights.reader import load_from_file
from xcit_mm.weights.work_dirs import find_in


class Line(BaseModel):
    """A model that is quick to train."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, inputs, mode="loss"):
        out = self.linear(inputs)
        return dict(loss=out.square().mean()) if mode == "loss" else [out]


class Exploding(Line):
    """A line whose bias is infinite after the second step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = iter([1.0, float("inf")])

    def train_step(self, *_: object, **__: object) -> dict:
        return dict(loss=self.linear.bias.data.add_(next(self.steps)))


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


def train(
    work_dir: Path,
    iterations: int = 3,
    scores: Iterable[float] = (1, 2, 3, 4),
    model: type[Line] = Line,
    average_each: int = 1,
    **hook: Any,
) -> None:
    """Train a line, or resume, with a validation of each iteration."""
    torch.manual_seed(0)
    batches = DataLoader([dict(inputs=torch.ones(1))] * 9)
    checkpoint = dict(type="ResumableCheckpointHook", by_epoch=False, interval=1) | hook
    runner = Runner(
        model(),
        work_dir=str(work_dir),
        optim_wrapper=dict(optimizer=dict(type="SGD", lr=0.1)),
        default_hooks=dict(checkpoint=checkpoint),
        custom_hooks=[dict(type="EMAHook", interval=average_each)],
        resume=True,
        randomness=dict(seed=0),
        experiment_name=f"{work_dir.name}{next(RUNS)}",
        train_dataloader=batches,
        train_cfg=dict(type="IterBasedTrainLoop", max_iters=iterations, val_interval=1),
        val_dataloader=batches,
        val_cfg=dict(),
        val_evaluator=Evaluator(Scores(scores)),
    )
    runner.train()


BEST = dict(save_best="score", rule="greater", max_keep_ckpts=2)


def test_after_a_kill_the_best_checkpoint_is_the_one_that_the_last_names(tmp_path, monkeypatch):
    """The run dies when it has saved a better checkpoint, and not yet the last that names it."""
    save = Runner.save_checkpoint

    def save_and_stop(runner, out_dir, filename, *args, **options) -> None:
        save(runner, out_dir, filename, *args, **options)
        if filename.startswith("best_score") and runner.iter == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "save_checkpoint", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, scores=[40, 90], **BEST)
    best = sorted(path.name for path in tmp_path.glob("best_*"))
    assert best == ["best_score_iter_1.pth", "best_score_iter_2.pth"]
    assert find_in(tmp_path).checkpoint == str(tmp_path / "best_score_iter_1.pth")
    train(tmp_path, 4, scores=[50, 60], **BEST)
    assert find_in(tmp_path).checkpoint == str(tmp_path / "best_score_iter_4.pth")


def test_a_copied_folder_that_resumes_leaves_the_best_of_the_original(tmp_path):
    original = tmp_path / "original"
    copy = tmp_path / "copy"
    train(original, 2, scores=[40, 50], **BEST)
    shutil.copytree(original, copy)
    train(copy, 3, scores=[60], **BEST)
    assert [path.name for path in original.glob("best_*")] == ["best_score_iter_2.pth"]
    assert [path.name for path in copy.glob("best_*")] == ["best_score_iter_3.pth"]


@pytest.mark.parametrize("rule", ["greater", "less"])
def test_a_score_without_ground_truth_is_not_the_best(rule, tmp_path):
    """COCO's -1, and NaN."""
    hook = BEST | dict(rule=rule)
    train(tmp_path, 2, scores=[-1.0, float("nan")], **hook)
    assert not list(tmp_path.glob("best_*"))
    train(tmp_path, 5, scores=[0.3, -1.0, float("nan")], **hook)
    assert [path.name for path in tmp_path.glob("best_*")] == ["best_score_iter_3.pth"]


def test_checkpoints_in_another_folder_are_found(tmp_path):
    train(tmp_path / "work", 2, out_dir=str(tmp_path / "other"))
    last = tmp_path / "other" / "work" / "iter_2.pth"
    assert find_in(tmp_path / "work").checkpoint == str(last)


def test_a_run_removes_no_checkpoint_that_a_failed_run_has_replaced(tmp_path):
    """In one process: both checkpoints have the same name."""
    train(tmp_path / "kept", 1)
    with pytest.raises(FloatingPointError):
        train(tmp_path / "failed", model=Exploding, max_keep_ckpts=1)
    train(tmp_path / "kept", 2)
    assert (tmp_path / "kept" / "iter_1.pth").exists()


@pytest.mark.parametrize("average_each", [1, 9])
def test_weights_that_are_not_finite_replace_no_checkpoint(average_each, tmp_path):
    """Also if their average is still finite."""
    hook = dict(BEST, filename_tmpl="last.pth", max_keep_ckpts=1, average_each=average_each)
    with pytest.raises(FloatingPointError, match=r"linear\.bias"):
        train(tmp_path, model=Exploding, **hook)
    saved = [load_from_file(path) for path in tmp_path.glob("*.pth")]
    assert [checkpoint["meta"]["iter"] for checkpoint in saved] == [1, 1]
    assert all(checkpoint["state_dict"]["linear.bias"].isfinite() for checkpoint in saved)
    train(tmp_path, 2, **hook)  # resumes
    assert load_from_file(tmp_path / "last.pth")["meta"]["iter"] == 2
