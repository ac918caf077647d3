"""Plain vision transformers of timm under the pyramid: maps, weights, frozen layers and rates."""

from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from torch import Tensor, nn

from xcit_mm import TimmPyramid
from xcit_mm.models import timm_pyramid
from xcit_mm.weights.matching import load_pretrained

timm = pytest.importorskip("timm", reason="timm is not installed: make STACK=peers test")
pytestmark = pytest.mark.peers

TINY = "test_vit"  # 64 channels, 6 blocks, patches of 16
FAMILIES = [
    TINY,
    "test_vit2",  # registers, no class token
    "test_vit3",  # position embedding without class token, attention pooling
    "deit_tiny_distilled_patch16_224",
    "deit3_small_patch16_224",
    "vit_small_patch16_dinov3",
    "vit_base_patch16_siglip_224",
    "vit_small_patch8_224",
    "vit_base_patch32_224",
]


def build(model: str = TINY, **options: Any) -> TimmPyramid:
    torch.manual_seed(0)
    return MODELS.build(
        dict(type="TimmPyramid", model=model, norm_cfg=dict(type="BN")) | options
    ).eval()


def save_timm_weights(model: str, folder: Path) -> Path:
    """Write the random weights of a classifier of timm as timm does."""
    torch.manual_seed(1)
    path = folder / f"{model}.pth"
    torch.save(timm.create_model(model, num_classes=7).state_dict(), path)
    return path


def taps_of(backbone: TimmPyramid, image: Tensor) -> list[Tensor]:
    """Return what the levels of the pyramid get."""
    taps: list[Tensor] = []
    hooks = [
        level.register_forward_pre_hook(lambda _, args: taps.append(args[0]))
        for level in backbone.levels()
    ]
    with torch.no_grad():
        backbone(image)
    for hook in hooks:
        hook.remove()
    return taps


