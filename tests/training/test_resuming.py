"""Training resumes after a kill, a broken checkpoint or a full disk."""

import json
import random
import signal
from pathlib import Path

import pytest
import torch
from demo_runs import DEMO, SCORES, assert_same_state, cfg_options, printed_scores
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from processes import run_tool
from torch import nn

from xcit_mm import ResumableCheckpointHook
from xcit_mm.weights.reader import load_from_file

SEG, DET = SCORES
# Calls at which a process is killed: the n-th call of a method of hooks, or of fsync, which a checkpoint calls for its
# file. Checkpoints are two iterations apart.
STARTUP, ITERATION, WRITING, POINTING = ("before_run", 1), ("before_train_iter", 4), ("fsync", 2), ("fsync", 2)
CHANCE = random.Random(0)
CALLS = ("before_train_iter", "after_train_iter", "before_save_checkpoint", "fsync")
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
    assert str(last) in message


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


@pytest.mark.parametrize("keep", [1, 2])
def test_constant_file_name_is_one_complete_file(keep, tmp_path):
    name = dict(filename_tmpl="last.pth", max_keep_ckpts=keep)
    train_a_line(tmp_path, **name)
    assert [path.name for path in tmp_path.glob("*.pth")] == ["last.pth"]
    assert load_from_file(str(tmp_path / "last.pth"))["meta"]["iter"] == 3
    train_a_line(tmp_path, iterations=4, **dict(name, max_keep_ckpts=1))  # resumed with fewer to keep
    assert load_from_file((tmp_path / "last_checkpoint").read_text())["meta"]["iter"] == 4


@pytest.mark.parametrize("best", ["score", ["score", "other"]])
def test_former_checkpoints_are_removed_after_the_new_ones_are_written(best, tmp_path, monkeypatch):
    names = {f"best_{key}_last.pth" for key in ([best] if isinstance(best, str) else best)}
    train_a_line(tmp_path, iterations=2, filename_tmpl="last.pth", max_keep_ckpts=1, save_best=best, rule="greater")
    assert {path.name for path in tmp_path.glob("*.pth")} == {"last.pth", *names}
    assert all(load_from_file(str(tmp_path / name))["meta"]["iter"] == 2 for name in names)
    numbered = tmp_path / "numbered"
    existing, unlink = [], Path.unlink

    def count(path: Path, **options) -> None:
        existing.extend(len(list(numbered.glob(name))) for name in ("best_score*", "iter_*"))
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", count)
    train_a_line(numbered, max_keep_ckpts=2, save_best=best, rule="greater")
    assert {2, 3} <= set(existing)  # the former and the new one, besides the other of the two to keep
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


def train_in_epochs(work_dir: Path, batch_size: int, stop: int | None = None) -> list[tuple]:
    indices = Indices(stop)
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
        train_cfg=dict(type="EpochBasedTrainLoop", max_epochs=2),
        default_hooks=dict(checkpoint=dict(type="ResumableCheckpointHook", by_epoch=False, interval=1)),
        custom_hooks=[indices],
        resume=True,
        randomness=dict(seed=0),
        experiment_name=f"{work_dir.name}{batch_size}{stop}",
    )
    try:
        runner.train()
    except KeyboardInterrupt:
        assert (work_dir / f"iter_{stop}.pth").is_file()
    return indices.seen


def test_numbers_of_batches_continue_after_a_resume(tmp_path):
    whole = train_in_epochs(tmp_path / "whole", 2)
    assert [batch[1] for batch in whole] == [0, 1, 2, 3] * 2
    resumed = train_in_epochs(tmp_path / "work", 2, stop=2) + train_in_epochs(tmp_path / "work", 2)
    assert resumed == whole


class Unequal(Numbers):
    """Photos and segmentation maps, of which a map has three channels."""

    def __getitem__(self, index: int) -> dict:
        from mmengine.structures import PixelData
        from mmseg.structures import SegDataSample

        channels = 3 if index == 5 else 1
        sample = SegDataSample(
            metainfo=dict(img_path=f"{index}.jpg", seg_map_path=f"{index}.png", img_shape=(8, 8)),
            gt_sem_seg=PixelData(data=torch.zeros(channels, 8, 8, dtype=torch.uint8)),
        )
        return dict(inputs=torch.zeros(3, 8, 8), data_samples=sample)


@pytest.mark.parametrize("loop", ["Epoch", "Iter"])
def test_batch_that_cannot_be_collated_names_the_files_and_shapes(loop, tmp_path):
    class Stacked(Line):
        def forward(self, inputs, data_samples, mode="loss"):
            torch.stack([sample.gt_sem_seg.data for sample in data_samples])
            return dict(loss=self.linear(torch.ones(1)).sum())

    runner = Runner(
        Stacked(),
        work_dir=str(tmp_path),
        train_dataloader=dict(
            dataset=Unequal(),
            batch_size=4,
            sampler=dict(type="DefaultSampler", shuffle=False),
            collate_fn=dict(type="pseudo_collate"),
        ),
        optim_wrapper=dict(optimizer=dict(type="SGD", lr=1e-3)),
        train_cfg=dict(type=f"{loop}BasedTrainLoop", **(dict(max_epochs=1) if loop == "Epoch" else dict(max_iters=2))),
        default_hooks=dict(checkpoint=dict(type="ResumableCheckpointHook")),
        experiment_name=f"{tmp_path.name}{loop}",
    )
    with pytest.raises(ValueError, match=r"differ in shape: 4.png has \(1, 8, 8\), 5.png has \(3, 8, 8\)"):
        runner.train()


def test_another_number_of_processes_resumes_with_other_batches_and_says_so(tmp_path, capfd):
    train_in_epochs(tmp_path, 2, stop=6)
    last = tmp_path / "iter_6.pth"
    content = torch.load(last, weights_only=False)
    content["position"]["processes"] = 2
    torch.save(content, last)
    assert len(train_in_epochs(tmp_path, 2)) == 4  # the second epoch from its start
    assert "the checkpoint is of another number of processes" in capfd.readouterr().out
