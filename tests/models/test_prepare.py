"""A model prepared for inference gives the results of the model, and cannot be trained."""

from functools import partial
from typing import Any

import pytest
import torch
from helpers import small_models
from helpers.golden import assert_close, fill
from helpers.layer_changes import CHANGES
from helpers.small_models import TRUNK, build, synthetic_images
from mmcv.cnn import ConvModule
from torch import Tensor, nn

from xcit_mm.models import XCiT, XCiTClassifier, matmul, prepare_for_inference
from xcit_mm.models.xcit import MLP

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


def assert_prepared_gives_the_same(model: Any) -> None:
    expected = outputs(model)
    assert_close(outputs(prepare_for_inference(model)), expected)


@pytest.mark.forks
@pytest.mark.parametrize(
    "recipe",
    [
        small_models.mask_rcnn,
        small_models.retinanet,
        small_models.semantic_fpn,
        partial(small_models.semantic_fpn, neck=dict(norm_cfg=dict(type="GN", num_groups=8))),
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


@pytest.mark.parametrize("is_slow", [True, False])
@pytest.mark.parametrize(
    "network, options",
    [(XCiT, dict(out_indices=(0, 1, 2, 3))), (XCiTClassifier, dict(as_tuple=True))],
)
def test_a_backbone_alone_and_a_classifier_give_the_same(network, options, is_slow, monkeypatch):
    """By MKL and by oneDNN."""
    monkeypatch.setattr(matmul, "has_slow_mkl", lambda: is_slow)
    model = fill(network(TRUNK, 8, norm_cfg=dict(type="BN"), **options))
    images = synthetic_images(*SHAPE)
    with torch.inference_mode():
        expected = model(images)
        actual = prepare_for_inference(model)(images)
        assert len(prepare_for_inference(model)(images[:0])[0]) == 0
    assert_close(actual, expected)
    assert all(level.is_contiguous() for level in actual)


def test_a_bias_of_other_strides_gives_the_same_by_onednn(monkeypatch):
    mlp = fill(MLP(16))
    mlp.fc1.bias = nn.Parameter(mlp.fc1.bias.detach()[:1].expand(64))
    x = torch.randn(5, 16)
    with torch.no_grad():
        monkeypatch.setattr(matmul, "has_slow_mkl", lambda: False)
        expected = mlp(x)
        monkeypatch.setattr(matmul, "has_slow_mkl", lambda: True)
        assert_close([mlp(x)], [expected])


def test_forward_mode_derivatives_are_not_taken_by_onednn(monkeypatch):
    """Which has none, so they would be zeros."""
    monkeypatch.setattr(matmul, "has_slow_mkl", lambda: True)
    layer = matmul.FastLinear(4, 3)
    x, direction = torch.randn(2, 5, 4)
    with torch.no_grad():
        _, derivative = torch.func.jvp(layer, (x,), (direction,))
    assert_close([derivative], [direction @ layer.weight.detach().T])


def test_a_transposed_convolution_of_groups_gives_the_same():
    layers = nn.Sequential(nn.ConvTranspose2d(4, 4, 2, groups=2), nn.BatchNorm2d(4))
    x = torch.randn(2, 4, 5, 5)
    layers(x)
    expected = layers.eval()(x).detach()
    assert_close([prepare_for_inference(layers)(x)], [expected])


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
    with pytest.raises(RuntimeError, match="Unexpected key"):  # those of the folded BatchNorm
        model.load_state_dict(build(small_models.upernet()).state_dict())


class OwnAttention(nn.Module):
    """A user's own in place of XCA, which takes tokens alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=1, keepdim=True)


class OwnNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class OwnConvModule(ConvModule):
    def forward(self, x: Tensor, *options: bool) -> Tensor:
        return self.conv(x)


def become(own: type) -> Any:
    return lambda layer: setattr(layer, "__class__", own)


@pytest.mark.parametrize(
    "name, change",
    [
        ("backbone.fpn1.1", CHANGES["hook"]),  # the BatchNorm between two layers
        ("backbone.fpn1.1", become(OwnNorm)),
        ("decode_head.scale_heads.0.0", become(OwnConvModule)),
        ("backbone.fpn1.2", CHANGES["hook"]),  # the GELU between them
        ("backbone.fpn1.0", CHANGES["pruned"]),
        ("backbone.blocks.1", lambda block: setattr(block, "attn", OwnAttention())),
        ("backbone.blocks.2.attn.proj", CHANGES["parametrized"]),
    ],
)
def test_a_changed_layer_acts_as_before(name, change):
    model = build(small_models.semantic_fpn())
    change(model.get_submodule(name))
    assert_prepared_gives_the_same(model)