@pytest.mark.parametrize("model", FAMILIES)
def test_the_four_taps_are_the_intermediates_of_timm_with_the_weights_of_a_file(model, tmp_path):
    file = save_timm_weights(model, tmp_path)
    backbone = build(model, init_cfg=dict(type="Pretrained", checkpoint=str(file)))
    backbone.init_weights()
    options = dict(dynamic_img_size=True, dynamic_img_pad=True)
    overlay = dict(file=str(file), num_classes=7)
    original = timm.create_model(
        model, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=7, **options
    ).eval()
    depth = len(original.blocks)
    indices = [depth * twelfths // 12 - 1 for twelfths in (4, 6, 8, 12)]
    assert list(backbone.out_indices) == indices
    image = torch.randn(2, 3, 83, 50)
    options = dict(norm="dinov3" in model, intermediates_only=True)
    with torch.no_grad():
        expected = original.forward_intermediates(image, indices, **options)
    for tap, intermediate in zip(taps_of(backbone, image), expected, strict=True):
        assert torch.equal(tap, intermediate)


def test_taps_are_normed_by_choice_and_the_norm_trains_as_the_last_block():
    for frozen_stages, trains in [(5, True), (6, False)]:
        backbone = build(final_norm=True, frozen_stages=frozen_stages)
        assert backbone.timm_model.norm.weight.requires_grad == trains
        for tap in taps_of(backbone, torch.randn(1, 3, 64, 64)):
            assert tap.mean(dim=1).abs().max() < 1e-5


@pytest.mark.parametrize(
    "height, width, sizes",
    [
        (40, 301, [(12, 76), (6, 38), (3, 19), (1, 9)]),  # of whole patches
        (20, 96, [(5, 24), (3, 12), (2, 6), (1, 3)]),  # no more than the image
    ],
)
def test_images_of_any_size_have_a_map_of_each_stride(height, width, sizes):
    backbone = build()
    maps = backbone(torch.randn(1, 3, height, width))
    assert [tuple(level.shape[1:]) for level in maps] == [(64, *size) for size in sizes]
    assert list(backbone.output_shape().values()) == [(64, stride) for stride in (4, 8, 16, 32)]


@pytest.mark.parametrize(
    "options, message",
    [
        (
            dict(model="swin_tiny_patch4_window7_224"),
            "swin_tiny.*is not a plain.*take one such as vit_small_patch16",
        ),
        (dict(model="test_vit2", final_norm=True), "test_vit2.*give final_norm=False"),
        (dict(pretrained=True, init_cfg=dict(type="Pretrained", checkpoint="x")), "leave one out"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    arguments = dict(model=TINY) | options
    with pytest.raises(ValueError, match=message), torch.device("meta"):
        TimmPyramid(**arguments)


def test_a_file_that_does_not_fit_is_refused_and_changes_nothing(tmp_path):
    backbone = build()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    file = save_timm_weights(TINY, tmp_path)
    torch.save(torch.load(file) | {"blocks.6.attn.qkv.weight": torch.ones(3)}, file)
    with pytest.raises(ValueError, match=r"holds timm_model\.blocks\.6\.attn"):
        load_pretrained(backbone, str(file))
    torch.testing.assert_close(dict(backbone.state_dict()), before, rtol=0, atol=0)


def test_weights_for_rgb_make_a_stem_for_other_bands(tmp_path):
    file = save_timm_weights(TINY, tmp_path)
    rgb = torch.load(file)["patch_embed.proj.weight"]
    backbone = build(in_channels=4)
    with pytest.raises(ValueError, match="fill_stem=True"):
        load_pretrained(backbone, str(file))
    load_pretrained(backbone, str(file), fill_stem=True)
    stem = backbone.timm_model.patch_embed.proj.weight
    torch.testing.assert_close(stem * 4 / 3, torch.cat((rgb, rgb.mean(1, keepdim=True)), 1))


def test_pretrained_takes_the_weights_that_timm_downloads(tmp_path, monkeypatch):
    file = save_timm_weights(TINY, tmp_path)
    create_model = timm_pyramid.create_model

    def create_from_file(name: str, **options: Any) -> nn.Module:
        if options.get("pretrained"):
            options["pretrained_cfg_overlay"] = dict(file=str(file), num_classes=7)
        return create_model(name, **options)

    monkeypatch.setattr(timm_pyramid, "create_model", create_from_file)
    backbone = build(pretrained=True)
    expected = torch.load(file)
    qkv = backbone.timm_model.blocks[0].attn.qkv.weight
    assert not torch.equal(qkv, expected["blocks.0.attn.qkv.weight"])  # only when training starts
    backbone.init_weights()
    for name, parameter in backbone.timm_model.named_parameters():
        assert torch.equal(parameter, expected[name]), name


def test_frozen_layers_do_not_train_and_others_have_the_rate_of_their_layer():
    backbone = build(frozen_stages=2, out_indices=(1, 2, 3, 5)).train()
    blocks = backbone.timm_model.blocks
    assert [block.training for block in blocks] == [False] * 2 + [True] * 4
    prefixes = ("fpn", *(f"timm_model.blocks.{number}." for number in range(2, 6)))
    for name, parameter in backbone.named_parameters():
        assert parameter.requires_grad == name.startswith(prefixes), name
    optim_wrapper = dict(
        constructor="LayerDecayOptimWrapperConstructor",
        optimizer=dict(type="SGD", lr=1.0),
        paramwise_cfg=dict(layer_decay_rate=0.5),
    )
    detector = nn.ModuleDict(dict(backbone=backbone))
    groups = build_optim_wrapper(detector, optim_wrapper).optimizer.param_groups
    rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    for number in range(2, 6):
        assert {rates[id(p)] for p in blocks[number].parameters()} == {0.5 ** (6 - number)}
    assert {rates[id(p)] for level in backbone.levels() for p in level.parameters()} == {1}
