"""Norm layers from an OpenMMLab `norm_cfg`, with or without mmcv."""

from typing import Any

from mmengine.registry import MODELS
from torch import nn

# The layers that mmcv registers under these names, where mmcv is not installed or not imported.
_TORCH = dict(BN=nn.BatchNorm2d, BN2d=nn.BatchNorm2d, SyncBN=nn.SyncBatchNorm, GN=nn.GroupNorm)


def build_norm(cfg: dict, channels: int) -> nn.Module:
    """Build the layer that mmcv's `build_norm_layer` would build of `type`, `requires_grad` and other arguments.

    Raises:
        KeyError: If the config has no type or the type is not registered.
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
        raise KeyError(f"norm_cfg has type={name!r}, which is not registered: give BN or SyncBN, or import its module")
    return layer
