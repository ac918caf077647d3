"""Devices of a test: the CPU, and with the same code a GPU, which is marked `gpu`."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mmengine.optim.optimizer import amp_optimizer_wrapper
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU = pytest.mark.gpu
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
on_each_device = pytest.mark.parametrize("device", DEVICES)


def on_each_device_in(cpu: list[str], cuda: list[str]) -> pytest.MarkDecorator:
    """Parametrize `device` and `dtype`, a name in torch, with the types that each computes in."""
    on_gpu = [pytest.param("cuda", dtype, marks=GPU) for dtype in cuda]
    return pytest.mark.parametrize("device, dtype", [*(("cpu", dtype) for dtype in cpu), *on_gpu])


def allow_mixed_precision(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let mmengine's AmpOptimWrapper, for GPUs only, work on the CPU too, with a loss scaler."""
    if device == "cpu":
        scaler = functools.partial(torch.amp.GradScaler, "cpu")
        monkeypatch.setattr(amp_optimizer_wrapper, "is_cuda_available", lambda: True)
        monkeypatch.setattr(amp_optimizer_wrapper, "GradScaler", scaler)


class _LiveBytes(TorchDispatchMode):
    """Measures the peak of the bytes in tensors, after any operator, without those of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        state = (*model.parameters(), *model.buffers())
        self.of_model = {tensor.untyped_storage().data_ptr() for tensor in state}
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        # A weight in oneDNN's order has no storage.
        made = [tensor.untyped_storage() for tensor in tensors if not tensor.is_mkldnn]
        self.storages = {
            key: entry for key, entry in self.storages.items() if not entry[0].expired()
        }
        for storage in made:
            if storage.data_ptr() not in self.of_model:
                self.storages[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self.storages.values()))
        return out


def peak_bytes(model: nn.Module, run: Callable[[], object], device: str) -> int:
    """Peak memory that torch allocates in a run, on a GPU including its libraries."""
    if device == "cpu":
        with _LiveBytes(model) as live:
            run()
        return live.peak
    run()  # cuBLAS allocates a permanent workspace
    torch.cuda.reset_peak_memory_stats()
    at_rest = torch.cuda.memory_allocated()
    run()
    return torch.cuda.max_memory_allocated() - at_rest
