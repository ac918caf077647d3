"""A run that resumes has the schedule of its checkpoint: other edits are allowed."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.demo_runs import assert_same_state
from helpers.weight_files import MINI
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.optim.optimizer import amp_optimizer_wrapper
from mmengine.registry import DATASETS, LOOPS, MODELS
from mmengine.runner import IterBasedTrainLoop, Runner

from xcit_mm.models import Trunk
from xcit_mm.training.schedule import check_schedule


@MODELS.register_module()
class SmallTrunk(BaseModel):
    """A trunk and a head that are quick to train."""

    def __init__(self, classes: int = 1) -> None:
        super().__init__()
        self.backbone = Trunk(MINI, out_indices=(5,))
        self.head = torch.nn.Linear(16, 1)  # whatever the number of classes

    def forward(self, inputs, mode="loss"):
        (features,) = self.backbone(inputs)
        return dict(loss=self.head(features.mean((2, 3))).square().mean())


@DATASETS.register_module()
class Noise(torch.utils.data.Dataset):
    """Images of two epochs' batches."""

    def __len__(self) -> int:
        return 2 * LENGTH

    def __getitem__(self, index: int) -> dict:
        return dict(inputs=torch.rand(3, 32, 32))


LENGTH = 4  # batches of an epoch
WARM_UP = dict(type="LinearLR", start_factor=0.01, by_epoch=False, begin=0, end=3)


def config(by_epoch: bool = False) -> dict[str, Any]:
    """A training of 8 iterations, or of 2 epochs."""
    if by_epoch:
        schedule = [WARM_UP, dict(type="MultiStepLR", by_epoch=True, milestones=[1])]
        length = dict(type="EpochBasedTrainLoop", max_epochs=2)
    else:
        schedule = [WARM_UP, dict(type="CosineAnnealingLR", by_epoch=False, begin=3, end=8)]
        length = dict(type="IterBasedTrainLoop", max_iters=8)
    optimizer = dict(type="AdamW", lr=1e-3, weight_decay=0.05)
    return dict(
        train_cfg=length,
        optim_wrapper=dict(type="OptimWrapper", optimizer=optimizer),
        param_scheduler=schedule,
    )


def edited(cfg: dict[str, Any], edit: dict[str, Any]) -> dict[str, Any]:
    """Return a config with other values by dotted key."""
    changed = Config(cfg)
    changed.merge_from_dict(edit)
    return changed.to_dict()


def train(
    work_dir: Path, cfg: dict[str, Any], checkpoint: Path | None = None, interval: int = -1
) -> None:
    sampler = "DefaultSampler" if "max_epochs" in cfg["train_cfg"] else "InfiniteSampler"
    loader = dict(
        dataset=dict(type="Noise"),
        batch_size=2,
        sampler=dict(type=sampler),
        collate_fn=dict(type="default_collate"),
    )
    save = dict(type="ResumableCheckpointHook", by_epoch=False, interval=interval, save_last=False)
    run = dict(
        model=dict(type="SmallTrunk"),
        work_dir=str(work_dir),
        train_dataloader=loader,
        default_hooks=dict(checkpoint=save, logger=dict(type="LoggerHook", interval=1)),
        randomness=dict(seed=0),
        load_from=checkpoint and str(checkpoint),
        resume=checkpoint is not None,
        experiment_name=f"{work_dir}",
    )
    Runner.from_cfg(run | cfg).train()


