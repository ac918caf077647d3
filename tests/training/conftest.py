"""Fixtures of the tests of trainings."""

import functools

import pytest
import torch
from mmengine.optim.optimizer import amp_optimizer_wrapper


@pytest.fixture
def loss_scaler_on_cpu(monkeypatch) -> None:
    """mmengine has a loss scaler for GPUs only."""
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("torch 2.3 or newer")
    scaler = functools.partial(torch.amp.GradScaler, "cpu")
    monkeypatch.setattr(amp_optimizer_wrapper, "is_cuda_available", lambda: True)
    monkeypatch.setattr(amp_optimizer_wrapper, "GradScaler", scaler)
