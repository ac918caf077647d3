"""NonFiniteHook stops all processes before a step with a non-finite value, and names its source."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.devices import on_each_device
from helpers.processes import in_two_processes
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader

from xcit_mm import NonFiniteHook, XCiT

TINY = dict(embed_dim=32, depth=2, num_heads=4, eta=1.0)
NUMBERS = itertools.count()  # of trainings, for mmengine's names


class Probe(BaseModel):
    """A backbone whose loss depends on the fault of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = XCiT(TINY, out_indices=(0, 1), norm_cfg=dict(type="BN"), drop_path_rate=0.1)
        self.head = nn.Conv2d(32, 1, 1)

    def forward(self, inputs, fault, data_samples=None, mode="loss"):
        x = self.head(self.backbone(inputs)[1])
        if torch.distributed.is_initialized():  # as SyncBN communicates
            torch.distributed.all_reduce(x.detach().clone())
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
        elif fault == "weights":
            images[number] *= 1e38
    return [
        dict(
            inputs=image,
            fault=fault if number in bad else "none",
            data_samples=[dict(img_path=f"{number}{side}.jpg") for side in "ab"],
        )
        for number, image in enumerate(images)
    ]


class Training(Runner):
    """A training on such batches."""

    def __init__(self, work_dir: Path, data: list[dict], optim_wrapper: dict | None) -> None:
        torch.manual_seed(0)
        clipped = dict(optimizer=dict(type="AdamW", lr=1e-3), clip_grad=dict(max_norm=1.0))
        super().__init__(
            Probe(),
            work_dir=str(work_dir),
            train_dataloader=DataLoader(data, collate_fn=lambda batch: batch[0]),
            optim_wrapper=optim_wrapper or clipped,
            train_cfg=dict(type="IterBasedTrainLoop", max_iters=6),
            custom_hooks=[dict(type="NonFiniteHook")],
            experiment_name=f"{work_dir.name}{next(NUMBERS)}",
        )

    def is_finite(self) -> bool:
        return all(value.isfinite().all() for value in self.model.parameters())


ACCUMULATED = dict(optimizer=dict(type="AdamW", lr=1e-3), accumulative_counts=3)
PROJECTION = r"the output of backbone\.patch_embed\.proj\.0\.\S+ \(\w+\) "


@pytest.mark.parametrize(
    "fault, wrapper, source",
    [
        ("input", ACCUMULATED, "the input "),
        ("weights", None, PROJECTION),
        ("loss", None, "loss or gradients are not finite, "),
        ("gradient", None, "loss or gradients are not finite, "),
    ],
)
def test_stop_names_the_module_and_the_images_and_keeps_the_weights_finite(
    fault, wrapper, source, tmp_path
):
    runner = Training(tmp_path, batches(fault, 3), wrapper)
    with pytest.raises(FloatingPointError, match=rf"^iteration 3: {source}.* 3a\.jpg, 3b\.jpg"):
        runner.train()
    assert runner.is_finite() and runner.iter == 3


@on_each_device
@pytest.mark.parametrize(
    "fault, fused, scale, end",
    [
        ("large", False, 2.0**127, 2.0**126),  # it overflows once
        ("gradient", True, 1.0, 0.5),
        ("input", False, 1.0, None),
    ],
)
def test_a_step_that_the_loss_scaler_skips_is_no_error_unless_the_loss_is_not_finite(
    fault, fused, scale, end, device, tmp_path, request
):
    if device == "cpu":
        request.getfixturevalue("loss_scaler_on_cpu")
    wrapper = dict(
        type="AmpOptimWrapper",
        optimizer=dict(type="AdamW", lr=1e-3, fused=fused),
        clip_grad=None if fused else dict(max_norm=1.0),
        loss_scale=dict(init_scale=scale),
        dtype="bfloat16",
    )
    runner = Training(tmp_path, batches(fault, 3), wrapper)
    if end is None:
        with pytest.raises(FloatingPointError, match="iteration 3: the input "):
            runner.train()
    else:
        runner.train()
        assert runner.optim_wrapper.loss_scaler.get_scale() == end
    assert next(runner.model.parameters()).device.type == device
    assert runner.is_finite()


def train_one_step(rank: int, device: str, folder: Path) -> None:
    """Train on a batch whose loss is not finite in process 1 alone, with finite gradients."""
    torch.set_num_threads(1)
    if device == "cuda":  # with gloo two processes share a GPU
        torch.cuda.set_device(rank % torch.cuda.device_count())
    store = f"file://{folder / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    model = MMDistributedDataParallel(Probe().train().to(device), find_unused_parameters=True)
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=1e-3))
    hook = NonFiniteHook()
    hook.before_train(SimpleNamespace(cfg={}, model=model, optim_wrapper=wrapper, iter=0))
    batch = batches("loss" if rank == 1 else "none", 0)[0]
    hook.before_train_iter(None, 0, batch)
    outputs = model.train_step(batch, wrapper)
    with pytest.raises(FloatingPointError, match=r"another process or iteration at 0a\.jpg"):
        hook.after_train_iter(None, 0, outputs=outputs)
    torch.distributed.destroy_process_group()


@on_each_device
def test_all_processes_stop_if_one_has_the_fault(device, tmp_path):
    start_method = "forkserver" if device == "cpu" else "spawn"
    in_two_processes(train_one_step, device, tmp_path, start_method=start_method)


def test_a_batch_of_several_branches_stops_too(tmp_path):
    data = batches("input", 0)
    data[0]["data_samples"] = dict(sup=[])
    with pytest.raises(FloatingPointError, match="at images without paths"):
        Training(tmp_path, data, None).train()
