"""Learning rates of all parameters with layer-wise decay."""

import pytest
import torch
from helpers.configs import read_config_file
from helpers.paths import CONFIGS
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope

from xcit_mm import XCiT

RATE = 0.8
MASK_RCNN = "mask_rcnn/mask-rcnn_xcit-t12-p16_fpn_amp-ms-crop-3x_coco.py"
UPERNET = "upernet/upernet_xcit-t12-p16_8xb2-160k_ade20k-512x512.py"


def scale_of(name: str) -> float:
    """Return the factor of a parameter's rate. t12 has 12 blocks."""
    if name.startswith(("backbone.patch_embed.", "backbone.pos_embeder.")):
        return RATE**13
    if name.startswith("backbone.blocks."):
        return RATE ** (12 - int(name.split(".")[2]))
    return 1.0


@pytest.mark.parametrize("config", [MASK_RCNN, UPERNET])
def test_every_parameter_has_the_rate_of_its_layer_and_the_decay_of_its_recipe(config):
    cfg = read_config_file(CONFIGS / config)
    init_default_scope(cfg.default_scope)
    with torch.device("meta"):
        model = MODELS.build(cfg.model)
    cfg.optim_wrapper.type = "OptimWrapper"  # mixed precision needs a GPU
    recipe = build_optim_wrapper(model, cfg.optim_wrapper).param_groups
    cfg.optim_wrapper.constructor = "LayerDecayOptimWrapperConstructor"
    cfg.optim_wrapper.paramwise_cfg.layer_decay_rate = RATE
    groups = build_optim_wrapper(model, cfg.optim_wrapper).param_groups
    options, recipe_options = (
        {id(p): (group["lr"], group["weight_decay"]) for group in given for p in group["params"]}
        for given in (groups, recipe)
    )
    for name, parameter in model.named_parameters():
        rate, decay = recipe_options[id(parameter)]
        expected = (pytest.approx(rate * scale_of(name)), decay)
        assert options[id(parameter)] == expected, name
    assert groups[0]["lr"] == cfg.optim_wrapper.optimizer.lr  # the log shows it


def test_a_layer_that_two_heads_share_steps_once():
    shared = torch.nn.Linear(2, 2)
    heads = dict(first_head=shared, second_head=torch.nn.Sequential(shared))
    model = torch.nn.ModuleDict(dict(backbone=XCiT("n12", norm_cfg=dict(type="BN")), **heads))
    initial = shared.bias.detach().clone()
    wrapper = dict(
        constructor="LayerDecayOptimWrapperConstructor",
        optimizer=dict(type="SGD", lr=1.0),
        paramwise_cfg=dict(layer_decay_rate=0.5),
    )
    optimizer = build_optim_wrapper(model, wrapper).optimizer
    shared.bias.sum().backward()
    optimizer.step()
    torch.testing.assert_close(initial - shared.bias, torch.ones(2))


def test_layer_decay_without_a_rate_does_not_start():
    constructor = "LayerDecayOptimWrapperConstructor"
    wrapper = dict(constructor=constructor, optimizer=dict(type="SGD", lr=1))
    with pytest.raises(KeyError, match="layer_decay_rate"):
        build_optim_wrapper(torch.nn.Linear(1, 1), wrapper)
