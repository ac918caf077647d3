"""NonFiniteHook acts in all processes alike, and no process hangs."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from helpers.devices import on_each_device
from helpers.processes import in_two_processes
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from torch import Tensor, nn

from xcit_mm import NonFiniteHook

FOUND = dict(
    input="the input is the first that is not finite",
    gradient="the gradient of last.(weight|bias) is the first that is not finite",
)


class Communicating(BaseModel):
    """Modules before and after a communication, and a loss that depends on the kind of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs: Tensor, kind: str, mode: str = "loss") -> dict[str, Tensor]:
        x = self.first(inputs)
        torch.distributed.all_reduce(x.detach().clone())  # as SyncBN
        loss = self.last(x).square().mean()
        return dict(
            loss=(loss * 0).sqrt() if kind == "gradient" else loss
        )  # the root's derivative at 0 is infinite


def train_with_a_bad_batch_in_one_process(rank: int, device: str, action: str, kind: str) -> None:
    torch.manual_seed(0)
    model = MMDistributedDataParallel(Communicating().train().to(device))
    hook, wrapper = (
        NonFiniteHook(action),
        OptimWrapper(torch.optim.SGD(model.parameters(), lr=1e-3)),
    )
    hook.before_train(SimpleNamespace(model=model, optim_wrapper=wrapper, iter=0))
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    batch = dict(inputs=torch.ones(2, 4, device=device), kind=kind if rank == 1 else "good")
    if rank == 1 and kind == "input":
        batch["inputs"][0, 0] = float("nan")
    with (
        pytest.raises(FloatingPointError, match=FOUND[kind]) if action == "stop" else nullcontext()
    ):
        model.train_step(batch, wrapper)
    assert hook.skips == 1
    torch.testing.assert_close(dict(model.module.state_dict()), before, rtol=0, atol=0)
    torch.distributed.barrier()


def run_process(rank: int, device: str, store: str) -> None:
    torch.set_num_threads(1)
    if device == "cuda":  # with gloo two processes share a GPU
        torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    for action, kind in (("stop", "input"), ("stop", "gradient"), ("skip", "gradient")):
        train_with_a_bad_batch_in_one_process(rank, device, action, kind)
    torch.distributed.destroy_process_group()


@on_each_device
def test_two_processes_stop_and_skip_as_one(device, tmp_path):
    start_method = "forkserver" if device == "cpu" else "spawn"
    in_two_processes(run_process, device, str(tmp_path / "store"), start_method=start_method)
