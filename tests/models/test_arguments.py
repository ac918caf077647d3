"""Wrong arguments of a backbone are named in one line."""

import numpy as np
import pytest
import torch

from xcit_mm import XCiT, XCiTClassifier
from xcit_mm.models import pyramid_levels

TINY = dict(embed_dim=32, depth=6, num_heads=4, eta=1.0)


@pytest.mark.parametrize(
    "kwargs, message",
    [
        (dict(arch="s13"), "'s13'.*n12, t12"),
        (dict(arch=dict(TINY, embed_dim=30)), "num_heads=4.*embed_dim=30"),
        (dict(arch=dict(TINY, depth=2)), "depth 2"),
        (dict(patch_size=7), "patch_size=7.*16, 8"),
        (dict(patch_embed="vit"), "patch_embed='vit': .*'conv', 'linear'"),
        (dict(out_indices=(3, 5, 7, 12)), r"12\).*0 to 11"),
        (dict(strides=(4, 64)), "64.*4, 8, 16, 32"),
        (dict(depth=50, strides=(1, 2, 2, 2)), "1, 2, 2, 2.*4, 8, 16, 32"),  # of mmseg's ResNet
        (dict(pretrained="x.pth"), r"no argument pretrained: .*\(pretrained=None.*init_cfg"),
        (dict(init_cfg="x.pth"), r"'x.pth'.*dict\(type='Pretrained', checkpoint=FILE\)"),
        (dict(init_cfg=dict(checkpoint="x.pth")), r"'x.pth'} has no type"),
        (dict(depth=50, style="pytorch"), "XCiT has no argument depth, style.*_delete_=True"),
        (dict(attn_implementation="fast"), "^attn_implementation='fast': .*'auto', 'plain'"),
    ],
)
def test_wrong_arguments_are_named(kwargs, message):
    error_type = TypeError if "no argument" in message else ValueError
    with pytest.raises(error_type, match=message) as error, torch.device("meta"):
        XCiT(**{"arch": "n12", **kwargs})
    assert "\n" not in str(error.value)


def test_arguments_of_the_authors_own_configs_are_told_what_replaces_them():
    for network in (XCiT, XCiTClassifier):
        with pytest.raises(ValueError, match=r"one of n12, .*embed_dim, .*docs/backbone\.md"):
            network(patch_size=8, embed_dim=384, depth=12, num_heads=8, mlp_ratio=4, eta=1.0)


def test_levels_of_other_strides_than_their_names_are_refused():
    with pytest.raises(ValueError, match="patch_size=14: give a power"):
        pyramid_levels(8, 14, [4], {})


def test_numbers_of_numpy_are_numbers():
    with torch.device("meta"):
        model = XCiT(dict(TINY, embed_dim=np.int64(32), eta=np.float32(1)))
    assert model.arch == XCiT(TINY).arch
