"""Norm layers and stochastic depth equal mmcv's to the bit, without needing mmcv."""

import subprocess
import sys

import pytest
import torch
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks import DropPath as TheirDropPath
from mmengine.registry import MODELS
from torch import nn

from xcit_mm.models.layers import DropPath
from xcit_mm.models.norms import build_norm

WITHOUT_MMCV = """
import sys
sys.modules["mmcv"] = None  # as if it were not installed
import torch, xcit_mm
arch = dict(embed_dim=32, depth=6, num_heads=4, eta=1.0)
for norm in ("BN", "SyncBN"):
    model = xcit_mm.XCiT(arch, drop_path_rate=0.1, norm_cfg=dict(type=norm)).train(norm == "BN")
    maps = model(torch.zeros(2, 3, 64, 64))
    print(type(model.blocks[0].local_mp.bn).__name__, *(m.shape[-1] for m in maps))
"""


@MODELS.register_module()
class _OwnNorm(nn.Identity):
    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.options = (channels, eps)


@pytest.mark.parametrize(
    "cfg",
    [
        dict(type="BN"),
        dict(type="SyncBN", requires_grad=True),
        dict(type="BN2d", requires_grad=False, momentum=0.03),
        dict(type="BN", eps=1e-3, track_running_stats=False),
        dict(type=nn.BatchNorm2d, affine=False),
        dict(type="GN", num_groups=4),
        dict(type="_OwnNorm"),
    ],
    ids=str,
)
def test_norm_equals_the_norm_of_mmcv(cfg):
    before = dict(cfg)
    ours, theirs = build_norm(cfg, 8), build_norm_layer(cfg, 8)[1]
    assert cfg == before
    assert type(ours) is type(theirs) and repr(ours) == repr(theirs)
    assert [(n, p.requires_grad) for n, p in ours.named_parameters()] == [
        (n, p.requires_grad) for n, p in theirs.named_parameters()
    ]
    if cfg["type"] == "_OwnNorm":
        assert ours.options == theirs.options


def test_an_unknown_norm_is_named():
    with pytest.raises(KeyError, match=r"type='BatchNorm'.*give BN or SyncBN"):
        build_norm(dict(type="BatchNorm"), 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_drop_path_drops_the_samples_that_mmcv_drops(dtype, rate):
    x = torch.randn(64, 5, 4).to(dtype)
    out = []
    for layer in (DropPath(rate), TheirDropPath(rate)):
        torch.manual_seed(0)
        out.append(layer(x))
        assert layer.eval()(x) is x
    assert torch.equal(*out)
    assert out[0][:, 0, 0].eq(0).any() == (rate > 0)


def test_the_backbone_runs_without_mmcv():
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", WITHOUT_MMCV], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.splitlines() == ["BatchNorm2d 16 8 4 2", "SyncBatchNorm 16 8 4 2"]
