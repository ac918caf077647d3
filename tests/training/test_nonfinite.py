"""NonFiniteHook stops all processes before a step with a non-finite value, and names its source."""

import functools
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.demo_runs import DEMO, SCORES, cfg_options
from helpers.devices import DEVICES, on_each_device
from helpers.processes import in_two_processes, run_tool
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from mmengine.optim.optimizer import amp_optimizer_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.utils.data import DataLoader

from xcit_mm import NonFiniteHook, XCiT

TINY = dict(embed_dim=32, depth=2, num_heads=4, eta=1.0)
SEG, _ = SCORES
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
    ) -> None:
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
        self.states: list[list[Tensor]] = []
        self.optim_wrapper = self.build_optim_wrapper(self.optim_wrapper)
        self.optim_wrapper.optimizer.register_step_post_hook(self.remember)

    def remember(self, *_: object) -> None:
        self.states.append([parameter.detach().clone() for parameter in self.model.parameters()])

    def is_finite(self) -> bool:
        return all(value.isfinite().all() for value in self.model.state_dict().values())


MESSAGES = dict(
    input=r"the input .* at 3a\.jpg, 3b\.jpg",
    weights=r"output of backbone\.patch_embed\.proj\.0\.\S+ \(\w+\) .* at 3a\.jpg",
    loss=r"loss or gradients are not finite, .* at 3a\.jpg",
    gradient=r"loss or gradients are not finite, .* at 3a\.jpg, 3b\.jpg",
)


@pytest.mark.parametrize("fault", MESSAGES)
def test_stop_names_the_module_and_the_images_and_keeps_the_weights(fault, tmp_path):
    runner = Training(tmp_path, batches(fault, 3))
    with pytest.raises(FloatingPointError, match=rf"^iteration 3: .*({MESSAGES[fault]})"):
        runner.train()
    assert all(map(torch.equal, runner.model.parameters(), runner.states[-1]))
    assert len(runner.states) == 3


def test_a_step_that_accumulates_gradients_is_checked_too(tmp_path):
    optimizer = dict(type="AdamW", lr=1e-3)
    wrapper = dict(optimizer=optimizer, accumulative_counts=3)
    with pytest.raises(FloatingPointError, match=r"^iteration 3: the input .* at 3a\.jpg"):
        Training(tmp_path, batches("input", 3), wrapper).train()


def test_an_option_of_a_former_version_is_named():
    with pytest.raises(TypeError, match=r"NonFiniteHook\(\) takes no arguments"):
        HOOKS.build(dict(type="NonFiniteHook", action="skip"))


@pytest.mark.parametrize("fault, explained", [("matching", True), ("bug", False)])
def test_error_of_the_forward_pass_is_explained_if_a_value_is_not_finite(
    fault, explained, tmp_path, capfd
):
    with pytest.raises(ValueError, match=r"^matrix contains invalid numeric entries$"):
        Training(tmp_path, batches(fault, 3)).train()
    explanation = r"the output of backbone\.patch_embed\.proj\.0\..* at 3a\.jpg"
    assert bool(re.search(explanation, capfd.readouterr().out)) == explained


@pytest.fixture
def scaled(device, monkeypatch):
    """An optim_wrapper config for mixed precision with a loss scaler."""
    if device == "cpu":  # mmengine has a loss scaler for GPUs only
        scaler = functools.partial(torch.amp.GradScaler, "cpu")
        monkeypatch.setattr(amp_optimizer_wrapper, "is_cuda_available", lambda: True)
        monkeypatch.setattr(amp_optimizer_wrapper, "GradScaler", scaler)

    def config(scale: float, fused: bool) -> dict:
        return dict(
            type="AmpOptimWrapper",
            optimizer=dict(type="AdamW", lr=1e-3, fused=fused),
            clip_grad=None if fused else dict(max_norm=1.0),
            loss_scale=dict(init_scale=scale),
            dtype="bfloat16",
        )

    return config


