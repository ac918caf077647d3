"""The shipped configs build models of the published sizes and train with the published recipes."""

import shutil

import numpy as np
import pytest
import torch
import yaml
from helpers.configs import read_config_file
from helpers.paths import CONFIGS, ROOT
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS, init_default_scope
from torch import nn

from xcit_mm.weights.published import PUBLISHED

pytestmark = pytest.mark.forks

UNLISTED = ("_base_", "classification", "demo")
INDEX = yaml.safe_load((ROOT / "model-index.yml").read_text())["Import"]
MODELS_BY_CONFIG = {
    ROOT / model["Config"]: model
    for file in INDEX
    for model in yaml.safe_load((ROOT / file).read_text())["Models"]
}
ARCHS = ("t12", "s12", "s24", "m24")
LEAVES = dict(
    mask_rcnn="mask-rcnn_xcit-{}-p{}_fpn_amp-ms-crop-3x_coco.py",
    semantic_fpn="fpn_xcit-{}-p{}_8xb2-80k_ade20k-512x512.py",
    upernet="upernet_xcit-{}-p{}_8xb2-160k_ade20k-512x512.py",
)
# Published numbers of parameters, in millions, truncated: the whole detector (Table 5), and the
# segmentor without the pyramid's transposed convolutions and their BatchNorm (Table 6, which has
# one number for p16 and p8).
DETECTOR = {
    ("t12", 16): 26.1,
    ("t12", 8): 25.8,
    ("s12", 16): 44.3,
    ("s12", 8): 43.1,
    ("s24", 16): 65.8,
    ("s24", 8): 64.5,
    ("m24", 16): 101.1,
    ("m24", 8): 98.9,
}
SEGMENTOR = dict(
    semantic_fpn=dict(t12=8.4, s12=30.4, s24=51.8, m24=90.8),
    upernet=dict(t12=33.7, s12=52.4, s24=73.8, m24=109.0),
)
DROP_PATH = dict(
    mask_rcnn=dict(t12=0.0, s12=0.05, s24=0.1, m24=0.15),
    semantic_fpn=dict(t12=0.0, s12=0.05, s24=0.1, m24=0.2),
    upernet=dict(t12=0.0, s12=0.05, s24=0.1, m24=0.15),
)

DECAY = dict(mask_rcnn=0.05, semantic_fpn=0.01, upernet=0.01)
LEARNING_RATE = dict(mask_rcnn=1e-4, semantic_fpn=6e-5, upernet=6e-5)

# Iterations; more than 1, because warm-up counts iterations and the schedule counts epochs.
PER_EPOCH = 40
LENGTH = dict(mask_rcnn=36 * PER_EPOCH, semantic_fpn=80000, upernet=160000)  # iterations


def read(task: str, arch: str, patch_size: int) -> Config:
    return read_config_file(CONFIGS / task / LEAVES[task].format(arch, patch_size))


def build(cfg: Config) -> nn.Module:
    init_default_scope(cfg.default_scope)
    with torch.device("meta"):
        return MODELS.build(cfg.model)


