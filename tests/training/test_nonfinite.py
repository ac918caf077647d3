"""NonFiniteHook names the source of a non-finite value, and protects the weights."""

import copy
import re
import sys

import pytest
import torch
from helpers.demo_runs import DEMO, SCORES, cfg_options
from helpers.devices import allow_mixed_precision, on_each_device
from helpers.processes import run_tool
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import nn

from xcit_mm import NonFiniteHook, XCiT

TINY = dict(embed_dim=32, depth=2, num_heads=4, eta=1.0)
BAD = 3  # the iteration with the bad batch
SEG, DET = SCORES


class Probe(BaseModel):
    """A backbone whose loss depends on the kind of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = XCiT(TINY, out_indices=(0, 1), norm_cfg=dict(type="BN"), drop_path_rate=0.1)
        self.head = nn.Conv2d(32, 1, 1)

    def forward(self, inputs, kind, data_samples=None, mode="loss"):
        x = self.head(self.backbone(inputs)[1])
        if mode == "tensor":
            return x
        if kind in ("matching", "bug") and (kind == "bug" or not x.isfinite().all()):
            raise ValueError("matrix contains invalid numeric entries")
        loss = x.square().mean() * (1e3 if kind == "large" else 1)
        if kind == "loss":  # with finite gradients
            loss = loss + 2 * torch.tensor(2e38)
        if kind == "gradient":  # the root's derivative at 0 is infinite
            loss = (loss * 0).sqrt()
        return dict(loss_root=loss, accuracy=torch.tensor(float("nan")))


def batches(kind: str) -> list[dict]:
    torch.manual_seed(1)
    images = [torch.rand(2, 3, 64, 64) for _ in range(6)]
    if kind == "input":
        images[BAD][0, 0, 0, 0] = float("nan")
    elif kind in ("weights", "matching"):
        images[BAD] *= 1e38
    elif kind == "statistics":  # a fill value: only the variance overflows
        images[BAD][0, 0, 0, 0] = 1e30
    samples = [
        [BaseDataElement(metainfo=dict(img_path=f"{n}{side}.jpg")) for side in "ab"]
        for n in range(6)
    ]
    return [
        dict(inputs=image, kind=kind if number == BAD else "good", data_samples=samples[number])
        for number, image in enumerate(images)
    ]


def train(
    tmp_path, kind: str, optim_wrapper: dict | None = None, max_iters: int = 6, **hook
) -> Runner:
    torch.manual_seed(0)
    optim_wrapper = optim_wrapper or dict(
        optimizer=dict(type="AdamW", lr=1e-3), clip_grad=dict(max_norm=1.0)
    )
    runner = Runner(
        Probe(),
        work_dir=str(tmp_path),
        train_dataloader=torch.utils.data.DataLoader(
            batches(kind), collate_fn=lambda batch: batch[0]
        ),
        optim_wrapper=optim_wrapper,
        train_cfg=dict(type="IterBasedTrainLoop", max_iters=max_iters),
        custom_hooks=[dict(type="NonFiniteHook", **hook)],
        experiment_name=f"{tmp_path.name}{kind}{len(list(tmp_path.iterdir()))}",
    )
    runner.states = []

    def remember(optimizer, *_):
        runner.states.append({k: v.clone() for k, v in runner.model.named_parameters()})

    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    runner.optim_wrapper.optimizer.register_step_post_hook(remember)
    return runner


def hook_of(runner: Runner) -> NonFiniteHook:
    return next(hook for hook in runner._hooks if isinstance(hook, NonFiniteHook))


CASES = dict(
    input="the input is the first that is not finite at 3a.jpg, 3b.jpg",
    weights=r"the output of backbone\.patch_embed\.proj\.0\.\S+ \(\w+\) is the first that is not finite at 3a.jpg",
    loss="loss or gradients are not finite, every output of a module is",
    gradient=r"the gradient of head\.(weight|bias) is the first that is not finite at 3a.jpg, 3b.jpg",
    statistics=r"the buffer backbone\.patch_embed\.proj\.0\.1\.running_var is not finite",
)


@pytest.mark.parametrize("kind", CASES)
def test_stop_names_the_module_and_the_images_and_keeps_the_weights(kind, tmp_path):
    runner = train(tmp_path, kind)
    with pytest.raises(FloatingPointError, match=rf"^iteration {BAD}: .*({CASES[kind]})"):
        runner.train()
    torch.testing.assert_close(
        dict(runner.model.named_parameters()), runner.states[-1], rtol=0, atol=0
    )
    assert len(runner.states) == BAD


def test_skip_leaves_out_the_step_and_continues(tmp_path, capfd):
    runner = train(tmp_path, "gradient", action="skip")
    runner.train()
    assert all(value.isfinite().all() for value in runner.model.state_dict().values())
    for name in runner.states[0]:
        assert torch.equal(runner.states[BAD - 1][name], runner.states[BAD][name])
    assert any(
        not torch.equal(runner.states[BAD][name], runner.states[BAD + 1][name])
        for name in runner.states[0]
    )
    assert "skipped (1 of at most 10 in a row)" in capfd.readouterr().out
    assert hook_of(runner).skips == 0  # later steps are good


@pytest.mark.parametrize("kind", ["input", "weights", "statistics"])
def test_batch_that_broke_the_statistics_is_not_skipped(kind, tmp_path):
    runner = train(tmp_path, kind, action="skip")
    with pytest.raises(
        FloatingPointError, match=rf"^iteration {BAD}: .*the buffer backbone\.\S+ is not finite"
    ):
        runner.train()


def test_max_skips_in_a_row_stops_training(tmp_path):
    runner = train(tmp_path, "gradient", action="skip", max_skips=0)
    with pytest.raises(FloatingPointError):
        runner.train()
    with pytest.raises(ValueError, match="action='ignore': choose 'stop' or 'skip'"):
        NonFiniteHook("ignore")


def test_error_of_the_forward_pass_is_explained_if_a_value_is_not_finite(tmp_path, capfd):
    for kind, explained in (("matching", True), ("bug", False)):
        with pytest.raises(ValueError, match=r"^matrix contains invalid numeric entries$"):
            train(tmp_path, kind).train()
        found = capfd.readouterr().out
        assert (
            "the output of backbone.patch_embed.proj.0." in found and "3a.jpg" in found
        ) == explained


def test_gradient_accumulation_names_the_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "BAD", 2)  # the first of two that make a step
    wrapper = dict(optimizer=dict(type="AdamW", lr=1e-3), accumulative_counts=2)
    with pytest.raises(
        FloatingPointError, match=r"iteration 2: the input is the first .* at 2a.jpg"
    ):
        train(tmp_path, "input", wrapper).train()


def test_finite_training_is_bit_identical(tmp_path):
    with_hook, without = train(tmp_path, "good"), train(tmp_path, "good")
    without._hooks = [hook for hook in without._hooks if not isinstance(hook, NonFiniteHook)]
    for runner in (with_hook, without):
        torch.manual_seed(0)
        runner.train()
    torch.testing.assert_close(with_hook.states, without.states, rtol=0, atol=0)


@pytest.fixture
def scaled(device, monkeypatch):
    """An optim_wrapper config for mixed precision, which mmengine has for GPUs only, with a loss
    scaler.
    """
    allow_mixed_precision(device, monkeypatch)

    def config(scale: float, fused: bool, clip: bool, dtype: str = "bfloat16") -> dict:
        optimizer = dict(type="AdamW", lr=1e-3, fused=fused)
        clip_grad = dict(max_norm=1.0) if clip else None
        scaler = dict(loss_scale=dict(init_scale=scale), dtype=dtype)
        return dict(type="AmpOptimWrapper", optimizer=optimizer, clip_grad=clip_grad, **scaler)

    return config


@on_each_device
@pytest.mark.parametrize("fused, clip", [(False, True), (True, False)])
class TestLossScaling:
    def test_overflow_is_left_to_the_scaler(self, fused, clip, device, scaled, tmp_path):
        runner = train(tmp_path, "large", scaled(2.0**127, fused, clip))
        runner.train()
        assert next(runner.model.parameters()).device.type == device
        assert runner.optim_wrapper.loss_scaler.get_scale() == 2.0**126  # it has overflowed once
        assert all(value.isfinite().all() for value in runner.model.state_dict().values())

    def test_small_scale_without_overflow_is_not_reported(
        self, fused, clip, device, scaled, tmp_path
    ):
        runner = train(tmp_path, "good", dict(scaled(0.5, fused, clip), accumulative_counts=2))
        runner.train()
        assert any(
            not torch.equal(runner.states[-1][name], value)
            for name, value in runner.states[0].items()
        )
        assert all(value.isfinite().all() for value in runner.model.state_dict().values())

    @pytest.mark.parametrize("kind", ["input", "gradient"])
    def test_nan_at_scale_1_stops_training(self, kind, fused, clip, device, scaled, tmp_path):
        runner = train(tmp_path, kind, scaled(1.0, fused, clip))
        with pytest.raises(FloatingPointError, match=rf"iteration {BAD}: "):
            runner.train()
        assert all(value.isfinite().all() for value in runner.model.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"])
@pytest.mark.parametrize("fused", [False, True])
def test_float16_training_passes_overflows_until_the_scale_fits(fused, device, scaled, tmp_path):
    """mmengine computes in float16 on GPUs only."""
    runner = train(tmp_path, "good", scaled(2.0**40, fused, True, "float16"), max_iters=60)
    runner.train()
    assert runner.optim_wrapper.loss_scaler.get_scale() < 2.0**40
    assert any(
        not torch.equal(runner.states[-1][name], value) for name, value in runner.states[0].items()
    )
    assert all(value.isfinite().all() for value in runner.model.state_dict().values())


@pytest.mark.parametrize("config", [SEG, pytest.param(DET, marks=pytest.mark.slow)])
def test_stopped_run_names_the_module_and_the_images_in_one_line(config, shapes, tmp_path):
    options = [
        *cfg_options(config, shapes, 4),
        "optim_wrapper.optimizer.lr=1e30",
        "param_scheduler=None",
    ]
    run = run_tool(
        "train", DEMO / f"{config}.py", "--work-dir", tmp_path / "work", *options, cwd=tmp_path
    )
    assert run.returncode == 1
    line = run.stderr.splitlines()[-1]
    assert re.match(
        r"FloatingPointError: iteration 1: the output of [a-z]\S+ \(\w+\) is the first .* at \S+\.jpg",
        line,
    )


def test_copy_of_the_model_during_training_is_not_inspected(tmp_path):
    runner, copies = train(tmp_path, "good"), []
    runner.optim_wrapper.optimizer.register_step_post_hook(
        lambda *_: copies.append(copy.deepcopy(runner.model))
    )
    runner.train()
    wrapper = OptimWrapper(torch.optim.SGD(copies[0].parameters(), lr=1e-3))
    assert copies[0].train_step(batches("input")[BAD], wrapper)["loss"].isnan()
