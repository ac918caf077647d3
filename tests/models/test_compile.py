"""torch.compile and torch.export make one graph of the backbone for every size, without breaks."""

import pytest
import torch
from helpers.devices import on_each_device
from torch._dynamo.testing import CompileCounterWithBackend

from xcit_mm import XCiT
from xcit_mm.models.covariance import IMPLEMENTATIONS
from xcit_mm.utils.compat import TORCH

ARCH = dict(embed_dim=32, depth=1, num_heads=4, eta=1.0)


@on_each_device
def test_one_graph_gives_the_same_at_every_large_size(device):
    torch.compiler.reset()  # models of other tests do not count towards the limit of recompilations
    model = XCiT(ARCH, out_indices=(0,), norm_cfg=dict(type="BN")).eval().to(device)
    # On a GPU with the compiler that users have there.
    counter = CompileCounterWithBackend("eager" if device == "cpu" else "inductor")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for size in [(640, 672), (800, 1344), (517, 512)]:
        x = torch.randn(1, 3, *size, device=device)
        with torch.inference_mode():
            for actual, expected in zip(compiled(x), model(x), strict=True):
                assert (actual - expected).abs().mean() < 1e-4 * expected.abs().mean()
    assert counter.frame_count == 1


@pytest.mark.skipif(TORCH < (2, 8), reason="torch says from 2.8 on that it exports")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_exported_graph_gives_the_same_at_small_and_large_sizes(implementation):
    """The attention selects an implementation by the size of the image."""
    options = dict(norm_cfg=dict(type="BN"), attn_implementation=implementation)
    model = XCiT(ARCH, out_indices=(0,), **options).eval()
    sizes = dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC)
    program = torch.export.export(model, (torch.randn(2, 3, 96, 64),), dynamic_shapes=(sizes,))
    for size in [(48, 64), (320, 288)]:
        x = torch.randn(1, 3, *size)
        torch.testing.assert_close(program.module()(x), model(x))
