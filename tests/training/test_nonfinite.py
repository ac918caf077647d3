"""NonFiniteHook names the source of a non-finite value, and protects the weights."""

import itertools
import re
from pathlib import Path

import pytest
import torch
from helpers.demo_runs import DEMO, SCORES, cfg_options
from helpers.devices import allow_mixed_precision, on_each_device
from helpers.processes import run_tool
from mmengine.model import BaseModel
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.utils.data import DataLoader

from xcit_mm import NonFiniteHook, XCiT

TINY = dict(embed_dim=32, depth=2, num_heads=4, eta=1.0)
SEG, DET = SCORES
NUMBERS = itertools.count()  # of trainings, for mmengine's names


class Probe(BaseModel):
    """A backbone whose loss depends on the fault of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = XCiT(TINY, out_indices=(0, 1), norm_cfg=dict(type="BN"), drop_path_rate=0.1)
        self.head = nn.Conv2d(32, 1, 1)

    def forward(self, inputs, fault, data_samples=None, mode="loss"):
        x = self.head(self.backbone(inputs)[1])
        if fault == "bug" or (fault == "matching" and not x.isfinite().all()):
            raise ValueError("matrix contains invalid numeric entries")
        loss = x.square().mean()
        if fault == "large":
            loss = loss * 1e3
        if fault == "loss":  # with finite gradients
            loss = loss + 2 * torch.tensor(2e38)
        if fault == "gradient":  # the root's derivative at 0 is infinite
            loss = (loss * 0).sqrt()
        return dict(loss_root=loss, accuracy=torch.tensor(float("nan")))


def batches(fault: str, *bad: int) -> list[dict]:
    """Six batches, of which those of the numbers `bad` have the fault."""
    torch.manual_seed(1)
    images = [torch.rand(2, 3, 64, 64) for _ in range(6)]
    for number in bad:
        if fault == "input":
            images[number][0, 0, 0, 0] = float("nan")
        elif fault in ("weights", "matching"):
            images[number] *= 1e38
        elif fault == "statistics":  # a fill value: only the variance overflows
            images[number][0, 0, 0, 0] = 1e30
    return [
        dict(
            inputs=image,
            fault=fault if number in bad else "none",
            data_samples=[
                BaseDataElement(metainfo=dict(img_path=f"{number}{side}.jpg")) for side in "ab"
            ],
        )
        for number, image in enumerate(images)
    ]


class Training(Runner):
    """A training on such batches that remembers the parameters after each step."""

    def __init__(
        self,
        work_dir: Path,
        data: list[dict],
        optim_wrapper: dict | None = None,
        hooks: tuple = (dict(type="NonFiniteHook"),),
    ) -> None:
        torch.manual_seed(0)
        clipped = dict(optimizer=dict(type="AdamW", lr=1e-3), clip_grad=dict(max_norm=1.0))
        super().__init__(
            Probe(),
            work_dir=str(work_dir),
            train_dataloader=DataLoader(data, collate_fn=lambda batch: batch[0]),
            optim_wrapper=optim_wrapper or clipped,
            train_cfg=dict(type="IterBasedTrainLoop", max_iters=6),
            custom_hooks=[*hooks],
            experiment_name=f"{work_dir.name}{next(NUMBERS)}",
        )
        self.states: list[list[Tensor]] = []
        self.optim_wrapper = self.build_optim_wrapper(self.optim_wrapper)
        self.optim_wrapper.optimizer.register_step_post_hook(self.remember)

    def remember(self, *_: object) -> None:
        self.states.append([parameter.detach().clone() for parameter in self.model.parameters()])

    def has_moved(self, first: int, last: int) -> bool:
        """Return whether a parameter differs between the states after two steps."""
        return not all(map(torch.equal, self.states[first], self.states[last]))

    def is_finite(self) -> bool:
        return all(value.isfinite().all() for value in self.model.state_dict().values())


def skipping(max_skips: int) -> tuple:
    return (dict(type="NonFiniteHook", action="skip", max_skips=max_skips),)


MESSAGES = dict(
    input=r"the input .* at 3a\.jpg, 3b\.jpg",
    weights=r"output of backbone\.patch_embed\.proj\.0\.\S+ \(\w+\) .* at 3a\.jpg",
    loss="loss or gradients",
    gradient=r"gradient of head\.(weight|bias) .* at 3a\.jpg",
    statistics=r"buffer backbone\.patch_embed\.proj\.0\.1\.running_var",
)


@pytest.mark.parametrize("fault", MESSAGES)
def test_stop_names_the_module_and_the_images_and_keeps_the_weights(fault, tmp_path):
    runner = Training(tmp_path, batches(fault, 3))
    with pytest.raises(FloatingPointError, match=rf"^iteration 3: .*({MESSAGES[fault]})"):
        runner.train()
    assert all(map(torch.equal, runner.model.parameters(), runner.states[-1]))
    assert len(runner.states) == 3


def test_skip_leaves_out_the_step_and_continues(tmp_path, capfd):
    runner = Training(tmp_path, batches("gradient", 1, 3, 5), hooks=skipping(1))
    runner.train()
    assert runner.is_finite()
    moves = [runner.has_moved(step - 1, step) for step in range(1, 6)]
    assert moves == [False, True, False, True, False]
    assert "skipped (1 of at most 1 in a row)" in capfd.readouterr().out


def test_batch_that_broke_the_statistics_is_not_skipped(tmp_path):
    runner = Training(tmp_path, batches("input", 3), hooks=skipping(10))
    with pytest.raises(FloatingPointError, match=r"^iteration 3: .*buffer backbone\."):
        runner.train()


def test_more_than_max_skips_in_a_row_stop_training(tmp_path):
    runner = Training(tmp_path, batches("gradient", 2, 3), hooks=skipping(1))
    with pytest.raises(FloatingPointError, match=r"^iteration 3: "):
        runner.train()
    assert runner.is_finite()


def test_unknown_action_is_named():
    with pytest.raises(ValueError, match="action='ignore'"):
        NonFiniteHook("ignore")


@pytest.mark.parametrize("fault, explained", [("matching", True), ("bug", False)])
def test_error_of_the_forward_pass_is_explained_if_a_value_is_not_finite(
    fault, explained, tmp_path, capfd
):
    with pytest.raises(ValueError, match=r"^matrix contains invalid numeric entries$"):
        Training(tmp_path, batches(fault, 3)).train()
    explanation = r"the output of backbone\.patch_embed\.proj\.0\..* at 3a\.jpg"
    assert bool(re.search(explanation, capfd.readouterr().out)) == explained


def test_gradient_accumulation_names_the_batch(tmp_path):
    wrapper = dict(optimizer=dict(type="AdamW", lr=1e-3), accumulative_counts=2)
    runner = Training(tmp_path, batches("input", 2), wrapper)  # the first of two that make a step
    with pytest.raises(FloatingPointError, match=r"iteration 2: the input .* at 2a\.jpg"):
        runner.train()


def test_finite_training_is_bit_identical(tmp_path):
    with_hook = Training(tmp_path, batches("none"))
    without = Training(tmp_path, batches("none"), hooks=())
    for runner in (with_hook, without):
        torch.manual_seed(0)
        runner.train()
    torch.testing.assert_close(with_hook.states, without.states, rtol=0, atol=0)


@pytest.fixture
def scaled(device, monkeypatch):
    """An optim_wrapper config for mixed precision with a loss scaler."""
    allow_mixed_precision(device, monkeypatch)

    def config(scale: float, fused: bool, clip: bool) -> dict:
        return dict(
            type="AmpOptimWrapper",
            optimizer=dict(type="AdamW", lr=1e-3, fused=fused),
            clip_grad=dict(max_norm=1.0) if clip else None,
            loss_scale=dict(init_scale=scale),
            dtype="bfloat16",
        )

    return config


@on_each_device
@pytest.mark.parametrize("fused, clip", [(False, True), (True, False)])
class TestLossScaling:
    def test_overflow_is_left_to_the_scaler(self, fused, clip, device, scaled, tmp_path):
        runner = Training(tmp_path, batches("large", 3), scaled(2.0**127, fused, clip))
        runner.train()
        assert next(runner.model.parameters()).device.type == device
        assert runner.optim_wrapper.loss_scaler.get_scale() == 2.0**126  # it has overflowed once
        assert runner.is_finite()

    def test_small_scale_without_overflow_is_not_reported(
        self, fused, clip, device, scaled, tmp_path
    ):
        wrapper = dict(scaled(0.5, fused, clip), accumulative_counts=2)
        runner = Training(tmp_path, batches("none"), wrapper)
        runner.train()
        assert runner.has_moved(0, -1)
        assert runner.is_finite()

    @pytest.mark.parametrize("fault", ["input", "gradient"])
    def test_nan_at_scale_1_stops_training(self, fault, fused, clip, device, scaled, tmp_path):
        runner = Training(tmp_path, batches(fault, 3), scaled(1.0, fused, clip))
        with pytest.raises(FloatingPointError, match="iteration 3: "):
            runner.train()
        assert all(value.isfinite().all() for value in runner.model.parameters())


@pytest.mark.parametrize("config", [SEG, pytest.param(DET, marks=pytest.mark.slow)])
def test_stopped_run_names_the_module_and_the_images_in_one_line(config, shapes, tmp_path):
    options = cfg_options(config, shapes, 4)
    options += ["optim_wrapper.optimizer.lr=1e30", "param_scheduler=None"]
    arguments = (DEMO / f"{config}.py", "--work-dir", tmp_path / "work", *options)
    run = run_tool("train", *arguments, cwd=tmp_path)
    assert run.returncode == 1
    message = r"iteration 1: the output of [a-z]\S+ \(\w+\) .* at \S+\.jpg"
    assert re.match(f"FloatingPointError: {message}", run.stderr.splitlines()[-1])
