"""Plain vision transformers of timm under the pyramid: maps, weights, frozen layers and rates."""

from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from torch import Tensor, nn

from xcit_mm import TimmPyramid, XCiT
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


def save_timm_weights(model: str, folder: Path, seed: int = 1, **options: Any) -> Path:
    """Write the random weights of a classifier of timm as timm does."""
    torch.manual_seed(seed)
    path = folder / f"{model}.pth"
    torch.save(timm.create_model(model, num_classes=7, **options).state_dict(), path)
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
    with torch.no_grad():
        expected = original.forward_intermediates(image, indices, intermediates_only=True)
    for tap, intermediate in zip(taps_of(backbone, image), expected, strict=True):
        assert torch.equal(tap, intermediate)


@pytest.mark.parametrize("model", FAMILIES)
def test_every_parameter_gets_a_gradient(model):
    """On several GPUs torch stops at a parameter without."""
    backbone = build(model).train()
    sum(level.square().mean() for level in backbone(torch.randn(2, 3, 64, 48))).backward()
    assert [name for name, p in backbone.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("height, width", [(32, 32), (33, 47), (40, 301), (224, 224)])
def test_images_of_any_size_have_a_map_of_each_stride(height, width):
    maps = build()(torch.randn(1, 3, height, width))
    cells = [(-(-height // 16), -(-width // 16))] * 4
    assert [tuple(level.shape[1:]) for level in maps] == [
        (64, 4 * cells[0][0], 4 * cells[0][1]),
        (64, 2 * cells[1][0], 2 * cells[1][1]),
        (64, *cells[2]),
        (64, cells[3][0] // 2, cells[3][1] // 2),
    ]


def test_maps_of_a_small_image_cover_no_more_than_it():
    maps = build()(torch.randn(1, 3, 20, 96))
    assert [tuple(level.shape[2:]) for level in maps] == [(5, 24), (3, 12), (2, 6), (1, 3)]


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(model="vit_smal_patch16_224"), "vit_smal_patch.*take one such as vit_small_patch16"),
        (dict(model="swin_tiny_patch4_window7_224"), "swin_tiny.*is not a plain"),
        (dict(model="vit_small_r26_s32_224"), "'vit_small_r26_s32_224' is not a plain"),
        (dict(model="xcit_small_12_p16_224"), "'xcit_small_12_p16_224' is not a plain"),
        (dict(model=None), "model=None is not a plain"),
        (dict(model="vit_small_patch14_dinov2"), "patches of 14 pixels: take a model whose"),
        (dict(out_indices=(3, 6)), r"\(3, 6\).*0 to 5"),
        (dict(frozen_stages=7), "frozen_stages=7.*6"),
        (dict(pretrained=True, init_cfg=dict(type="Pretrained", checkpoint="x")), "leave one out"),
        (dict(patch_size=8), "TimmPyramid has no argument patch_size"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(options, message):
    arguments = dict(model=TINY) | options
    with pytest.raises((TypeError, ValueError), match=message) as error, torch.device("meta"):
        TimmPyramid(**arguments)
    assert "\n" not in str(error.value)


def changed_file(folder: Path, **changes: Tensor | None) -> Path:
    """Write a file of TINY with other tensors, and without those that are None."""
    path = save_timm_weights(TINY, folder)
    state = torch.load(path) | changes
    torch.save({key: tensor for key, tensor in state.items() if tensor is not None}, path)
    return path


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"blocks.2.attn.qkv.weight": None}, "it lacks timm_model.blocks.2.attn.qkv.weight"),
        ({"patch_embed.proj.weight": None}, "it lacks patch_embed.proj.weight"),
        ({"blocks.6.attn.qkv.weight": torch.ones(3)}, "unknown timm_model.blocks.6.attn"),
        ({"cls_token": torch.ones(1, 1, 9)}, r"cls_token of \(1, 1, 9\), not \(1, 1, 64\)"),
        ({"cls_token": torch.full((1, 1, 64), torch.nan)}, "cls_token with values that are not"),
        ({"pos_embed": torch.ones(1, 3)}, "timm cannot read it as test_vit"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_and_changes_nothing(changes, message, tmp_path):
    backbone = build()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    with pytest.raises(ValueError, match=message) as error:
        load_pretrained(backbone, str(changed_file(tmp_path, **changes)))
    assert "\n" not in str(error.value)
    torch.testing.assert_close(dict(backbone.state_dict()), before, rtol=0, atol=0)


def test_files_of_xcit_and_of_a_vit_are_not_mixed_up(tmp_path):
    xcit = XCiT("n12", norm_cfg=dict(type="BN"))
    torch.save(xcit.state_dict(), tmp_path / "xcit.pth")
    with pytest.raises(ValueError, match=r"it lacks patch_embed.proj.weight"):
        load_pretrained(build(), str(tmp_path / "xcit.pth"))
    with pytest.raises(ValueError, match=r"it lacks blocks\.0\.attn\.temperature"):
        load_pretrained(xcit, str(save_timm_weights(TINY, tmp_path)))


def test_a_saved_backbone_fills_one_with_fewer_levels_and_blocks(tmp_path):
    saved = build(in_channels=4)
    torch.save(saved.state_dict(), tmp_path / "own.pth")
    smaller = build(in_channels=4, out_indices=(1, 3), strides=(8, 16))
    assert load_pretrained(smaller, str(tmp_path / "own.pth")) == []
    state = saved.state_dict()
    for name, tensor in smaller.state_dict().items():
        assert torch.equal(tensor, state[name]), name


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


def parts_of(backbone: TimmPyramid) -> dict[str, int]:
    """Return the layer of each parameter: 0 before the blocks, then the blocks, 7 the pyramid."""
    layers = {}
    for name, _ in backbone.named_parameters():
        if name.startswith("fpn"):
            layers[name] = 7
        else:
            layers[name] = int(name.split(".")[2]) + 1 if ".blocks." in name else 0
    return layers


@pytest.mark.parametrize("model", [TINY, "test_vit2"])
@pytest.mark.parametrize("frozen_stages", [-1, 0, 2])
def test_frozen_layers_keep_their_values_and_others_have_the_rate_of_their_layer(
    model, frozen_stages
):
    backbone = build(model, frozen_stages=frozen_stages, out_indices=(1, 2, 3, 5)).train()
    optim_wrapper = dict(
        constructor="LayerDecayOptimWrapperConstructor",
        optimizer=dict(type="SGD", lr=1.0),
        paramwise_cfg=dict(layer_decay_rate=0.5),
    )
    detector = nn.ModuleDict(dict(backbone=backbone))
    groups = build_optim_wrapper(detector, optim_wrapper).optimizer.param_groups
    rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    layers = parts_of(backbone)
    for name, parameter in backbone.named_parameters():
        is_frozen = layers[name] <= frozen_stages
        assert parameter.requires_grad != is_frozen, name
        assert rates.get(id(parameter)) == (None if is_frozen else 0.5 ** (7 - layers[name])), name
    blocks = backbone.timm_model.blocks
    assert [block.training for block in blocks] == [i >= frozen_stages for i in range(len(blocks))]


def test_recomputed_blocks_have_the_same_gradients():
    image = torch.randn(2, 3, 64, 64)
    gradients = []
    for with_cp in (False, True):
        backbone = build(with_cp=with_cp).train()
        sum(level.square().mean() for level in backbone(image)).backward()
        gradients.append({name: p.grad for name, p in backbone.named_parameters()})
    torch.testing.assert_close(gradients[0], gradients[1])
