"""Devices of a test: the CPU, and with the same code a GPU, which is marked `gpu`."""

import pytest

GPU = pytest.mark.gpu
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
on_each_device = pytest.mark.parametrize("device", DEVICES)


def on_each_device_in(cpu: list[str], cuda: list[str]) -> pytest.MarkDecorator:
    """Parametrize `device` and `dtype`, a name in torch, with the types that each computes in."""
    on_gpu = [pytest.param("cuda", dtype, marks=GPU) for dtype in cuda]
    return pytest.mark.parametrize("device, dtype", [*(("cpu", dtype) for dtype in cpu), *on_gpu])