def count(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


@pytest.mark.parametrize("path", sorted(MODELS_BY_CONFIG), ids=lambda path: path.stem)
def test_a_config_has_the_hooks_for_long_runs_and_the_metadata_of_its_schedule(path):
    cfg = read_config_file(path)
    assert {"StrictLoadHook", "NonFiniteHook"} <= {hook["type"] for hook in cfg.custom_hooks}
    assert cfg.default_hooks.checkpoint.type == "ResumableCheckpointHook"
    model = MODELS_BY_CONFIG[path]
    metadata = model["Metadata"]
    gpus = 8 if metadata["Training Data"] in ("COCO", "ADE20K") else 1
    assert model["Name"] == path.stem
    assert metadata["Batch Size"] == gpus * cfg.train_dataloader.batch_size
    assert metadata.get("Epochs") == cfg.train_cfg.get("max_epochs")
    assert metadata.get("Iterations") == cfg.train_cfg.get("max_iters")


def test_every_config_of_a_recipe_is_in_the_index():
    shipped = {path for path in CONFIGS.glob("*/*.py") if path.parent.name not in UNLISTED}
    assert MODELS_BY_CONFIG.keys() >= shipped


@pytest.mark.parametrize("patch_size", [16, 8])
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("task", LEAVES)
def test_a_leaf_builds_the_published_model(task, arch, patch_size):
    cfg = read(task, arch, patch_size)
    backbone = cfg.model.backbone
    assert (backbone.type, backbone.arch, backbone.patch_size) == ("XCiT", arch, patch_size)
    assert backbone.drop_path_rate == DROP_PATH[task][arch]
    checkpoint = backbone.init_cfg.checkpoint
    _, *facts, _, _, _ = PUBLISHED[checkpoint.removeprefix("xcit://")]
    assert facts == [arch, patch_size, 384, "ImageNet, distilled"]

    model = build(cfg)
    metadata = MODELS_BY_CONFIG[CONFIGS / task / LEAVES[task].format(arch, patch_size)]["Metadata"]
    assert count(model) == metadata["Parameters"]
    if task == "mask_rcnn":
        assert int(count(model) / 1e5) / 10 == DETECTOR[arch, patch_size]
        return
    assert model.num_classes == 150
    millions = (count(model) - count(model.backbone.fpn1, model.backbone.fpn2)) / 1e6
    if patch_size == 16:
        assert int(millions * 10) / 10 == SEGMENTOR[task][arch]
    else:
        assert millions == pytest.approx(SEGMENTOR[task][arch], abs=0.05)


def published_rates(task: str) -> np.ndarray:
    """Return the learning rate before each iteration."""
    iteration = np.arange(LENGTH[task])
    if task == "mask_rcnn":
        warm_up = 0.001 + 0.999 * np.minimum(iteration / 500, 1)
        decay = 0.1 ** np.digitize(iteration // PER_EPOCH, (27, 33))
    else:
        warm_up = 1e-6 + (1 - 1e-6) * np.minimum(iteration / 1500, 1)
        decay = 1 - iteration / LENGTH[task]
    return LEARNING_RATE[task] * warm_up * decay


@pytest.mark.parametrize("task", LEAVES)
def test_the_learning_rate_follows_the_published_schedule(task):
    cfg = read(task, "s12", 16)
    init_default_scope(cfg.default_scope)
    optimizer = torch.optim.AdamW([torch.zeros(1)], lr=cfg.optim_wrapper.optimizer.lr)
    schedulers = [
        PARAM_SCHEDULERS.build(schedule, default_args=dict(optimizer=optimizer))
        for schedule in cfg.param_scheduler
    ]
    rates = []
    for iteration in range(LENGTH[task]):
        rates.append(optimizer.param_groups[0]["lr"])
        for scheduler in schedulers:
            if not scheduler.by_epoch or (iteration + 1) % PER_EPOCH == 0:
                scheduler.step()
    np.testing.assert_allclose(rates, published_rates(task), rtol=1e-9)


@pytest.mark.parametrize("task", LEAVES)
def test_the_optimizer_decays_all_parameters_but_layer_norms(task):
    cfg = read(task, "t12", 16)
    assert (cfg.optim_wrapper.type == "AmpOptimWrapper") == (task == "mask_rcnn")
    assert (cfg.train_dataloader.batch_size, cfg.auto_scale_lr.base_batch_size) == (2, 16)
    cfg.optim_wrapper.type = "OptimWrapper"  # mixed precision needs a GPU
    model = build(cfg)
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert {group["lr"] for group in groups} == {LEARNING_RATE[task]}
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    of_norms = {id(p) for norm in norms for p in norm.parameters()}
    assert decays == {id(p): 0 if id(p) in of_norms else DECAY[task] for p in model.parameters()}


@pytest.mark.parametrize("name", ["fpn_xcit-n12-p16_camvid.py", "mask-rcnn_xcit-n12-p16_nuts.py"])
def test_configs_to_copy_need_no_file_of_this_package(name, tmp_path):
    """The scripts of mmdet and mmseg cannot read `xcit_mm::`."""
    shipped = CONFIGS / "demo" / name
    assert "xcit_mm::" not in shipped.read_text()
    copied = shutil.copy(shipped, tmp_path)
    assert Config.fromfile(copied).to_dict() == Config.fromfile(shipped).to_dict()
