"""An older torch: what it lacks is one line, and what the package does instead gives the same."""

import sys
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config

from xcit_mm import NonFiniteHook
from xcit_mm.utils import compat


@pytest.fixture
def old_torch(monkeypatch) -> None:
    monkeypatch.setattr(compat, "TORCH", (2, 1))


def test_an_export_says_which_torch_it_needs(old_torch, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("xcit_mm.deployment")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModuleNotFoundError, match=r"torch 2\.8 or newer"):
        import xcit_mm.deployment  # noqa: F401


def test_a_compiled_training_without_checks_of_gradients_does_not_start(old_torch):
    runner = SimpleNamespace(cfg=Config(dict(compile=True)))
    with pytest.raises(ValueError, match="set compile=False"):
        NonFiniteHook().before_train(runner)


def test_float16_is_refused_on_a_cpu_alone(old_torch):
    assert not compat.can_autocast("cpu", torch.float16)
    assert compat.can_autocast("cpu", torch.bfloat16)
    assert compat.can_autocast("cuda", torch.float16)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_autocast_has_the_same_type(old_torch):
    assert compat.autocast_dtype("cpu") is None
    with torch.autocast("cpu", torch.bfloat16):
        assert compat.autocast_dtype("cpu") == torch.bfloat16
        assert compat.autocast_dtype("cuda") is None
