"""A run that resumes has the schedule of its checkpoint: other edits are allowed."""

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.demo_runs import assert_same_state
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.optim.optimizer import amp_optimizer_wrapper
from mmengine.registry import DATASETS, LOOPS, MODELS
from mmengine.runner import IterBasedTrainLoop, Runner

from xcit_mm.training.schedule import check_schedule


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
LONGER = {"train_cfg.max_iters": 12, "param_scheduler.1.end": 12}


def edited(edit: dict[str, Any]) -> Config:
    """Return the config with other values by dotted key."""
    cfg = Config(CONFIG)
    cfg.merge_from_dict(copy.deepcopy(edit))  # it takes _delete_ out
    return cfg


def train(work_dir: Path, edit: dict[str, Any], checkpoint: Path | None = None) -> str:
    """Train, or resume from a checkpoint, and return the log."""
    cfg = edited(edit)
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


NORMS = {"optim_wrapper.paramwise_cfg": dict(norm_decay_mult=0.0)}


@pytest.mark.parametrize(
    "edit, difference",
    [
        (LONGER, "param_scheduler.1.end is 12 in the config, 8 in the checkpoint"),
        ({"train_cfg.max_iters": 7}, "train_cfg.max_iters is 7 "),
        ({"param_scheduler": None}, "param_scheduler.0.begin is None in the config, 0 "),
        ({"optim_wrapper.optimizer.lr": 5e-4}, "optim_wrapper.optimizer.lr is 0.0005 "),
        (NORMS, "optim_wrapper.paramwise_cfg.norm_decay_mult is 0.0 in the config, None "),
        ({"optim_wrapper.accumulative_counts": 2}, "optim_wrapper.accumulative_counts is 2 "),
        ({"auto_scale_lr": dict(base_batch_size=2)}, "auto_scale_lr.base_batch_size is 2 "),
    ],
    ids=str,
)
def test_another_schedule_is_refused_in_one_line(edit, difference):
    checkpoint = dict(meta=dict(cfg=Config(CONFIG).pretty_text))
    with pytest.raises(ValueError) as error:
        check_schedule(edited(edit), checkpoint)
    message = str(error.value)
    assert message.startswith(difference) and "\n" not in message
    assert "start another run by load_from, see docs/recipes.md" in message


def test_the_scripts_of_the_libraries_refuse_another_schedule_too(whole, tmp_path):
    with pytest.raises(ValueError, match="a run that resumes keeps its schedule"):
        train(tmp_path, LONGER, whole / "iter_5.pth")


def test_a_run_resumes_with_other_validations_precision_and_model(whole, tmp_path):
    edit = {"train_cfg.val_interval": 5, "optim_wrapper.type": "CPUAmpOptimWrapper"}
    train(tmp_path, {**edit, "model.classes": 2}, whole / "iter_5.pth")
    assert (tmp_path / "iter_8.pth").is_file()


def test_a_config_may_name_the_loop_that_numbers_batches(whole, tmp_path):
    train(tmp_path, {"train_cfg.type": "NumberedIterLoop"})
    assert_same_state(whole / "iter_8.pth", tmp_path / "iter_8.pth")


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
        ({**EPOCHS, "optim_wrapper.accumulative_counts": 3}, 7),
        ({"optim_wrapper": SCALED}, 5),
    ],
    ids=["iterations", "epoch_end", "epochs", "loss_scaler"],
)
def test_gradients_that_accumulate_are_not_lost(edit, done, tmp_path, monkeypatch):
    if edit.get("optim_wrapper") is SCALED:
        if not hasattr(torch.amp, "GradScaler"):
            pytest.skip("torch 2.3 or newer")
        scaler = functools.partial(torch.amp.GradScaler, "cpu")  # mmengine's is for GPUs only
        monkeypatch.setattr(amp_optimizer_wrapper, "is_cuda_available", lambda: True)
        monkeypatch.setattr(amp_optimizer_wrapper, "GradScaler", scaler)
    whole = tmp_path / "whole"
    resumed = tmp_path / "resumed"
    train(whole, edit)
    log = train(resumed, edit, whole / f"iter_{done}.pth")
    assert_same_state(whole / "iter_8.pth", resumed / "iter_8.pth")
    assert "gradient of some iterations is lost" not in log
