"""Linear probing trains BatchNorm and a 1x1 convolution, and leaves the trunk as it was loaded."""

import copy

import pytest
import torch
from helpers.golden import fill
from helpers.paths import CONFIGS
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner

from xcit_mm import XCiTClassifier
from xcit_mm.weights.published import PUBLISHED
from xcit_mm.weights.reader import load_from_file

ADE20K = sorted((CONFIGS / "linear").glob("*ade20k*.py"))


@pytest.mark.parametrize("path", ADE20K, ids=lambda path: path.stem)
def test_only_the_linear_layer_is_trained(path):
    cfg = Config.fromfile(path)
    assert cfg.model.backbone.init_cfg.checkpoint.removeprefix("xcit://") in PUBLISHED
    assert ("dino" in path.stem) == ("dino" in cfg.model.backbone.init_cfg.checkpoint)
    init_default_scope(cfg.default_scope)
    with torch.device("meta"):
        model = MODELS.build(cfg.model)
    trained = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {
        "decode_head.norm.weight": (384,),
        "decode_head.norm.bias": (384,),
        "decode_head.conv_seg.weight": (150, 384, 1, 1),
        "decode_head.conv_seg.bias": (150,),
    }
    assert cfg.train_cfg.max_iters == 40_000 and cfg.param_scheduler[-1].end == 40_001


@pytest.mark.forks
def test_two_iterations_change_the_head_alone(shapes, tmp_path):
    weights = fill(XCiTClassifier("n12", num_classes=10)).state_dict()
    torch.save(dict(model=weights), tmp_path / "weights.pth")
    cfg = Config.fromfile(CONFIGS / "linear" / "linear_xcit-n12-p16_camvid.py")
    cfg.work_dir = str(tmp_path / "work")
    cfg.model.backbone.init_cfg.checkpoint = str(tmp_path / "weights.pth")
    cfg.train_cfg.update(max_iters=2, val_interval=2)
    cfg.train_dataloader.batch_size = 2
    for split in ("train", "val", "test"):
        cfg[f"{split}_dataloader"].update(num_workers=0, persistent_workers=False)
        cfg[f"{split}_dataloader"].dataset.data_root = str(shapes)
    runner = Runner.from_cfg(cfg)
    initial = copy.deepcopy(runner.model.state_dict())
    runner.train()
    state = load_from_file(str(tmp_path / "work" / "iter_2.pth"))["state_dict"]
    changed = {name for name, value in state.items() if not torch.equal(value, initial[name])}
    head = ("norm.weight", "norm.running_mean", "conv_seg.weight")
    assert changed >= {f"decode_head.{name}" for name in head}
    trunk = runner.model.backbone.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in trunk.items())
    assert not any(module.training for module in runner.model.backbone.blocks)
