"""The shipped configs: complete, faithful to the published recipes and of the published size."""

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from paths import CONFIGS
from published_recipes import LEARNING_RATE, decays, published_rates, stepped_rates
from torch import nn

from configs import read_config_file
from xcit_mm.weights.published import PUBLISHED

SIZES = dict(t12="tiny_12", s12="small_12", s24="small_24", m24="medium_24")
LEAVES = dict(
    mask_rcnn="mask-rcnn_xcit-{}-p{}_fpn_amp-ms-crop-3x_coco.py",
    semantic_fpn="fpn_xcit-{}-p{}_8xb2-80k_ade20k-512x512.py",
    upernet="upernet_xcit-{}-p{}_8xb2-160k_ade20k-512x512.py",
)
# Millions, truncated, as published: the whole detector (Table 5); the segmentor without the pyramid's
# transposed convolutions and their BatchNorm (Table 6), where p8 bears the number of p16.
DETECTOR = dict(
    zip(
        [(arch, patch) for arch in SIZES for patch in (16, 8)],
        [26.1, 25.8, 44.3, 43.1, 65.8, 64.5, 101.1, 98.9],
        strict=True,
    )
)
SEGMENTOR = dict(
    semantic_fpn=dict(t12=8.4, s12=30.4, s24=51.8, m24=90.8), upernet=dict(t12=33.7, s12=52.4, s24=73.8, m24=109.0)
)
DROP_PATH = dict(
    mask_rcnn=dict(t12=0.0, s12=0.05, s24=0.1, m24=0.15),
    semantic_fpn=dict(t12=0.0, s12=0.05, s24=0.1, m24=0.2),
    upernet=dict(t12=0.0, s12=0.05, s24=0.1, m24=0.15),
)


def read(task: str, arch: str, patch_size: int) -> Config:
    return read_config_file(CONFIGS / task / LEAVES[task].format(arch, patch_size))


def build(cfg: Config) -> torch.nn.Module:
    init_default_scope(cfg.default_scope)
    with torch.device("meta"):
        return MODELS.build(cfg.model)


def count(model: torch.nn.Module) -> float:
    return sum(p.numel() for p in model.parameters()) / 1e6


def test_the_24_models_and_nothing_else():
    found = {path for task in LEAVES for path in (CONFIGS / task).glob("*.py")}
    wanted = {
        CONFIGS / task / name.format(arch, patch)
        for task, name in LEAVES.items()
        for arch in SIZES
        for patch in (16, 8)
    }
    assert found == wanted


@pytest.mark.parametrize("patch_size", [16, 8])
@pytest.mark.parametrize("arch", SIZES)
@pytest.mark.parametrize("task", LEAVES)
class TestPublishedModels:
    def test_backbone_is_what_the_name_says(self, task, arch, patch_size):
        backbone = read(task, arch, patch_size).model.backbone
        assert (backbone.type, backbone.arch, backbone.patch_size) == ("XCiT", arch, patch_size)
        assert backbone.drop_path_rate == DROP_PATH[task][arch]
        checkpoint = backbone.init_cfg.checkpoint
        assert checkpoint == f"xcit://xcit_{SIZES[arch]}_p{patch_size}_384_dist"
        assert checkpoint.removeprefix("xcit://") in PUBLISHED

    def test_parameters_are_the_published(self, task, arch, patch_size):
        model = build(read(task, arch, patch_size))
        millions = count(model)
        if task == "mask_rcnn":
            assert int(millions * 10) / 10 == DETECTOR[arch, patch_size]
            return
        millions -= sum(count(getattr(model.backbone, level)) for level in ("fpn1", "fpn2"))
        if patch_size == 16:
            assert int(millions * 10) / 10 == SEGMENTOR[task][arch]
        else:
            assert millions == pytest.approx(SEGMENTOR[task][arch], abs=0.05)
        assert model.num_classes == 150


@pytest.mark.parametrize("task", LEAVES)
def test_learning_rate_is_the_published_curve(task):
    cfg = read(task, "s12", 16)
    wrapper = OptimWrapper(torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=cfg.optim_wrapper.optimizer.lr))
    published = published_rates(task)
    np.testing.assert_allclose(stepped_rates(cfg, wrapper, len(published))[:, 0], published, rtol=1e-9)


@pytest.mark.parametrize(
    "task, wrapper", [("mask_rcnn", "AmpOptimWrapper"), ("semantic_fpn", "OptimWrapper"), ("upernet", "OptimWrapper")]
)
def test_optimizer_decays_all_but_layer_norms(task, wrapper):
    cfg = read(task, "t12", 16)
    assert cfg.optim_wrapper.type == wrapper
    cfg.optim_wrapper.type = "OptimWrapper"  # mixed precision needs a GPU
    model = build(cfg)
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    found = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert {group["lr"] for group in groups} == {LEARNING_RATE[task]}
    wanted = decays(task, model)
    assert {name: found[id(p)] for name, (p, _) in wanted.items()} == {
        name: decay for name, (_, decay) in wanted.items()
    }
    assert len(found) == len(wanted)


def test_batch_sizes_and_lengths():
    for task, lengths in dict(mask_rcnn=36, semantic_fpn=80000, upernet=160000).items():
        cfg = read(task, "s12", 16)
        assert cfg.train_dataloader.batch_size == 2
        assert cfg.auto_scale_lr.base_batch_size == 16
        assert lengths in (cfg.train_cfg.get("max_epochs"), cfg.train_cfg.get("max_iters"))
