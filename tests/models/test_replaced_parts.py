"""Parts of a backbone that are replaced, wrapped, hooked or transformed act at every size."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pages import blocks
from paths import ROOT
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from xcit_mm import XCiT, XCiTClassifier
from xcit_mm.models import XCA
from xcit_mm.models.xcit import LPI

TINY = dict(embed_dim=32, depth=2, num_heads=4, eta=1.0)
BN = dict(type="BN")
# Tokens of 32 channels for which 'auto' is 'plain' and 'covariance'.
SIZES = (80, 240)
every_size = pytest.mark.parametrize("size", SIZES)


def build(**kwargs: Any) -> XCiT:
    torch.manual_seed(0)
    return XCiT(TINY, out_indices=(0, 1), strides=(8, 16), norm_cfg=BN, **kwargs)


class LowRank(nn.Module):
    """LoRA: a frozen layer and a trained product of two small ones."""

    def __init__(self, base: nn.Linear | nn.Conv2d) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, base.weight[0].numel()) / 10)
        self.up = nn.Parameter(torch.randn(len(base.weight), 2) / 10)

    def merged(self) -> nn.Module:
        merged = copy.deepcopy(self.base)
        merged.weight.data += (self.up @ self.down).view_as(merged.weight)
        return merged

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.base, nn.Conv2d):
            return self.base(x) + torch.einsum("oi, bihw -> bohw", self.up @ self.down, x)
        return self.base(x) + x @ self.down.T @ self.up.T


def replace(model: nn.Module, kind: type, function: Callable[[Any], nn.Module]) -> None:
    """Replace qkv and proj of attentions and the projection of the positional encoding, if they are of a type."""
    for parent in list(model.modules()):
        for name in ("qkv", "proj", "token_projection"):
            if isinstance(child := getattr(parent, name, None), kind):
                setattr(parent, name, function(child))


@every_size
@pytest.mark.parametrize("make", [build, lambda: XCiTClassifier(TINY, num_classes=3, norm_cfg=BN)])
def test_low_rank_adapters_train_and_merging_them_keeps_the_output(size, make):
    model = make().eval()
    replace(model, nn.Linear | nn.Conv2d, LowRank)
    x = torch.randn(2, 3, size, size)
    adapted = model(x)
    sum(out.square().mean() for out in adapted).backward()
    for name, parameter in model.named_parameters():
        if name.endswith((".down", ".up")):
            assert parameter.grad is not None and parameter.grad.any(), name
    replace(model, LowRank, LowRank.merged)
    torch.testing.assert_close(model(x), adapted, atol=1e-5, rtol=1e-5)


@every_size
def test_peft_trains_every_adapter_as_the_page_shows(size):
    pytest.importorskip("peft")
    (code,) = (code for _, code in blocks(ROOT / "docs" / "advanced-training.md") if "LoraConfig" in code)
    namespace = dict(model=nn.ModuleDict(dict(backbone=build())))
    adapt, merge = code.split("# ... train\n")
    exec(adapt, namespace)
    backbone = namespace["model"].backbone
    x = torch.randn(2, 3, size, size)
    for _ in range(2):  # LoRA starts with one factor of zeros
        sum(out.square().mean() for out in backbone(x)).backward()
        adapters = {name: p for name, p in backbone.named_parameters() if "lora_" in name}
        for parameter in adapters.values():
            parameter.data -= 0.1 * parameter.grad
    assert len(adapters) == 8 and all(parameter.grad.any() for parameter in adapters.values())
    expected = backbone.eval()(x)
    exec(merge, namespace)
    assert type(namespace["model"].backbone.blocks[0].attn.qkv) is nn.Linear
    torch.testing.assert_close(namespace["model"].backbone(x), expected, atol=1e-5, rtol=1e-5)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def wrap(layer: nn.Linear) -> None:
    forward = layer.forward
    layer.forward = lambda x: 2 * forward(x)  # type: ignore[method-assign]


def set_pruned_weight(layer: nn.Linear) -> None:
    """Prune a layer and change the parameter from which its weight is computed at each call."""
    prune.random_unstructured(layer, "weight", 0.5)
    layer.weight_orig.data *= 2


CHANGES: dict[str, Callable[[Any], object]] = {
    "hook": lambda layer: layer.register_forward_hook(lambda layer, given, out: 2 * out),
    "pre-hook": lambda layer: layer.register_forward_pre_hook(lambda layer, given: 2 * given[0]),
    "prune": set_pruned_weight,
    "parametrization": lambda layer: parametrize.register_parametrization(layer, "weight", Doubled()),
    "wrapped": wrap,
    "no bias": lambda layer: setattr(layer, "bias", None),
}


@pytest.mark.parametrize("name", ["qkv", "proj"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("implementation", ["covariance", "auto"])
def test_changed_layers_of_the_attention_have_the_same_effect_on_large_images(name, change, implementation):
    torch.manual_seed(0)
    attention = XCA(32, 4, implementation=implementation)
    x = torch.randn(2, 500, 32)
    unchanged = attention(x)
    CHANGES[change](getattr(attention, name))
    found = attention(x)
    attention.implementation = "plain"
    expected = attention(x)
    assert not torch.allclose(expected, unchanged) or change == "no bias"
    torch.testing.assert_close(found, expected)


def test_gradients_pass_backward_hooks_of_the_attention():
    attention, fired = XCA(32, 4, implementation="covariance"), []
    attention.qkv.register_full_backward_hook(lambda *_: fired.append("qkv"))
    attention(torch.randn(2, 500, 32, requires_grad=True)).sum().backward()
    assert fired == ["qkv"]


@pytest.mark.parametrize(
    "change",
    [
        lambda: nn.Conv2d(8, 8, 5, padding=2, groups=8),
        lambda: nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8),
        lambda: nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular", groups=8),
    ],
    ids=["kernel", "dilation", "padding_mode"],
)
def test_other_convolutions_of_the_lpi_act_on_large_maps(change):
    layer = LPI(8, BN).eval()
    layer.conv1 = change()
    x = torch.randn(1, 6400, 8)
    with torch.no_grad():
        found = layer(x, 80, 80)
    torch.testing.assert_close(found, layer(x, 80, 80).detach())
