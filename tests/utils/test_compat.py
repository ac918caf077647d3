"""What differs between versions of torch is the same here, or one line says what is needed."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config

from xcit_mm import NonFiniteHook
from xcit_mm.utils.compat import TORCH, autocast_dtype


@pytest.mark.skipif(TORCH >= (2, 8), reason="this torch can export")
def test_an_export_says_which_torch_it_needs():
    with pytest.raises(ModuleNotFoundError, match=r"torch 2\.8 or newer"):
        import xcit_mm.deployment  # noqa: F401


@pytest.mark.skipif(TORCH >= (2, 3), reason="this torch keeps the hooks of optimizers")
def test_a_compiled_training_without_checks_of_gradients_does_not_start():
    runner = SimpleNamespace(cfg=Config(dict(compile=True)))
    with pytest.raises(ValueError, match="set compile=False"):
        NonFiniteHook().before_train(runner)


def test_the_type_of_autocast_is_none_where_it_is_off():
    assert autocast_dtype("cpu") is None
    with torch.autocast("cpu", torch.bfloat16):
        assert autocast_dtype("cpu") == torch.bfloat16
        assert autocast_dtype("cuda") is None
