"""A run that resumes has the schedule of its checkpoint: other edits are allowed."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.demo_runs import assert_same_state
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, LOOPS, MODELS
from mmengine.runner import IterBasedTrainLoop, Runner

import xcit_mm  # noqa: F401  # registers the hook


@MODELS.register_module()
class NoisyLine(BaseModel):
    """A model that is quick to train, with random numbers of its own."""

    def __init__(self, classes: int = 1) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)  # whatever the number of classes

    def forward(self, inputs, mode="loss"):
        return dict(loss=self.linear(inputs + torch.rand(3)).square().mean())


@DATASETS.register_module()
class NoisyData(torch.utils.data.Dataset):
    """Numbers of an epoch of four batches."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict:
        return dict(inputs=torch.rand(3))


WARM_UP = dict(type="LinearLR", start_factor=0.01, by_epoch=False, begin=0, end=3)
CONFIG = dict(
    model=dict(type="NoisyLine"),
    train_dataloader=dict(
        dataset=dict(type="NoisyData"),
        batch_size=2,
        sampler=dict(type="InfiniteSampler"),
        collate_fn=dict(type="default_collate"),
    ),
    train_cfg=dict(type="IterBasedTrainLoop", max_iters=8),
    optim_wrapper=dict(type="OptimWrapper", optimizer=dict(type="AdamW", lr=1e-3)),
    param_scheduler=[WARM_UP, dict(type="CosineAnnealingLR", by_epoch=False, begin=3, end=8)],
    default_hooks=dict(
        checkpoint=dict(type="ResumableCheckpointHook", by_epoch=False, interval=1),
        logger=dict(type="LoggerHook", interval=1),
    ),
    randomness=dict(seed=0),
)
EPOCHS = {
    "train_cfg": dict(_delete_=True, type="EpochBasedTrainLoop", max_epochs=2),
    "train_dataloader.sampler.type": "DefaultSampler",
    "param_scheduler": [WARM_UP, dict(type="MultiStepLR", by_epoch=True, milestones=[1])],
}


def train(work_dir: Path, edit: dict[str, Any], checkpoint: Path | None = None) -> str:
    """Train with other values by dotted key, or resume from a checkpoint, and return the log."""
    cfg = Config(CONFIG)
    cfg.merge_from_dict(copy.deepcopy(edit))  # it takes _delete_ out
    cfg.update(work_dir=str(work_dir), experiment_name=f"{work_dir}")
    cfg.update(resume=checkpoint is not None, load_from=checkpoint and str(checkpoint))
    Runner.from_cfg(cfg).train()
    return next(work_dir.glob("2*/*.log")).read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder of an undisturbed run."""
    work_dir = tmp_path_factory.mktemp("whole")
    train(work_dir, {})
    return work_dir


@pytest.mark.parametrize(
    "edit, difference",
    [
        ({"train_cfg.max_iters": 12}, r"train_cfg is dict\(max_iters=12, .* dict\(max_iters=8, "),
        ({"param_scheduler": None}, "param_scheduler is None in the config, .*LinearLR"),
        ({"optim_wrapper.optimizer.lr": 5e-4}, "optim_wrapper is .*lr=0.0005.* in the config, "),
        ({"auto_scale_lr": dict(base_batch_size=2)}, "auto_scale_lr is dict"),
    ],
    ids=str,
)
def test_another_schedule_is_refused_in_one_line(edit, difference, whole, tmp_path):
    """Also by the scripts of the libraries, which call the Runner alone."""
    with pytest.raises(ValueError, match=f"^{difference}.*: undo the edit, or .*load_from.*$"):
        train(tmp_path, edit, whole / "iter_5.pth")


def test_a_run_resumes_with_other_validations_precision_and_model(whole, tmp_path):
    edit = {"train_cfg.val_interval": 5, "optim_wrapper.type": "CPUAmpOptimWrapper"}
    train(tmp_path, {**edit, "model.classes": 2}, whole / "iter_5.pth")
    assert (tmp_path / "iter_8.pth").is_file()


@LOOPS.register_module()
class OwnLoop(IterBasedTrainLoop):
    """A loop of a user."""


def test_another_loop_trains_and_says_that_its_batches_have_no_numbers(tmp_path):
    log = train(tmp_path, {"train_cfg.type": "OwnLoop"})
    assert "a resumed run starts with other batches" in log


SCALED = dict(type="AmpOptimWrapper", dtype="bfloat16", accumulative_counts=3)
SCALED |= dict(loss_scale=dict(init_scale=2.0**10, growth_interval=1))


@pytest.mark.parametrize(
    "edit, done",
    [
        ({"optim_wrapper.accumulative_counts": 3}, 2),
        ({**EPOCHS, "optim_wrapper.accumulative_counts": 3}, 4),  # the end of an epoch
        ({"optim_wrapper": SCALED}, 5),
    ],
    ids=["iterations", "epoch_end", "loss_scaler"],
)
def test_gradients_that_accumulate_are_not_lost(edit, done, tmp_path, request):
    if edit.get("optim_wrapper") is SCALED:
        request.getfixturevalue("loss_scaler_on_cpu")
    whole = tmp_path / "whole"
    resumed = tmp_path / "resumed"
    train(whole, edit)
    log = train(resumed, edit, whole / f"iter_{done}.pth")
    assert_same_state(whole / "iter_8.pth", resumed / "iter_8.pth")
    assert "gradient of some iterations is lost" not in log
