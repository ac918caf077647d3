"""Wrong arguments and images of a backbone are named in one line; initialisation prints one."""

import re
import sys

import pytest
import torch

from xcit_mm import TimmPyramid, XCiT, XCiTClassifier

TINY = dict(embed_dim=32, depth=6, num_heads=4, eta=1.0)
PRETRAINED = dict(type="Pretrained", checkpoint="x.pth")


@pytest.mark.parametrize(
    "kwargs, message",
    [
        (dict(arch="s13"), "'s13'.*n12, t12"),
        (dict(arch=dict(TINY, embed_dim=30)), "num_heads=4.*embed_dim=30"),
        (dict(arch=dict(TINY, depth=2)), "depth 2"),
        (dict(patch_size=7), "patch_size=7.*16, 8"),
        (dict(out_indices=(3, 5, 7, 12)), r"12\).*0 to 11"),
        (dict(strides=(4, 64)), "64.*4, 8, 16, 32"),
        (dict(drop_path_rate=1.0), "drop_path_rate=1.0"),
        (dict(init_cfg="x.pth"), r"'x.pth'.*dict\(type='Pretrained', checkpoint=FILE\)"),
        (dict(init_cfg=dict(PRETRAINED, strict_heads=0)), "strict_heads"),
        (dict(depth=50, style="pytorch"), "XCiT has no argument depth, style.*_delete_=True"),
        (dict(network=XCiTClassifier, out_indices=(3,)), "no argument out_indices: remove it"),
    ],
)
def test_wrong_arguments_are_named(kwargs, message):
    options = {"arch": "n12", **kwargs}
    network = options.pop("network", XCiT)
    error_type = TypeError if "no argument" in message else ValueError
    with pytest.raises(error_type, match=message) as error, torch.device("meta"):
        network(**options)
    assert "\n" not in str(error.value)


def test_a_plain_transformer_without_timm_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModuleNotFoundError) as error:
        TimmPyramid("vit_small_patch16_224")
    assert str(error.value) == "TimmPyramid needs timm: pip install 'xcit_mm[timm]'"


@pytest.mark.parametrize("shape", [(1, 4, 64, 64), (3, 64, 64)])
def test_invalid_images_are_rejected(shape):
    message = rf"{re.escape(str(shape))}.*\(B, 3, H, W\)"
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        XCiT(TINY)(torch.empty(shape))
