"""Whether a trunk has the paper's layers alone, as bands of rows need it."""

from functools import cache
from typing import Any

import torch
from torch import nn

from ..utils.compat import BATCH_NORMS, is_hooked
from .matmul import FastLinear, is_unmodified
from .prepare import refuse_training
from .xcit import XCA, LinearPatchEmbed, Trunk, XCiT


def check_trunk(trunk: Any, is_training: bool = False) -> None:
    """Raise ValueError unless a trunk is an XCiT whose layers are those of the paper.

    A band of rows is computed from as many rows around it as the paper's layers read. A changed
    layer could read more, so each layer is compared with the same layer in a new trunk.

    Args:
        is_training: Whether the trunk is to be trained by bands. If not, layers in training mode
            are an error too.
    """
    otherwise = "set with_cp=True" if is_training else "predict in tiles"
    network = type(trunk).__name__
    if type(trunk) not in (Trunk, XCiT):
        problem = f"{network} is not XCiT or Trunk itself, and sees only whole images"
        raise ValueError(f"{problem}: {otherwise}")
    layers = dict(trunk.named_modules())
    papers = dict(_build_again(trunk).named_modules())
    for name in {**papers, **layers}:  # also layers that were added
        own: Any = layers.get(name)
        is_same = _form(own) == _form(papers.get(name)) and not is_hooked(own, (refuse_training,))
        if not is_same or (type(own) is XCA and not is_unmodified(own)):
            problem = f"{name or network} has hooks, adapters or layers other than the paper's"
            raise ValueError(f"{problem}: merge or remove them, or {otherwise}")
        if own.training and not is_training:
            raise ValueError(f"{name or network} is in training mode: call eval()")


def _build_again(trunk: Any) -> Trunk:
    """Return a new trunk without weights, with its pyramid if it has one."""
    options: dict[str, Any] = dict(
        in_channels=trunk.in_channels,
        patch_embed="linear" if type(trunk.patch_embed) is LinearPatchEmbed else "conv",
        use_pos=trunk.pos_embeder is not None,
    )
    if type(trunk) is XCiT:
        options["strides"] = trunk.strides
    return _build(trunk.__class__, trunk.arch, trunk.patch_size, trunk.out_indices, **options)


@cache  # a training asks in each iteration
def _build(network: Any, arch: Any, *arguments: Any, **options: Any) -> Trunk:
    with torch.device("meta"):
        return network(arch._asdict(), *arguments, **options)


def _form(layer: Any) -> tuple:
    """Return what determines which neighbours a layer sees: its class, parameters and sizes."""
    kind = type(layer)
    # A BatchNorm that was folded is an Identity. One without statistics sees all places.
    if kind is nn.Identity or (kind in BATCH_NORMS and layer.running_mean is not None):
        return ("norm",)
    kind = nn.Linear if kind is FastLinear else kind
    sizes = "kernel_size", "stride", "padding", "dilation", "padding_mode", "normalized_shape"
    names = getattr(layer, "_parameters", ())  # which FSDP takes away
    return kind, *names, *(getattr(layer, size, None) for size in sizes)
