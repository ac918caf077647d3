"""A model prepared for inference gives the results of the model, and cannot be trained."""

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from helpers import small_models
from helpers.golden import fill
from helpers.layer_changes import CHANGES
from helpers.small_models import TRUNK, build, synthetic_images
from torch import Tensor, nn

from xcit_mm.models import XCiT, XCiTClassifier, fast, prepare_for_inference, products
from xcit_mm.models.prepare import FoldedBlock
from xcit_mm.models.products import FastLinear

SHAPE = (2, 96, 161)


def outputs(model: Any) -> list[Tensor]:
    """Return the maps of the neck and the outputs of the first head."""
    with torch.inference_mode():
        maps = model.extract_feat(synthetic_images(*SHAPE))
        for name in ("decode_head", "rpn_head", "bbox_head"):
            if hasattr(model, name):
                results = getattr(model, name)(maps)
                break
    tensors = list(maps) if model.with_neck else []
    for result in [results] if isinstance(results, Tensor) else results:
        tensors += [result] if isinstance(result, Tensor) else result
    return tensors


def assert_equal(actual: list[Tensor], expected: list[Tensor]) -> None:
    for own, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-5 * float(other.abs().max()))


def assert_prepared_gives_the_same(model: Any) -> None:
    expected = outputs(model)
    assert_equal(outputs(prepare_for_inference(model)), expected)


@pytest.mark.forks
@pytest.mark.parametrize(
    "recipe",
    [
        small_models.mask_rcnn,
        small_models.retinanet,
        small_models.semantic_fpn,
        small_models.upernet,
    ],
)
def test_results_stay(recipe):
    assert_prepared_gives_the_same(build(recipe()))


def test_half_precision_is_as_exact_as_before():
    model = build(small_models.semantic_fpn())
    exact = outputs(model)[-1]
    with torch.autocast("cpu", torch.bfloat16):
        before = outputs(model)[-1]
        after = outputs(prepare_for_inference(model))[-1]
    assert (after - exact).abs().mean() < 1.2 * (before - exact).abs().mean()


@pytest.mark.parametrize("patch_size", [16, 8])
@pytest.mark.parametrize(
    "network, options",
    [(XCiT, dict(out_indices=(0, 1, 2, 3))), (XCiTClassifier, dict(as_tuple=True))],
)
def test_a_backbone_alone_and_a_classifier_give_the_same(network, options, patch_size):
    model = fill(network(TRUNK, patch_size, norm_cfg=dict(type="BN"), **options))
    images = synthetic_images(*SHAPE)
    with torch.inference_mode():
        expected = model(images)
        actual = prepare_for_inference(model)(images)
    assert_equal(actual, expected)
    assert all(level.is_contiguous() for level in actual)


@pytest.mark.parametrize("implementation", fast.IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "context, tolerance",
    [
        (torch.inference_mode, 1e-5),
        (torch.enable_grad, 1e-5),
        (partial(torch.autocast, "cpu", torch.bfloat16), 3e-2),
    ],
    ids=["inference", "gradients", "bfloat16"],
)
def test_folded_blocks_give_the_same(implementation, context, tolerance):
    options = dict(out_indices=(0, 1, 2, 3), norm_cfg=dict(type="BN"))
    model = fill(XCiT(TRUNK, 16, attn_implementation=implementation, **options)).eval()
    images = synthetic_images(*SHAPE)
    with torch.inference_mode():
        expected = model(images)
    with context():
        actual = prepare_for_inference(model)(images)
    for own, other in zip(actual, expected, strict=True):
        assert (own - other).abs().max() < tolerance * other.abs().max()


def test_prepared_model_cannot_be_trained():
    model = build(small_models.upernet())
    images = synthetic_images(*SHAPE)
    with pytest.raises(RuntimeError, match="prepared for inference"):
        prepare_for_inference(model.train())
    prepare_for_inference(model.eval())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(RuntimeError, match="prepared for inference"):
        model.train()(images)
    model.eval()(images)


