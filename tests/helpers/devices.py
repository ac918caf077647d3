"""Devices of a test: the CPU, and with the same code a GPU, which is marked `gpu`."""

import pytest
import torch

from xcit_mm.utils.compat import TORCH

GPU = pytest.mark.gpu
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
on_each_device = pytest.mark.parametrize("device", DEVICES)


def on_each_device_in(cpu: list[str], cuda: list[str]) -> pytest.MarkDecorator:
    """Parametrize `device` and `dtype`, a name in torch, with the types that each computes in."""
    on_gpu = [pytest.param("cuda", dtype, marks=GPU) for dtype in cuda]
    return pytest.mark.parametrize("device, dtype", [*(("cpu", dtype) for dtype in cpu), *on_gpu])


def need_autocast(device: str, dtype: torch.dtype) -> None:
    """Skip a test where torch has no autocast to a type: float16 on a CPU before 2.2."""
    if device == "cpu" and dtype == torch.float16 and TORCH < (2, 2):
        pytest.skip(f"this torch has no {dtype} on a {device}")
