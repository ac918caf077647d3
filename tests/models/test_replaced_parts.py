"""Parts of a backbone that are replaced, wrapped or hooked act at every size."""

import pytest
import torch
from helpers.layer_changes import CHANGES
from helpers.pages import blocks
from helpers.paths import ROOT
from torch import nn
from torch.nn.modules.module import register_module_full_backward_hook

from xcit_mm import XCiT
from xcit_mm.models import XCA

TINY = dict(embed_dim=32, depth=2, num_heads=4, eta=1.0)
BN = dict(type="BN")


def test_peft_trains_every_adapter_as_the_page_shows():
    pytest.importorskip("peft")
    page = blocks(ROOT / "docs" / "advanced-training.md")
    (code,) = (code for _, code in page if "LoraConfig" in code)
    torch.manual_seed(0)
    backbone = XCiT(TINY, out_indices=(0, 1), strides=(8, 16), norm_cfg=BN)
    namespace = dict(model=nn.ModuleDict(dict(backbone=backbone)))
    adapt, merge = code.split("# ... train\n")
    exec(adapt, namespace)
    backbone = namespace["model"].backbone
    x = torch.randn(2, 3, 240, 240)  # pixels, for which 'auto' is 'covariance' without adapters
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


def test_a_backward_hook_on_all_modules_sees_each_layer_on_large_images():
    attention = XCA(32, 4)
    seen = []
    handle = register_module_full_backward_hook(lambda layer, *gradients: seen.append(layer))
    try:
        attention(torch.randn(2, 500, 32, requires_grad=True)).sum().backward()
    finally:
        handle.remove()
    assert attention.qkv in seen


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_layer_of_the_attention_has_the_same_effect_on_large_images(change):
    torch.manual_seed(0)
    attention = XCA(32, 4)
    x = torch.randn(2, 500, 32)
    unchanged = attention(x)
    CHANGES[change](attention.qkv)
    changed = attention(x)
    attention.implementation = "plain"
    expected = attention(x)
    assert not torch.allclose(expected, unchanged)
    torch.testing.assert_close(changed, expected)
