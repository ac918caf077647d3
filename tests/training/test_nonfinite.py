"""A loss or gradient that is not finite: named, reproduced, and kept from the weights."""

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from mmengine.runner import Runner
from torch import nn

from xcit_mm import NonFiniteHook, XCiT
from xcit_mm.training.nonfinite import replay

TINY = dict(embed_dim=32, depth=2, num_heads=4, eta=1.0)
BAD = 3  # the iteration with the bad batch


@MODELS.register_module()
class Probe(BaseModel):
    """A backbone with a loss that a batch can spoil in one way or another."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = XCiT(TINY, out_indices=(0, 1), norm_cfg=dict(type="BN"), drop_path_rate=0.1)
        self.head = nn.Conv2d(32, 1, 1)

    def forward(self, inputs, kind, mode="loss"):
        x = self.head(self.backbone(inputs)[1])
        if kind == "gradient":  # the root's derivative at 0 is infinite
            return dict(loss_root=(x.square().mean() * 0).sqrt())
        return dict(loss=x.square().mean(), accuracy=torch.tensor(float("nan")))


def batches(kind: str) -> list[dict]:
    torch.manual_seed(1)
    images = [torch.rand(2, 3, 64, 64) for _ in range(6)]
    if kind == "input":
        images[BAD][0, 0, 0, 0] = float("nan")
    elif kind == "overflow":
        images[BAD] *= 1e38
    return [dict(inputs=image, kind=kind if number == BAD else "good") for number, image in enumerate(images)]


def train(tmp_path, kind: str, **hook) -> Runner:
    torch.manual_seed(0)
    runner = Runner(
        Probe(),
        work_dir=str(tmp_path),
        cfg=dict(model=dict(type="Probe")),
        train_dataloader=torch.utils.data.DataLoader(batches(kind), collate_fn=lambda batch: batch[0]),
        optim_wrapper=dict(optimizer=dict(type="AdamW", lr=1e-3), clip_grad=dict(max_norm=1.0)),
        train_cfg=dict(type="IterBasedTrainLoop", max_iters=6),
        custom_hooks=[dict(type="NonFiniteHook", **hook)],
        experiment_name=f"{kind}{len(list(tmp_path.iterdir()))}",
    )
    runner.states = []

    def remember(optimizer, *_):
        runner.states.append({k: v.clone() for k, v in runner.model.state_dict().items()})

    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    runner.optim_wrapper.optimizer.register_step_post_hook(remember)
    return runner


CASES = dict(
    input="the input holds values that are not finite",
    overflow=r"the loss is (nan|inf), first in the output of backbone\.patch_embed\.proj\.0\.",
    gradient=r"the loss is 0, but gradients are not finite, first that of head\.(weight|bias)",
)


@pytest.mark.parametrize("kind", CASES)
def test_training_stops_names_the_module_and_leaves_the_model_as_it_was(kind, tmp_path):
    runner = train(tmp_path, kind)
    with pytest.raises(FloatingPointError, match=rf"iteration {BAD}: {CASES[kind]}") as error:
        runner.train()
    torch.testing.assert_close(dict(runner.model.state_dict()), runner.states[-1], rtol=0, atol=0)
    assert len(runner.states) == BAD
    snapshot = tmp_path / f"non_finite_iter_{BAD}.pth"
    assert f"python tools/replay.py {snapshot} reproduces it" in str(error.value)
    assert str(error.value).startswith(replay(snapshot))


@pytest.mark.parametrize("kind", CASES)
def test_skipping_goes_on_without_the_batch(kind, tmp_path):
    runner = train(tmp_path, kind, action="skip")
    runner.train()
    assert len(runner.states) == 6
    parameters = dict(runner.model.named_parameters())
    for name in parameters:
        assert torch.equal(runner.states[BAD - 1][name], runner.states[BAD][name])
    assert any(not torch.equal(runner.states[BAD][name], runner.states[BAD + 1][name]) for name in parameters)
    assert all(value.isfinite().all() for value in runner.model.state_dict().values())


def test_skips_are_bounded(tmp_path):
    runner = train(tmp_path, "input", action="skip", max_skips=0)
    with pytest.raises(FloatingPointError, match="0 skipped before"):
        runner.train()
    with pytest.raises(ValueError, match="action='ignore': choose 'stop' or 'skip'"):
        NonFiniteHook("ignore")


def test_finite_training_is_not_changed(tmp_path):
    with_hook, without = train(tmp_path, "good"), train(tmp_path, "good")
    without._hooks = [hook for hook in without._hooks if not isinstance(hook, NonFiniteHook)]
    for runner in (with_hook, without):
        torch.manual_seed(0)
        runner.train()
    torch.testing.assert_close(with_hook.states, without.states, rtol=0, atol=0)


def test_no_snapshot_is_one_line(tool, tmp_path):
    run = tool("replay", tmp_path / "none.pth")
    assert run.stderr.strip() == f"FileNotFoundError: no snapshot at {tmp_path / 'none.pth'}: check the path"
