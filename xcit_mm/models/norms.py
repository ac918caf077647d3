"""Norm layers from an OpenMMLab `norm_cfg`, with mmcv or without."""

from typing import Any

from mmengine.registry import MODELS
from torch import nn

__all__ = ["build_norm"]

# What mmcv registers under these names, for those who have no mmcv.
_TORCH = dict(BN=nn.BatchNorm2d, BN2d=nn.BatchNorm2d, SyncBN=nn.SyncBatchNorm)


def build_norm(cfg: dict, channels: int) -> nn.Module:
    """The layer that mmcv's `build_norm_layer` would build.

    Args:
        cfg: Its `type`, a name or a class, whether it `requires_grad`, and arguments of that type.
        channels: Of the maps to normalise.

    Raises:
        KeyError: If no such type is registered, or none is given.
    """
    if "type" not in cfg:
        raise KeyError(f"norm_cfg={cfg} has no type: give BN or SyncBN")
    options = {"eps": 1e-5, **cfg}
    kind, requires_grad = options.pop("type"), options.pop("requires_grad", True)
    layer = kind if isinstance(kind, type) else _registered(kind)
    norm = layer(num_channels=channels, **options) if layer is nn.GroupNorm else layer(channels, **options)
    return norm.requires_grad_(requires_grad)


def _registered(name: str) -> Any:
    with MODELS.switch_scope_and_registry(None) as registry:
        layer = registry.get(name) or _TORCH.get(name)
    if layer is None:
        raise KeyError(f"norm_cfg has type={name!r}, which is not registered: give BN or SyncBN, or import what has it")
    return layer
