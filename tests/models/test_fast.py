"""The fast layers have the result of the plain layers, and are used only where this holds."""

import copy

import pytest
import torch
from helpers.golden import GOLDEN, deviation, fill, image
from mmengine.utils.dl_utils.parrots_wrapper import SyncBatchNorm
from torch import nn

from xcit_mm import XCiT, XCiTClassifier
from xcit_mm.models import fast, products
from xcit_mm.models.xcit import Upsample2x

TINY = dict(embed_dim=32, depth=2, num_heads=4, eta=1.0)
BN = dict(type="BN")


@pytest.mark.parametrize("patch_size", [16, 8])
@pytest.mark.parametrize("is_slow", [True, False])
def test_small_pieces_give_the_authors_pyramid(patch_size, is_slow, monkeypatch):
    monkeypatch.setattr(fast, "CPU_POSITIONS", 16)
    monkeypatch.setattr(products, "has_slow_mkl", lambda: is_slow)
    model = fill(XCiT("n12", patch_size))
    with torch.no_grad():
        maps = model(image(75, 101, batch=2).float())
    assert deviation(maps, GOLDEN / f"pyramid_n12_p{patch_size}.npz", "75x101") < 1e-4


def build(**kwargs) -> XCiT:
    torch.manual_seed(0)
    return XCiT(TINY, 8, out_indices=(0, 1), **{"norm_cfg": BN, **kwargs})


# In training mode without gradients run `update_bn`, PreciseBN and Monte Carlo dropout.
@pytest.mark.parametrize(
    "kwargs, training",
    [
        ({}, None),
        ({}, "XCiT"),
        (dict(norm_eval=True), "XCiT"),
        (dict(drop_rate=0.2, drop_path_rate=0.5, attn_drop_rate=0.2), "XCiT"),
        (dict(frozen_stages=1), "XCiT"),
        (dict(drop_rate=0.2), "Dropout"),
        ({}, "BatchNorm2d"),
        (dict(norm_cfg=dict(type=SyncBatchNorm)), None),  # mmengine's
        (dict(norm_cfg=dict(BN, track_running_stats=False)), None),
        (dict(norm_cfg=dict(type="GN", num_groups=4)), None),
    ],
)
def test_statistics_and_random_numbers_cover_the_whole_map(kwargs, training):
    """Without gradients LPI and MLP may be computed in pieces."""
    model = build(**kwargs).eval()
    for module in model.modules():
        if type(module).__name__ == training:
            module.train()
    x = image(320, 480, batch=2).float()
    with_grad = copy.deepcopy(model)
    torch.manual_seed(1)
    expected = [m.detach() for m in with_grad(x)]
    torch.manual_seed(1)
    with torch.no_grad():
        maps = list(model(x))
    torch.testing.assert_close(maps, expected)
    torch.testing.assert_close(dict(model.named_buffers()), dict(with_grad.named_buffers()))


@pytest.mark.parametrize("grad", [True, False])
def test_an_empty_batch(grad):
    empty = torch.empty(0, 3, 64, 96)
    with torch.set_grad_enabled(grad):
        assert [m.shape for m in build().eval()(empty)] == [(0, 32, 16, 24), (0, 32, 8, 12)]
        assert XCiTClassifier(TINY, num_classes=5).eval()(empty).shape == (0, 5)


def test_upsampling_of_channels_last_is_a_transposed_convolution():
    layer = Upsample2x(8).to(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 70, 90).to(memory_format=torch.channels_last)
    expected = nn.ConvTranspose2d.forward(layer, x)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), expected)


def test_hooks_see_whole_maps_that_keep_their_values():
    model = fill(build())
    x = torch.randn(1, 3, 400, 400)
    outputs = []
    for block in model.blocks:
        for part in (module for child in block.children() for module in child.modules()):
            part.register_forward_hook(lambda part, args, out: outputs.append(out))
    model(x)  # with gradients all layers compute whole maps
    expected = [out.detach() for out in outputs]
    outputs.clear()
    with torch.no_grad():
        model(x)
    assert len(outputs) > 20
    torch.testing.assert_close(outputs, expected)


@pytest.mark.parametrize("grad", [True, False])
def test_a_traced_model_takes_other_sizes(grad):
    model = fill(XCiT(TINY, out_indices=(0, 1), strides=(4, 32), norm_cfg=BN))
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(model, image(64, 96).float())
        larger = image(320, 352).float()
        torch.testing.assert_close(traced(larger), model(larger))
