"""`output_shape` says without an image what the feature maps of a pyramid are."""

import pytest
import torch
from helpers.golden import PICO
from torch import nn

from xcit_mm import XCiT
from xcit_mm.models import Pyramid, TimmPyramid


def assert_true_of_an_image(backbone: nn.Module) -> None:
    with torch.no_grad():
        maps = backbone.eval()(torch.zeros(1, 3, 64, 96))
    shapes = backbone.output_shape()
    assert [level.channels for level in shapes.values()] == [m.shape[1] for m in maps]
    assert [level.stride for level in shapes.values()] == [96 // m.shape[3] for m in maps]
    assert all(isinstance(getattr(backbone, name), nn.Sequential) for name in shapes)


@pytest.mark.parametrize("strides", [None, (4, 32), (16,)])
@pytest.mark.parametrize("patch_size", [16, 8])
def test_xcit_says_channels_and_strides_of_its_maps(patch_size, strides):
    backbone = XCiT(PICO, patch_size, strides=strides, norm_cfg=dict(type="BN"))
    assert isinstance(backbone, Pyramid)
    assert_true_of_an_image(backbone)


@pytest.mark.peers
def test_a_pyramid_on_a_model_of_timm_says_them_too():
    pytest.importorskip("timm", reason="timm is not installed: make STACK=peers test")
    assert_true_of_an_image(TimmPyramid("test_vit", strides=(8, 16), norm_cfg=dict(type="BN")))
