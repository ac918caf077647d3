"""A longer config counts when a run resumes: rates are those of a run that had it from the start.
Other edits of its schedule are refused.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.demo_runs import assert_same_state
from helpers.weight_files import MINI
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, LOOPS, MODELS
from mmengine.runner import IterBasedTrainLoop, Runner

from xcit_mm.models import Trunk
from xcit_mm.training.schedule import CannotResume


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


class Options(Hook):
    """Collects options of all groups of parameters by the iteration and its number in the loop."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], list[tuple]] = {}

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        groups = runner.optim_wrapper.param_groups
        self.seen[runner.iter, batch_idx] = [
            (group["lr"], group["weight_decay"], *group["betas"]) for group in groups
        ]


LENGTH = 4  # batches of an epoch
WARM_UP = dict(type="LinearLR", start_factor=0.01, by_epoch=False, begin=0, end=3)


def config(by_epoch: bool, layer_decay: bool = False) -> dict[str, Any]:
    """A training of 8 iterations, or of 2 epochs."""
    optim_wrapper: dict[str, Any] = dict(optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.05))
    if layer_decay:
        optim_wrapper["constructor"] = "LayerDecayOptimWrapperConstructor"
        custom_keys = {"norm": dict(decay_mult=0.0)}
        optim_wrapper["paramwise_cfg"] = dict(layer_decay_rate=0.8, custom_keys=custom_keys)
    if by_epoch:
        schedule = [WARM_UP, dict(type="MultiStepLR", by_epoch=True, milestones=[1])]
        length = dict(type="EpochBasedTrainLoop", max_epochs=2)
    else:
        schedule = [WARM_UP, dict(type="CosineAnnealingLR", by_epoch=False, begin=3, end=8)]
        length = dict(type="IterBasedTrainLoop", max_iters=8)
    return dict(train_cfg=length, optim_wrapper=optim_wrapper, param_scheduler=schedule)


def edited(cfg: dict[str, Any], edit: dict[str, Any]) -> dict[str, Any]:
    """Return a config with other values by dotted key."""
    changed = Config(cfg)
    changed.merge_from_dict(edit)
    return changed.to_dict()