LONGER = {"train_cfg.max_iters": 12, "param_scheduler.1.end": 12}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder of an undisturbed run."""
    work_dir = tmp_path_factory.mktemp("whole")
    train(work_dir, config(), interval=1)
    return work_dir


def log_of(work_dir: Path) -> str:
    return next(work_dir.glob("2*/*.log")).read_text()


@pytest.mark.parametrize(
    "edit, difference",
    [
        (LONGER, "param_scheduler.1.end is 12 in the config, 8 in the checkpoint"),
        ({"train_cfg.max_iters": 7}, "train_cfg.max_iters is 7 "),
        ({"param_scheduler": None}, "param_scheduler.0.begin is None in the config, 0 "),
        ({"optim_wrapper.optimizer.lr": 5e-4}, "optim_wrapper.optimizer.lr is 0.0005 "),
        (
            {"optim_wrapper.paramwise_cfg": dict(norm_decay_mult=0.0)},
            "optim_wrapper.paramwise_cfg.norm_decay_mult is 0.0 in the config, None ",
        ),
        ({"optim_wrapper.accumulative_counts": 2}, "optim_wrapper.accumulative_counts is 2 "),
        ({"auto_scale_lr": dict(base_batch_size=2)}, "auto_scale_lr.base_batch_size is 2 "),
    ],
    ids=str,
)
def test_another_schedule_is_refused_in_one_line(edit, difference):
    checkpoint = dict(meta=dict(cfg=Config(config()).pretty_text))
    with pytest.raises(ValueError) as error:
        check_schedule(Config(edited(config(), edit)), checkpoint)
    message = str(error.value)
    assert message.startswith(difference) and "\n" not in message
    assert "start another run by load_from, see docs/recipes.md" in message


def test_the_scripts_of_the_libraries_refuse_another_schedule_too(whole, tmp_path):
    with pytest.raises(ValueError, match="a run that resumes keeps its schedule"):
        train(tmp_path, edited(config(), LONGER), whole / "iter_5.pth")


def test_a_run_resumes_with_other_validations_precision_and_model(whole, tmp_path):
    edit = {"train_cfg.val_interval": 5, "optim_wrapper.type": "CPUAmpOptimWrapper"}
    cfg = edited(config(), edit) | dict(model=dict(type="SmallTrunk", classes=2))
    train(tmp_path, cfg, whole / "iter_5.pth", interval=8)
    assert (tmp_path / "iter_8.pth").is_file()


def test_a_config_may_name_the_loop_that_numbers_batches(whole, tmp_path):
    train(tmp_path, edited(config(), {"train_cfg.type": "NumberedIterLoop"}), interval=8)
    assert_same_state(whole / "iter_8.pth", tmp_path / "iter_8.pth")


@LOOPS.register_module()
class OwnLoop(IterBasedTrainLoop):
    """A loop of a user."""


def test_another_loop_trains_and_says_that_its_batches_have_no_numbers(tmp_path):
    train(tmp_path, edited(config(), {"train_cfg.type": "OwnLoop"}))
    assert "a resumed run starts with other batches" in log_of(tmp_path)


def assert_nothing_is_lost(cfg: dict[str, Any], done: int, folder: Path) -> None:
    train(folder / "whole", cfg, interval=1)
    train(folder / "resumed", cfg, folder / "whole" / f"iter_{done}.pth", interval=8)
    assert_same_state(folder / "whole" / "iter_8.pth", folder / "resumed" / "iter_8.pth")
    assert "gradient of some iterations is lost" not in log_of(folder / "resumed")


@pytest.mark.parametrize("by_epoch, done", [(False, 2), (True, 4), (True, 7)])
def test_gradients_that_accumulate_are_not_lost(by_epoch, done, tmp_path):
    """Neither within an epoch of four iterations nor at its end."""
    cfg = edited(config(by_epoch), {"optim_wrapper.accumulative_counts": 3})
    assert_nothing_is_lost(cfg, done, tmp_path)


def test_gradients_of_a_loss_scaler_are_not_lost(tmp_path, monkeypatch):
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("torch 2.3 or newer")
    scaler = functools.partial(torch.amp.GradScaler, "cpu")  # mmengine's is for GPUs only
    monkeypatch.setattr(amp_optimizer_wrapper, "is_cuda_available", lambda: True)
    monkeypatch.setattr(amp_optimizer_wrapper, "GradScaler", scaler)
    wrapper = dict(type="AmpOptimWrapper", dtype="bfloat16", accumulative_counts=3)
    wrapper["loss_scale"] = dict(init_scale=2.0**10, growth_interval=1)
    cfg = edited(config(), {f"optim_wrapper.{key}": value for key, value in wrapper.items()})
    assert_nothing_is_lost(cfg, 5, tmp_path)
