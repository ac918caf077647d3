"""An older torch: what it lacks is one line, and what the package does instead gives the same."""

import sys

import pytest
import torch

from xcit_mm.utils import compat


@pytest.fixture
def old_torch(monkeypatch) -> None:
    for module in (compat, nonfinite):
        monkeypatch.setattr(module, "TORCH", (2, 1))


def test_an_export_says_which_torch_it_needs(old_torch, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("xcit_mm.deployment")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModuleNotFoundError, match=r"torch 2\.6 or newer"):
        import xcit_mm.deployment  # noqa: F401




@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_autocast_has_the_same_type(old_torch):
    assert compat.autocast_dtype("cpu") is None
    with torch.autocast("cpu", torch.bfloat16):
        assert compat.autocast_dtype("cpu") == torch.bfloat16
        assert compat.autocast_dtype("cuda") is None
