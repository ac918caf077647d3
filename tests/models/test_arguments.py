"""Wrong arguments and images of a backbone are named in one line; initialisation prints one."""

import re
import sys

import numpy as np
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
        (dict(arch=dict(TINY, eta=float("nan"))), "eta=nan"),
        (dict(arch=dict(TINY, eta=float("inf"))), "eta=inf"),
        (dict(patch_size=7), "patch_size=7.*16, 8"),
        (dict(out_indices=(3, 5, 7, 12)), r"12\).*0 to 11"),
        (dict(strides=(4, 64)), "64.*4, 8, 16, 32"),
        (dict(depth=50, strides=(1, 2, 2, 2)), "1, 2, 2, 2.*_delete_=True"),  # of mmseg's ResNet
        (dict(pretrained="x.pth"), r"no argument pretrained: .*\(pretrained=None.*init_cfg"),
        (dict(drop_path_rate=1.0), "drop_path_rate=1.0"),
        (dict(init_cfg="x.pth"), r"'x.pth'.*dict\(type='Pretrained', checkpoint=FILE\)"),
        (dict(init_cfg=dict(PRETRAINED, strict_heads=0)), "strict_heads"),
        (dict(depth=50, style="pytorch"), "XCiT has no argument depth, style.*_delete_=True"),
        (dict(network=XCiTClassifier, out_indices=(3,)), "no argument out_indices: remove it"),
        (
            dict(network=XCiTClassifier, with_cp="bands", norm_eval=True),
            r"with_cp='bands': .*True\)",
        ),
        (dict(attn_implementation="fast"), "^attn_implementation='fast': .*'auto', 'plain'"),
    ],
)
def test_wrong_arguments_are_named(kwargs, message):
    options = {"arch": "n12", **kwargs}
    network = options.pop("network", XCiT)
    error_type = TypeError if "no argument" in message else ValueError
    with pytest.raises(error_type, match=message) as error, torch.device("meta"):
        network(**options)
    assert "\n" not in str(error.value)


def test_arguments_of_the_authors_own_configs_are_told_what_replaces_them():
    for network in (XCiT, XCiTClassifier):
        with pytest.raises(ValueError, match=r"one of n12, .*embed_dim, .*docs/backbone\.md"):
            network(patch_size=8, embed_dim=384, depth=12, num_heads=8, mlp_ratio=4, eta=1.0)


def test_numbers_of_numpy_are_numbers():
    with torch.device("meta"):
        model = XCiT(dict(TINY, embed_dim=np.int64(32), eta=np.float32(1)))
    assert model.arch == XCiT(TINY).arch


def test_a_plain_transformer_without_timm_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModuleNotFoundError) as error:
        TimmPyramid("vit_small_patch16_224")
    assert str(error.value) == "TimmPyramid needs timm: pip install 'xcit_mm[timm]'"


@pytest.mark.parametrize("shape", [(1, 4, 64, 64), (3, 64, 64), (1, 64, 64, 3)])
def test_invalid_images_are_rejected(shape):
    message = rf"{re.escape(str(shape))}.*\(B, 3, H, W\)"
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        XCiT(TINY)(torch.empty(shape))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float64])
def test_an_image_of_another_type_than_the_weights_is_named(dtype):
    message = rf"image of {dtype}, but weights of torch.float32: .*\.to\(torch.float32\)"
    image = torch.zeros(1, 3, 64, 64, dtype=dtype)
    for options in ({}, dict(with_cp="bands", norm_eval=True)):
        with pytest.raises(TypeError, match=message):
            XCiT(TINY, **options)(image)
