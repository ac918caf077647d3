"""torch.compile makes one graph of the backbone for every size, without breaks."""

import torch
from helpers.devices import on_each_device
from torch._dynamo.testing import CompileCounterWithBackend

from xcit_mm import XCiT


@on_each_device
def test_one_graph_gives_the_same_at_every_large_size(device):
    torch.compiler.reset()  # models of other tests do not count towards the limit of recompilations
    arch = dict(embed_dim=32, depth=1, num_heads=4, eta=1.0)
    model = XCiT(arch, out_indices=(0,), norm_cfg=dict(type="BN")).eval().to(device)
    # On a GPU with the compiler that users have there.
    counter = CompileCounterWithBackend("eager" if device == "cpu" else "inductor")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for size in [(640, 672), (800, 1344), (517, 512)]:
        x = torch.randn(1, 3, *size, device=device)
        with torch.inference_mode():
            for actual, expected in zip(compiled(x), model(x), strict=True):
                assert (actual - expected).abs().mean() < 1e-4 * expected.abs().mean()
    assert counter.frame_count == 1