def train(
    work_dir: Path,
    cfg: dict[str, Any],
    checkpoint: Path | None = None,
    interval: int = -1,
    batch_size: int = 2,
) -> dict[tuple[int, int], list[tuple]]:
    """Train, and return the options of all groups by the iteration and its number in the loop."""
    hook = Options()
    sampler = "DefaultSampler" if "max_epochs" in cfg["train_cfg"] else "InfiniteSampler"
    loader = dict(
        dataset=dict(type="Noise"),
        batch_size=batch_size,
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
    runner = Runner.from_cfg(run | cfg)
    runner.register_hook(hook)
    runner.train()
    return hook.seen


ITERATIONS = dict(by_epoch=False)
EPOCHS = dict(by_epoch=True)
LAYERS = dict(by_epoch=False, layer_decay=True)
LONGER = {"train_cfg.max_iters": 12, "param_scheduler.1.end": 12}
RATE = {"optim_wrapper.optimizer.lr": 5e-4}
MORE_EPOCHS = {"train_cfg.max_epochs": 3, "param_scheduler.1.milestones": [2]}
POLY = dict(type="PolyLR", by_epoch=False, eta_min=1e-5, end=8)
OTHER_ADAM = {"optim_wrapper.optimizer": dict(weight_decay=0.01, betas=(0.8, 0.9))}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Callable[..., Path]:
    """Return the folder of a run with a config, trained once."""
    folder = tmp_path_factory.mktemp("runs")

    def run(**options: bool) -> Path:
        work_dir = folder / "-".join(f"{key}={value}" for key, value in options.items())
        if not work_dir.exists():
            train(work_dir, config(**options), interval=1)
        return work_dir

    return run


@pytest.mark.parametrize(
    "options, edit, done",
    [
        (ITERATIONS, LONGER, 5),
        (ITERATIONS, LONGER, 8),
        (LAYERS, LONGER, 5),
        # Before, at and after the end of an epoch.
        *(
            (dict(by_epoch=True, layer_decay=layers), MORE_EPOCHS, done)
            for layers in (False, True)
            for done in (3, 4, 5)
        ),
    ],
)
def test_every_later_rate_is_that_of_a_run_with_the_longer_config(
    options, edit, done, runs, tmp_path
):
    cfg = edited(config(**options), edit)
    expected = train(tmp_path / "expected", cfg)
    rates = train(tmp_path / "resumed", cfg, runs(**options) / f"iter_{done}.pth")
    assert list(rates) == list(expected)[done:]  # also the numbers of batches in their epochs
    for iteration, groups in rates.items():
        for group, expected_group in zip(groups, expected[iteration], strict=True):
            assert group == pytest.approx(expected_group, rel=1e-9, abs=1e-12)


def log_of(work_dir: Path) -> str:
    return next(work_dir.glob("2*/*.log")).read_text()


def test_every_edit_is_named_in_a_line(runs, tmp_path):
    cfg = edited(config(**ITERATIONS), LONGER) | dict(model=dict(type="SmallTrunk", classes=2))
    train(tmp_path, cfg, runs(**ITERATIONS) / "iter_5.pth")
    log = log_of(tmp_path)
    for line in (
        "the config was edited: model.classes None -> 2",
        "the config was edited: train_cfg.max_iters 8 -> 12",
        "the config was edited: param_scheduler.1.end 8 -> 12",
        "the rate at iteration 6 is 0.000883, not 0.0006545",
    ):
        assert f" {line}\n" in log


def test_an_unchanged_config_leaves_rates_that_a_hook_has_set(runs, tmp_path):
    checkpoint = torch.load(runs(**ITERATIONS) / "iter_5.pth", weights_only=False)
    for group in checkpoint["optimizer"]["param_groups"]:
        group["lr"] = 7e-4
    torch.save(checkpoint, tmp_path / "iter_5.pth")
    seen = train(tmp_path / "resumed", config(**ITERATIONS), tmp_path / "iter_5.pth")
    assert seen[5, 5][0][0] == 7e-4
    assert "edited" not in log_of(tmp_path / "resumed")


@pytest.mark.parametrize(
    "options, loop", [(ITERATIONS, "NumberedIterLoop"), (EPOCHS, "NumberedEpochLoop")]
)
def test_a_config_may_name_the_loop_that_numbers_batches(options, loop, runs, tmp_path):
    train(tmp_path, edited(config(**options), {"train_cfg.type": loop}), interval=8)
    assert_same_state(runs(**options) / "iter_8.pth", tmp_path / "iter_8.pth")


@LOOPS.register_module()
class OwnLoop(IterBasedTrainLoop):
    """A loop of a user."""


def test_another_loop_trains_and_says_that_its_batches_have_no_numbers(tmp_path):
    train(tmp_path, edited(config(**ITERATIONS), {"train_cfg.type": "OwnLoop"}))
    assert "a resumed run starts with other batches" in log_of(tmp_path)


SHORTER = {"train_cfg.max_iters": 7, "param_scheduler.1.end": 7}
PARAMWISE = {"optim_wrapper.paramwise_cfg": dict(norm_decay_mult=0.0)}


@pytest.mark.parametrize(
    "edit, change",
    [
        (SHORTER, "train_cfg.max_iters 8 -> 7"),
        ({"param_scheduler.0.end": 6}, "param_scheduler.0.end 3 -> 6"),
        (LONGER | {"param_scheduler.0.end": 6}, "param_scheduler.0.end 3 -> 6"),
        ({"train_cfg.max_iters": 12, "param_scheduler.1.end": 6}, "param_scheduler.1.end 8 -> 6"),
        ({"param_scheduler": [POLY]}, "param_scheduler "),
        ({"param_scheduler": None}, "param_scheduler "),
        (LONGER | RATE, "optim_wrapper.optimizer.lr 0.001 -> 0.0005"),
        (OTHER_ADAM, "optim_wrapper.optimizer"),
        (PARAMWISE, "optim_wrapper.paramw"),
    ],
)
def test_another_edit_of_the_schedule_is_refused_in_one_line(edit, change, runs, tmp_path):
    with pytest.raises(CannotResume) as error:
        train(tmp_path, edited(config(**ITERATIONS), edit), runs(**ITERATIONS) / "iter_5.pth")
    message = str(error.value)
    assert message.startswith(f"the config was edited: {change}") and "\n" not in message
    assert "start anew from the checkpoint by load_from, without --resume" in message
