"""Norm layers and stochastic depth are mmcv's, bit for bit, though mmcv is not needed for them."""

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
model = xcit_mm.XCiT(arch, drop_path_rate=0.1, norm_cfg=dict(type=sys.argv[1]))
maps = model(torch.zeros(2, 3, 64, 64)) if sys.argv[1] == "BN" else model.eval()(torch.zeros(2, 3, 64, 64))
print(*(type(m).__name__ for m in model.modules() if "Batch" in type(m).__name__), [m.shape[-1] for m in maps])
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
def test_norm_is_mmcv_s(cfg):
    before = dict(cfg)
    ours, theirs = build_norm(cfg, 8), build_norm_layer(cfg, 8)[1]
    assert cfg == before
    assert type(ours) is type(theirs) and repr(ours) == repr(theirs)
    assert [(n, p.requires_grad) for n, p in ours.named_parameters()] == [
        (n, p.requires_grad) for n, p in theirs.named_parameters()
    ]
    if cfg["type"] == "_OwnNorm":
        assert ours.options == theirs.options


def test_unknown_norm_is_named():
    with pytest.raises(KeyError, match=r"type='BatchNorm'.*give BN or SyncBN"):
        build_norm(dict(type="BatchNorm"), 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_drop_path_draws_as_mmcv_s(dtype, rate):
    x = torch.randn(64, 5, 4).to(dtype)
    out = []
    for layer in (DropPath(rate), TheirDropPath(rate)):
        torch.manual_seed(0)
        out.append(layer(x))
        assert layer.eval()(x) is x
    assert torch.equal(*out)
    assert out[0][:, 0, 0].eq(0).any() == (rate > 0)


@pytest.mark.parametrize("norm", ["BN", "SyncBN"])
def test_the_backbone_needs_no_mmcv(norm):
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", WITHOUT_MMCV, norm], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    assert dict(BN="BatchNorm2d", SyncBN="SyncBatchNorm")[norm] in run.stdout and "[16, 8, 4, 2]" in run.stdout
