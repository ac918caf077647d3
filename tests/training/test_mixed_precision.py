"""Every recipe trains in mixed precision as in float32."""

import copy
from pathlib import Path

import pytest
import torch
from helpers.devices import on_each_device_in
from helpers.paths import CONFIGS
from helpers.small_models import first_batch, tiny
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS

from xcit_mm.training import CPUAmpOptimWrapper

OTHERS = ("_base_", "classification", "demo")
RECIPES = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if "mask2" in path.stem else [])
    for path in sorted(CONFIGS.glob("*/*_xcit-s12-p16_*.py"))
    if path.parent.name not in OTHERS
]


@on_each_device_in(["bfloat16"], ["float16", "bfloat16"])
@pytest.mark.parametrize("leaf", RECIPES)
def test_recipe_trains_in_mixed_precision(leaf: Path, device: str, dtype: str, shapes: Path):
    pytest.importorskip("mmseg" if "ade20k" in leaf.stem else "mmdet")
    if "mask2former" in leaf.stem and dtype == "float16":
        pytest.skip("the loss of masks overflows in float16")
    cfg = tiny(leaf, shapes)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    batch = first_batch(cfg.train_dataloader)

    def train(iterations: int, **wrapper: str) -> tuple[list[float], torch.nn.Module]:
        trained = copy.deepcopy(model).to(device).train()
        optim_wrapper = build_optim_wrapper(trained, dict(cfg.optim_wrapper, **wrapper))
        losses = []
        for _ in range(iterations):
            torch.manual_seed(1)  # of the samplers
            losses.append(trained.train_step(copy.deepcopy(batch), optim_wrapper)["loss"].item())
        return losses, trained

    exact, _ = train(1)
    # On a GPU the loss scaler may have to skip the first iterations.
    wrapper = "CPUAmpOptimWrapper" if device == "cpu" else "AmpOptimWrapper"
    losses, trained = train(3 if device == "cpu" else 5, type=wrapper, dtype=dtype)
    assert losses[0] == pytest.approx(exact[0], rel=0.05)
    assert losses[0] != exact[0]  # another precision
    assert losses[-1] < losses[0]
    assert all(p.isfinite().all() for p in trained.parameters())


def test_other_types_are_refused_on_a_cpu():
    with pytest.raises(ValueError, match=r"optim_wrapper.dtype='float16': .* bfloat16"):
        CPUAmpOptimWrapper(dtype="float16", optimizer=None)
