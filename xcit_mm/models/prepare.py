"""Models prepared for inference: layers that only training needs separately become one layer."""

from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
from mmcv.cnn import ConvModule
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..ops import is_compiled
from ..utils.compat import BatchNorm, has_hooks
from . import fast
from .fast import has_own_parameters, is_unmodified
from .products import FastLinear, conv_gelu
from .xcit import Block, ConvPatchEmbed, Pyramid, Upsample2x

# Necks and heads that are faster with channels last on a CPU, and those that read by RoIAlign.
CHANNELS_LAST = {"FPN", "FPNHead", "UPerHead", "RPNHead", "RetinaHead"}
ROI_HEADS = {"StandardRoIHead", "CascadeRoIHead"}


def prepare_for_inference(model: Any) -> Any:
    """Prepare a detector, segmentor, classifier or backbone for inference, in place, and return it.

    The results stay the same to rounding. BatchNorm is folded into the convolution before it,
    LayerScale into the last layer of each branch of a block, whose product also adds the residual.
    Stem and pyramid compute a GELU with the convolution before it. On a CPU, necks and heads
    compute with channels last and linear layers by oneDNN where this is faster. Layers with
    adapters, hooks or parametrized weights stay. A prepared model cannot load a checkpoint.

    Raises:
        RuntimeError: If the model is in training mode, now or when it is called.
    """
    _refuse_training(model)
    for module in model.modules():
        _fold_batch_norm(module)
        if type(module) is nn.Linear and has_own_parameters(module):
            module.__class__ = FastLinear
    for module in model.modules():
        if type(module) is Block:
            _fold_layer_scale(module)
        elif type(module) is ConvPatchEmbed:
            _fuse_gelu_of_stem(module.proj)
        elif isinstance(module, Pyramid):
            for level in module.levels():
                _fuse_gelu_of_level(level)
    backbone = getattr(model, "backbone", None)
    if isinstance(backbone, Pyramid) and not has_hooks(backbone):
        _use_channels_last(model, backbone)
    model.requires_grad_(False).register_forward_pre_hook(_refuse_training)
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


def _refuse_training(model: nn.Module, inputs: object = None) -> None:
    if model.training:
        raise RuntimeError("prepared for inference: call eval(); to train, build the model again")


class FoldedBlock(Block):
    """A block in inference whose LayerScale is part of the last layer of each branch.

    The residual is added inside that layer's product, unless a layer has since been changed, or
    drops values (Monte Carlo dropout): the residual must be spared.
    """

    def add_attention(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        normed = self.norm1(x)
        keeps_all = self._keeps_paths() and not self.attn.proj_drop.training
        if keeps_all and fast.uses_covariance(self.attn, normed):
            return fast.covariance_attention(self.attn, normed, x, valid)
        return x + self.drop_path(self.attn(normed, valid=valid))

    def add_interaction(
        self, x: Tensor, height: int, width: int, valid: Tensor | None = None
    ) -> Tensor:
        if valid is None and self._uses_rows(self.local_mp, self.norm3, x):
            grid = x.unflatten(1, (height, width))
            return fast.add_lpi(self.local_mp, self.norm3, grid).flatten(1, 2)
        return x + self.drop_path(self.local_mp(self.norm3(x), height, width, valid=valid))

    def add_mlp(self, x: Tensor) -> Tensor:
        if self._uses_rows(self.mlp, self.norm2, x):
            return fast.add_mlp(self.mlp, self.norm2, x)
        return x + self.drop_path(self.mlp(self.norm2(x)))

    def _keeps_paths(self) -> bool:
        """Return whether stochastic depth passes all branches, and no hook asks for it."""
        return not self.drop_path.training and not has_hooks(self.drop_path)

    def _uses_rows(self, branch: nn.Module, norm: nn.Module, x: Tensor) -> bool:
        is_plain = self._keeps_paths() and has_own_parameters(norm)
        return is_plain and fast.uses_rows(branch, x)


class GELUConv(nn.Conv2d):
    """A convolution and the exact GELU after it."""

    def forward(self, input: Tensor) -> Tensor:
        return conv_gelu(input, self)


class GELUUpsample(Upsample2x):
    """An upsampling and the exact GELU after it."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return fast.upsample(self, x, gelu=True)


def _fold_layer_scale(block: Any) -> None:
    """Fold LayerScale into each branch's last layer: gamma (W x + b) = (gamma W) x + gamma b."""
    branches = (block.attn, block.local_mp, block.mlp)
    # A folded block may compute the norms of a few rows at a time.
    norms = (block.norm1, block.norm2, block.norm3)
    is_own = all(type(norm) is nn.LayerNorm and has_own_parameters(norm) for norm in norms)
    if not is_own or has_hooks(block) or not all(map(is_unmodified, branches)):
        return
    scaled = {
        block.attn.proj: block.gamma1,
        block.local_mp.conv2: block.gamma3,
        block.mlp.fc2: block.gamma2,
    }
    for layer, gamma in scaled.items():
        gamma_of_rows = gamma.detach().reshape(-1, *[1] * (layer.weight.ndim - 1))
        layer.weight = nn.Parameter(layer.weight * gamma_of_rows, requires_grad=False)
        layer.bias = nn.Parameter(layer.bias * gamma.detach(), requires_grad=False)
    # Without these names, no weights of a plain model load here, nor these in a plain model.
    del block.gamma1, block.gamma2, block.gamma3
    block.__class__ = FoldedBlock


def _fuse_gelu_of_stem(stem: nn.Sequential) -> None:
    """Let each convolution of a stem whose BatchNorm is folded compute the GELU after it."""
    children: list[tuple[str, Any]] = list(stem.named_children())
    for (_, layer), (name, act) in pairwise(children):
        if _is_exact_gelu(act) and not has_hooks(layer):
            conv, norm = layer
            if type(conv) is nn.Conv2d and type(norm) is nn.Identity and has_own_parameters(conv):
                conv.__class__ = GELUConv
                setattr(stem, name, nn.Identity())


def _fuse_gelu_of_level(level: nn.Sequential) -> None:
    """Let the first upsampling of a level whose BatchNorm is folded compute the GELU after it."""
    if len(level) != 4:  # upsampling, BatchNorm, GELU, upsampling
        return
    conv, norm, act, _ = level
    is_plain_conv = type(conv) is Upsample2x and is_unmodified(conv)
    if is_plain_conv and type(norm) is nn.Identity and _is_exact_gelu(act):
        conv.__class__ = GELUUpsample
        level[2] = nn.Identity()


def _is_exact_gelu(act: nn.Module) -> bool:
    return type(act) is nn.GELU and act.approximate == "none" and not has_hooks(act)


def _fold_batch_norm(module: nn.Module) -> None:
    """Fold each BatchNorm of a Sequential or ConvModule into the convolution before it."""
    is_conv_module = isinstance(module, ConvModule) and module.order[:2] == ("conv", "norm")
    # LPI is neither. Its BatchNorm stays: it follows a GELU and precedes a padded convolution.
    if not (is_conv_module or isinstance(module, nn.Sequential)):
        return
    children: list[tuple[str, Any]] = list(module.named_children())
    for (conv_name, conv), (norm_name, norm) in pairwise(children):
        is_conv = type(conv) in (nn.Conv2d, nn.ConvTranspose2d, Upsample2x)
        is_norm = isinstance(norm, BatchNorm) and not norm.training and norm.track_running_stats
        if is_conv and is_norm and has_own_parameters(conv) and has_own_parameters(norm):
            setattr(module, conv_name, fuse_conv_bn_eval(conv, norm, conv.transposed))
            setattr(module, norm_name, nn.Identity())


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
