"""The fast layers have the result of the plain layers, and are used only where this holds."""

import pytest
import torch
from helpers.golden import GOLDEN, deviation, fill, image

from xcit_mm import XCiT, XCiTClassifier
from xcit_mm.models import fast, products

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


@pytest.mark.parametrize("grad", [True, False])
def test_an_empty_batch(grad):
    empty = torch.empty(0, 3, 64, 96)
    with torch.set_grad_enabled(grad):
        maps = XCiT(TINY, 8, out_indices=(0, 1), norm_cfg=BN).eval()(empty)
        assert [m.shape for m in maps] == [(0, 32, 16, 24), (0, 32, 8, 12)]
        assert XCiTClassifier(TINY, num_classes=5).eval()(empty).shape == (0, 5)


@pytest.mark.parametrize("grad", [True, False])
def test_a_traced_model_takes_other_sizes(grad):
    model = fill(XCiT(TINY, out_indices=(0, 1), strides=(4, 32), norm_cfg=BN))
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(model, image(64, 96).float())
        larger = image(320, 352).float()
        torch.testing.assert_close(traced(larger), model(larger))