@on_each_device
@pytest.mark.parametrize("fused", [False, True])
class TestLossScaling:
    def test_overflow_is_left_to_the_scaler(self, fused, device, scaled, tmp_path):
        runner = Training(tmp_path, batches("large", 3), scaled(2.0**127, fused))
        runner.train()
        assert next(runner.model.parameters()).device.type == device
        assert runner.optim_wrapper.loss_scaler.get_scale() == 2.0**126  # it has overflowed once
        assert runner.is_finite()

    def test_a_step_that_the_scaler_skips_is_no_error(self, fused, device, scaled, tmp_path):
        runner = Training(tmp_path, batches("gradient", 3), scaled(1.0, fused))
        runner.train()
        assert runner.optim_wrapper.loss_scaler.get_scale() == 0.5
        assert runner.is_finite()

    def test_a_loss_that_is_not_finite_stops_training(self, fused, device, scaled, tmp_path):
        runner = Training(tmp_path, batches("input", 3), scaled(1.0, fused))
        with pytest.raises(FloatingPointError, match="iteration 3: the input "):
            runner.train()
        assert all(value.isfinite().all() for value in runner.model.parameters())


def test_stopped_run_names_the_module_and_the_images_in_one_line(shapes, tmp_path):
    options = cfg_options(SEG, shapes, 4)
    options += ["optim_wrapper.optimizer.lr=1e30", "param_scheduler=None"]
    arguments = (DEMO / f"{SEG}.py", "--work-dir", tmp_path / "work", *options)
    run = run_tool("train", *arguments, cwd=tmp_path)
    assert run.returncode == 1
    message = r"iteration 1: the output of [a-z]\S+ \(\w+\) .* at \S+\.jpg"
    assert re.match(f"FloatingPointError: {message}", run.stderr.splitlines()[-1])


# By fault: the error in each process.
UNKNOWN = r"iteration 0: loss or gradients are not finite, here or in another process at 0a\.jpg"
CASES = dict(
    input=(UNKNOWN, r"iteration 0: the input is the first that is not finite at 0a\.jpg"),
    gradient=(UNKNOWN, UNKNOWN),
    loss=(UNKNOWN, UNKNOWN),
    none=("$", "$"),
)


def train_one_step(rank: int, device: str, fault: str) -> tuple[str, bool]:
    """Train on a batch that has the fault in the second process only.

    Return the error, and whether the weights are the same.
    """
    torch.manual_seed(0)
    probe = Probe().train().to(device)
    model = MMDistributedDataParallel(probe, find_unused_parameters=True)
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=1e-3))
    hook = NonFiniteHook()
    hook.before_train(SimpleNamespace(model=model, optim_wrapper=wrapper, iter=0))
    initial = [parameter.detach().clone() for parameter in model.parameters()]
    batch = batches(fault if rank == 1 else "none", 0)[0]
    error = ""
    try:
        model.train_step(dict(batch, inputs=batch["inputs"].to(device)), wrapper)
    except FloatingPointError as raised:
        error = str(raised)
    return error, all(map(torch.equal, initial, model.parameters()))


def run_process(rank: int, device: str, folder: Path) -> None:
    torch.set_num_threads(1)
    if device == "cuda":  # with gloo two processes share a GPU
        torch.cuda.set_device(rank % torch.cuda.device_count())
    store = f"file://{folder / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    outcomes = {fault: train_one_step(rank, device, fault) for fault in CASES}
    torch.save(outcomes, folder / f"{rank}.pth")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module", params=DEVICES)
def outcomes(request, tmp_path_factory) -> list[dict]:
    """What happened in each process, by the fault. One pair of processes runs all cases."""
    folder = tmp_path_factory.mktemp("processes")
    start_method = "forkserver" if request.param == "cpu" else "spawn"
    in_two_processes(run_process, request.param, folder, start_method=start_method)
    return [torch.load(folder / f"{rank}.pth") for rank in range(2)]


@pytest.mark.parametrize("fault", CASES)
def test_all_processes_stop_before_the_step_if_one_has_the_fault(fault, outcomes):
    for process, expected in zip(outcomes, CASES[fault], strict=True):
        error, is_unchanged = process[fault]
        assert re.match(expected, error)
        assert is_unchanged == (fault != "none")
