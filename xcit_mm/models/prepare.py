"""Models prepared for inference: BatchNorm is part of convolutions, layers have faster forms."""

from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
from mmcv.cnn import ConvModule
from mmengine.model import Sequential
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..ops import is_compiled
from ..utils.compat import BATCH_NORMS
from .matmul import FastLinear, has_own_parameters
from .xcit import Pyramid, Upsample2x

# Necks and heads that are faster with channels last on a CPU, and those that read by RoIAlign.
CHANNELS_LAST = {"FPN", "FPNHead", "UPerHead", "RPNHead", "RetinaHead"}
ROI_HEADS = {"StandardRoIHead", "CascadeRoIHead"}


def prepare_for_inference(model: Any) -> Any:
    """Prepare a detector, segmentor, classifier or backbone for inference, in place, and return it.

    The results stay the same to rounding. BatchNorm is folded into the convolution before it,
    except for transposed convolutions outside the pyramid. On a CPU, necks and heads compute with
    channels last and linear layers by oneDNN where this is faster. Layers with adapters, hooks or
    parametrized weights stay, and so do those of a class of the user's own, such as a subclass of
    BatchNorm. A prepared model cannot load a checkpoint.

    Raises:
        RuntimeError: If the model is in training mode, now or when it is called.
    """
    refuse_training(model)
    for module in model.modules():
        _fold_batch_norm(module)
        if type(module) is nn.Linear:
            module.__class__ = FastLinear
    backbone = getattr(model, "backbone", None)
    if isinstance(backbone, Pyramid):
        _use_channels_last(model, backbone)
    model.requires_grad_(False).register_forward_pre_hook(refuse_training)
    return model


def copy_sharing_weights(model: nn.Module) -> Any:
    """Copy a model, but not its weights: the copy shares their memory, and has no gradients."""
    shared: dict[int, Any] = {}
    for module in model.modules():
        # Pruning keeps a tensor with a gradient as an attribute, which deepcopy refuses.
        tensors = [*module.parameters(False), *module.buffers(False), *vars(module).values()]
        for tensor in tensors:
            if type(tensor) is nn.Parameter:
                shared[id(tensor)] = nn.Parameter(tensor.detach(), requires_grad=False)
            elif type(tensor) is Tensor:
                shared[id(tensor)] = tensor.detach()
    return deepcopy(model, shared)


def refuse_training(model: nn.Module, inputs: object = None) -> None:
    """Raise RuntimeError if a prepared model is in training mode. It is a hook of the model."""
    if model.training:
        raise RuntimeError("prepared for inference: call eval(); to train, build the model again")


def _fold_batch_norm(module: Any) -> None:
    """Fold each BatchNorm of a Sequential or ConvModule into the convolution before it."""
    is_conv_module = type(module) is ConvModule and module.order[:2] == ("conv", "norm")
    # LPI is neither. Its BatchNorm stays: it follows a GELU and precedes a padded convolution.
    if not (is_conv_module or type(module) in (nn.Sequential, Sequential)):
        return
    children: list[tuple[str, Any]] = list(module.named_children())
    for (conv_name, conv), (norm_name, norm) in pairwise(children):
        is_conv = type(conv) in (nn.Conv2d, Upsample2x)  # torch cannot fold transposed groups
        is_norm = type(norm) in BATCH_NORMS and norm.track_running_stats
        if is_conv and is_norm and has_own_parameters(conv) and has_own_parameters(norm):
            setattr(module, conv_name, fuse_conv_bn_eval(conv, norm, conv.transposed))
            setattr(module, norm_name, nn.Identity().eval())


def _use_channels_last(model: nn.Module, backbone: Pyramid) -> None:
    """Compute pyramid, neck and heads with channels last if this is faster for all of them."""
    unaffected = ("data_preprocessor", "backbone", "auxiliary_head")
    parts: list[Any] = [part for name, part in model.named_children() if name not in unaffected]
    # The RoIAlign of a compiled mmcv reads a map as (B, C, H, W) in memory.
    faster = CHANNELS_LAST if is_compiled() else CHANNELS_LAST | ROI_HEADS
    is_on_cpu = next(model.parameters()).device.type == "cpu"
    if not is_on_cpu or not {type(part).__name__ for part in parts} <= faster:
        return
    for part in [*parts, *backbone.levels()]:
        if type(part).__name__ not in ROI_HEADS:
            part.to(memory_format=torch.channels_last)
    backbone.memory_format = torch.channels_last