def test_weights_of_a_prepared_and_a_plain_model_load_only_in_their_own_kind():
    """Without BatchNorm in stem and pyramid, LayerScale alone is folded."""
    options = dict(patch_embed="linear", strides=(8, 16, 32), out_indices=(0, 1, 2))
    plain = fill(XCiT(TRUNK, 16, norm_cfg=dict(type="BN"), **options)).eval()
    prepared = prepare_for_inference(deepcopy(plain))
    for model, other in ((plain, prepared), (prepared, plain)):
        with pytest.raises(RuntimeError, match="gamma1"):
            model.load_state_dict(other.state_dict())


@pytest.mark.parametrize("is_slow", [True, False])
def test_linear_layers_give_the_same_by_onednn_and_by_mkl(is_slow, monkeypatch):
    monkeypatch.setattr(products, "has_slow_mkl", lambda: is_slow)
    layer = FastLinear(48, 32)
    x = torch.randn(2, 7, 48).transpose(0, 1)
    expected = nn.functional.linear(x, layer.weight, layer.bias)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), expected)
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        assert layer(x[:0]).shape == (0, 2, 32)
    assert layer(x).requires_grad


def remove_statistics(norm: nn.BatchNorm2d) -> None:
    norm.track_running_stats = False
    norm.running_mean = None
    norm.running_var = None


@pytest.mark.parametrize(
    "name, change",
    [
        ("backbone.fpn1.1", CHANGES["hook"]),  # the BatchNorm between two layers
        ("backbone.fpn1.1", remove_statistics),
        ("backbone.fpn1.2", CHANGES["hook"]),  # the GELU between them
        ("backbone.fpn1.0", CHANGES["pruned"]),
    ],
)
def test_a_changed_layer_acts_as_before(name, change):
    model = build(small_models.semantic_fpn())
    change(model.get_submodule(name))
    assert_prepared_gives_the_same(model)


@pytest.mark.parametrize("norm_cfg", [dict(type="BN"), dict(type="GN", num_groups=8)])
def test_a_neck_with_norms_gives_the_same(norm_cfg):
    assert_prepared_gives_the_same(build(small_models.semantic_fpn(neck=dict(norm_cfg=norm_cfg))))


def test_layer_scale_and_the_gelu_of_stem_and_pyramid_are_folded():
    model = prepare_for_inference(build(small_models.semantic_fpn()).backbone)
    assert {type(block) for block in model.blocks} == {FoldedBlock}
    for part in (model.patch_embed, *model.levels()):
        assert not any(isinstance(layer, nn.GELU) for layer in part.modules())


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("layer", ["mlp.fc1", "mlp.fc2", "attn.proj", "local_mp.conv2", "norm2"])
def test_a_block_with_a_changed_layer_acts_as_before(layer, change):
    model = build(small_models.semantic_fpn())
    if layer == "norm2" and change is CHANGES["no bias"]:
        pytest.skip("LayerNorm without a bias is another layer")
    change(model.backbone.blocks[1].get_submodule(layer))
    expected = outputs(model)
    assert_equal(outputs(prepare_for_inference(model)), expected)


@pytest.mark.parametrize("layer", ["attn", "local_mp", "mlp", "mlp.fc1", "norm2", "drop_path"])
def test_a_hook_of_a_prepared_block_acts_as_before(layer):
    plain = build(small_models.semantic_fpn())
    prepared = prepare_for_inference(deepcopy(plain))
    for model in (plain, prepared):
        CHANGES["hook"](model.backbone.blocks[1].get_submodule(layer))
    assert_equal(outputs(prepared)[2:], outputs(plain)[2:])


@pytest.mark.parametrize("layer", ["attn.proj_drop", "mlp.drop", "drop_path"])
def test_layers_of_a_prepared_block_drop_as_before(layer):
    """Monte Carlo dropout: the mean of many passes is that without dropout."""
    rates = dict(drop_rate=0.3, drop_path_rate=0.3)
    options = dict(out_indices=(0,), strides=(16,), norm_cfg=dict(type="BN"))
    model = prepare_for_inference(fill(XCiT(TRUNK, 16, **rates, **options)).eval())
    images = synthetic_images(1, 64, 64)
    with torch.inference_mode():
        (expected,) = model(images)
        model.blocks[0].get_submodule(layer).train()
        passes = torch.stack([model(images)[0] for _ in range(300)])
    spread = passes.std(dim=0).mean()
    assert spread > 1e-3 * expected.std()
    assert (passes.mean(dim=0) - expected).abs().mean() < 0.2 * spread
