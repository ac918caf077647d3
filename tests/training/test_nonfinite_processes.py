"""NonFiniteHook acts in all processes alike, and no process hangs."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.devices import DEVICES
from helpers.processes import in_two_processes
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from torch import Tensor, nn

from xcit_mm import NonFiniteHook

CASES = [("stop", "input"), ("stop", "gradient"), ("skip", "gradient"), ("skip", "none")]


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


def train_one_step(rank: int, device: str, action: str, fault: str) -> tuple[str, bool]:
    """Train on a batch that has the fault in the second process only.

    Return the error, and whether the weights have changed.
    """
    torch.manual_seed(0)
    model = MMDistributedDataParallel(Communicating().train().to(device))
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=1e-3))
    hook = NonFiniteHook(action)
    hook.before_train(SimpleNamespace(model=model, optim_wrapper=wrapper, iter=0))
    initial = [parameter.detach().clone() for parameter in model.parameters()]
    batch = dict(inputs=torch.ones(2, 4, device=device), fault=fault if rank == 1 else "none")
    if rank == 1 and fault == "input":
        batch["inputs"][0, 0] = float("nan")
    error = ""
    try:
        model.train_step(batch, wrapper)
    except FloatingPointError as raised:
        error = str(raised)
    return error, not all(map(torch.equal, initial, model.parameters()))


def run_process(rank: int, device: str, folder: Path) -> None:
    torch.set_num_threads(1)
    if device == "cuda":  # with gloo two processes share a GPU
        torch.cuda.set_device(rank % torch.cuda.device_count())
    store = f"file://{folder / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    outcomes = {case: train_one_step(rank, device, *case) for case in CASES}
    torch.save(outcomes, folder / f"{rank}.pth")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module", params=DEVICES)
def outcomes(request, tmp_path_factory) -> list[dict]:
    """What happened in each process, by the case. One pair of processes runs all cases."""
    folder = tmp_path_factory.mktemp("processes")
    start_method = "forkserver" if request.param == "cpu" else "spawn"
    in_two_processes(run_process, request.param, folder, start_method=start_method)
    return [torch.load(folder / f"{rank}.pth") for rank in range(2)]


@pytest.mark.parametrize(
    "case, error, has_moved",
    [
        (("stop", "input"), "the input", False),
        (("stop", "gradient"), r"gradient of last\.(weight|bias)", False),
        (("skip", "gradient"), "", False),
        (("skip", "none"), "", True),
    ],
)
def test_two_processes_stop_and_skip_as_one(case, error, has_moved, outcomes):
    errors, moves = zip(*(process[case] for process in outcomes), strict=True)
    assert moves == (has_moved, has_moved)
    assert errors[0] == errors[1]
    assert re.search(error, errors[0]) if error else errors[0] == ""
