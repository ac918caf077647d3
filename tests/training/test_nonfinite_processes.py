"""NonFiniteHook acts in all processes alike, and no process hangs."""

from types import SimpleNamespace

import pytest
import torch
from helpers.devices import on_each_device
from helpers.processes import in_two_processes
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from torch import Tensor, nn

from xcit_mm import NonFiniteHook

MESSAGES = dict(
    input="the input is the first that is not finite",
    gradient="the gradient of last.(weight|bias) is the first that is not finite",
)


class Communicating(BaseModel):
    """Modules before and after a communication, and a loss that depends on the batch's fault."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, inputs: Tensor, fault: str, mode: str = "loss") -> dict[str, Tensor]:
        x = self.first(inputs)
        torch.distributed.all_reduce(x.detach().clone())  # as SyncBN
        loss = self.last(x).square().mean()
        if fault == "gradient":  # the root's derivative at 0 is infinite
            loss = (loss * 0).sqrt()
        return dict(loss=loss)


def train_with_a_bad_batch_in_one_process(rank: int, device: str, action: str, fault: str) -> None:
    torch.manual_seed(0)
    model = MMDistributedDataParallel(Communicating().train().to(device))
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=1e-3))
    hook = NonFiniteHook(action)
    hook.before_train(SimpleNamespace(model=model, optim_wrapper=wrapper, iter=0))
    initial = {name: value.clone() for name, value in model.module.state_dict().items()}
    batch = dict(inputs=torch.ones(2, 4, device=device), fault=fault if rank == 1 else "none")
    if rank == 1 and fault == "input":
        batch["inputs"][0, 0] = float("nan")
    if action == "stop":
        with pytest.raises(FloatingPointError, match=MESSAGES[fault]):
            model.train_step(batch, wrapper)
    else:
        model.train_step(batch, wrapper)
    torch.testing.assert_close(dict(model.module.state_dict()), initial, rtol=0, atol=0)
    torch.distributed.barrier()


def run_process(rank: int, device: str, store: str) -> None:
    torch.set_num_threads(1)
    if device == "cuda":  # with gloo two processes share a GPU
        torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    # In one pair of processes, because each takes seconds to start.
    for action, fault in (("stop", "input"), ("stop", "gradient"), ("skip", "gradient")):
        train_with_a_bad_batch_in_one_process(rank, device, action, fault)
    torch.distributed.destroy_process_group()


@on_each_device
def test_two_processes_stop_and_skip_as_one(device, tmp_path):
    start_method = "forkserver" if device == "cpu" else "spawn"
    in_two_processes(run_process, device, str(tmp_path / "store"), start_method=start_method)
