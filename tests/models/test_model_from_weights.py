"""Models built from weights alone compute what the original model computes."""

import pytest
import torch
from golden import fill

from xcit_mm import XCiT
from xcit_mm.models import Trunk, XCiTClassifier
from xcit_mm.models.build import model_from_weights

ARCH = dict(embed_dim=32, depth=6, num_heads=4, eta=1.0)


@pytest.mark.parametrize(
    "kind, options",
    [
        *((kind, dict(patch_embed=stem)) for kind in (XCiT, Trunk, XCiTClassifier) for stem in ("conv", "linear")),
        (XCiT, dict(patch_size=16, strides=(8, 16, 32))),
        (XCiT, dict(in_channels=4)),
        (XCiT, dict(use_pos=False)),
    ],
)
def test_weights_determine_class_and_options_of_the_model(kind, options, tmp_path):
    model = fill(kind(ARCH, **dict(patch_size=8) | options))
    torch.save(dict(model=model.state_dict()), tmp_path / "weights.pth")
    loaded = model_from_weights(str(tmp_path / "weights.pth"))
    assert type(loaded) is kind
    image = torch.rand(1, options.get("in_channels", 3), 64, 64)
    assert all(torch.equal(*outputs) for outputs in zip(loaded(image), model(image), strict=True))
