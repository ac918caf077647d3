"""torch.compile makes one graph of the backbone for every size, without breaks."""

from typing import Any

import pytest
import torch
from benchmark import saved_bytes
from helpers.devices import on_each_device
from torch._dynamo.testing import CompileCounterWithBackend

from xcit_mm import XCiT


def build(depth: int = 1, **kwargs: Any) -> XCiT:
    arch = dict(embed_dim=32, depth=depth, num_heads=4, eta=1.0)
    return XCiT(arch, norm_cfg=dict(type="BN"), out_indices=tuple(range(depth)), **kwargs)


@pytest.fixture(autouse=True)
def reset() -> None:
    """Models of other tests do not count towards the limit of recompilations."""
    torch.compiler.reset()


@on_each_device
def test_one_graph_gives_the_same_at_every_large_size(device):
    model = build().eval().to(device)
    # On a GPU with the compiler that users have there.
    counter = CompileCounterWithBackend("eager" if device == "cpu" else "inductor")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for size in [(640, 672), (800, 1344), (517, 512)]:
        x = torch.randn(1, 3, *size, device=device)
        with torch.inference_mode():
            for actual, expected in zip(compiled(x), model(x), strict=True):
                assert (actual - expected).abs().mean() < 1e-4 * expected.abs().mean()
    assert counter.frame_count == 1


@pytest.mark.slow
def test_a_compiled_training_with_checkpoints_has_the_same_results_and_saves_memory():
    """The same paths are dropped in both passes."""

    def measure(with_cp: bool) -> tuple[list[torch.Tensor], int]:
        torch.manual_seed(0)
        model = build(depth=2, with_cp=with_cp, drop_path_rate=0.5)
        run = torch.compile(model, fullgraph=True, backend="aot_eager") if with_cp else model
        torch.manual_seed(1)
        x = torch.randn(2, 3, 128, 128)
        maps = run(x)
        loss = sum(m.square().mean() for m in maps)
        grads = torch.autograd.grad(loss, tuple(model.parameters()))
        return [*maps, *grads], saved_bytes(model, lambda: run(x))

    expected, without = measure(with_cp=False)
    results, compiled = measure(with_cp=True)
    torch.testing.assert_close(results, expected)
    assert compiled < 0.8 * without
