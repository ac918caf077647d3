"""The XCiT backbone: stem, blocks, taps and pyramid."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from logging import FileHandler
from typing import Any

from mmengine.logging import MMLogger
from mmengine.model import BaseModule
from mmengine.model.weight_init import PretrainedInit
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..archs import arch_name, default_out_indices, resolve_arch
from ..weights.bands import check_stem_rule
from ..weights.matching import load_pretrained
from .arguments import check_choices, check_names, check_out_indices, check_rates, check_strides
from .layers import Block, ConvPatchEmbed, LinearPatchEmbed, PositionalEncoding
from .padding import Unpadded, pad_together, run_together, unpad
from .pyramid import STRIDES, pyramid_levels
from .recompute import recompute

__all__ = ["Trunk", "XCiT", "init_linear"]

MIN_SIZE = 32  # pixels; the coarsest level has one cell


class Trunk(BaseModule):
    """Stem, positional encoding and blocks: an image to maps of one stride, tapped after the given blocks.

    Module names are those of the published checkpoints, their spelling of `pos_embeder` included.

    Shape: (B, in_channels, H, W) -> for each tap (B, embed_dim, ceil(H / P), ceil(W / P)).

    Args: see `XCiT`.
    """

    # What `init_cfg` may say of a checkpoint.
    pretrained_options: tuple[str, ...] = ("checkpoint", "use_ema", "fill_stem")
    # Arguments of base classes that a class gives itself.
    fixed_arguments: tuple[str, ...] = ()
    init_cfg: dict | list[dict] | None

    def __init__(
        self,
        arch: str | Mapping,
        patch_size: int = 16,
        out_indices: Sequence[int] | None = None,
        in_channels: int = 3,
        patch_embed: str = "conv",
        use_pos: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_cfg: dict | None = None,
        norm_eval: bool = False,
        frozen_stages: int = -1,
        with_cp: bool = False,
        attn_form: str = "auto",
        init_cfg: dict | list[dict] | None = None,
        **unknown: object,
    ) -> None:
        check_names(type(self), unknown)
        super().__init__(init_cfg)
        self._split_init_cfg(init_cfg)  # raises now what would else come after the data is read
        self.arch = resolve_arch(arch)
        check_choices(patch_size, patch_embed)
        if not isinstance(in_channels, int) or in_channels < 1:
            raise ValueError(f"{in_channels=}: must be the number of an image's channels")
        check_rates(drop_rate=drop_rate, attn_drop_rate=attn_drop_rate, drop_path_rate=drop_path_rate)
        if out_indices is None:
            out_indices = default_out_indices(self.arch.depth)
        self.out_indices = check_out_indices(out_indices, self.arch.depth)
        depth = self.out_indices[-1] + 1
        if not isinstance(frozen_stages, int) or not -1 <= frozen_stages <= depth:
            raise ValueError(f"{frozen_stages=}: must be -1 (none) to {depth} (the stem and all blocks in use)")

        self.patch_size = patch_size
        self.in_channels = in_channels
        self.norm_cfg = norm_cfg or dict(type="SyncBN", requires_grad=True)
        self.norm_eval = norm_eval
        self.frozen_stages = frozen_stages
        self.with_cp = with_cp

        dim = self.arch.embed_dim
        if patch_embed == "conv":
            self.patch_embed: ConvPatchEmbed | LinearPatchEmbed = ConvPatchEmbed(
                in_channels, dim, patch_size, self.norm_cfg
            )
        else:
            self.patch_embed = LinearPatchEmbed(in_channels, dim, patch_size)
        self.pos_embeder = PositionalEncoding(dim) if use_pos else None
        self.pos_drop = nn.Dropout(drop_rate)
        self.blocks = nn.ModuleList(
            Block(
                dim,
                self.arch.num_heads,
                self.arch.eta,
                self.norm_cfg,
                drop_rate=drop_rate,
                attn_drop_rate=attn_drop_rate,
                drop_path_rate=drop_path_rate,
                attn_form=attn_form,
            )
            for _ in range(depth)
        )
        self.apply(init_linear)
        for module in self._frozen_modules():
            module.requires_grad_(False)
        self.train()  # frozen stages are in eval mode from the start

    def describe(self, depth: int) -> str:
        """Architecture, at this depth, and patch size as `layouts.describe` tells them from a file: 's12/p16'."""
        linear = " (linear)" if isinstance(self.patch_embed, LinearPatchEmbed) else ""
        return f"{arch_name(self.arch.embed_dim, depth, self.arch.num_heads)}/p{self.patch_size}{linear}"

    def _frozen_modules(self) -> list[nn.Module]:
        if self.frozen_stages < 0:
            return []
        stem = [m for m in (self.patch_embed, self.pos_embeder) if m is not None]
        return stem + list(self.blocks[: self.frozen_stages])

    def train(self, mode: bool = True) -> "Trunk":
        """As `nn.Module.train`, but frozen stages, and BatchNorm under `norm_eval`, stay in eval mode."""
        super().train(mode)
        for module in self._frozen_modules():
            module.eval()
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def init_weights(self) -> None:
        """Initialise by `init_cfg`; a pretrained checkpoint fills the whole trunk or raises and changes nothing.

        A second call changes nothing, as in mmengine.
        """
        if self.is_init:  # type: ignore[has-type]  # BaseModule's
            super().init_weights()  # which warns
            return
        others, pretrained = self._split_init_cfg(self.init_cfg)
        given, self.init_cfg = self.init_cfg, others
        try:
            super().init_weights()
            for options in pretrained:
                load_pretrained(self, **options)
        except Exception:
            self.is_init = False  # a second call must try again
            raise
        finally:
            self.init_cfg = given

    def _dump_init_info(self) -> None:
        """mmengine's note on each parameter, for the log file; where there is none it would fill the screen."""
        if any(isinstance(handler, FileHandler) for handler in MMLogger.get_current_instance().handlers):
            super()._dump_init_info()

    def _split_init_cfg(self, init_cfg: dict | list[dict] | None) -> tuple[list[dict], list[dict]]:
        """Initialisations that are mmengine's to do, and the options of those from a checkpoint, which are ours."""
        cfgs = [init_cfg] if isinstance(init_cfg, dict) else init_cfg or []
        for cfg in cfgs:
            if "type" not in cfg:
                raise ValueError(f"init_cfg={cfg} has no type: for weights it is 'Pretrained'")
        ours = [cfg for cfg in cfgs if cfg["type"] in ("Pretrained", PretrainedInit)]
        options = [{name: value for name, value in cfg.items() if name != "type"} for cfg in ours]
        required, *others = self.pretrained_options
        for cfg in options:
            if required not in cfg or not set(cfg) <= {required, *others}:
                raise ValueError(
                    f"init_cfg with {', '.join(cfg)}: give {required} and, if need be, {' or '.join(others)}; "
                    "the rest is recognised"
                )
            check_stem_rule(cfg.get("fill_stem"))
        return [cfg for cfg in cfgs if cfg not in ours], options

    def _check_image(self, x: Tensor) -> None:
        if x.dim() != 4 or x.shape[1] != self.in_channels:
            raise ValueError(
                f"image of shape {tuple(x.shape)}: expected (B, {self.in_channels}, H, W); "
                "convert the image or set in_channels"
            )
        if not x.is_floating_point():
            raise TypeError(f"image of {x.dtype}: normalise it to floating point first (the data_preprocessor does)")
        if min(x.shape[2:]) < MIN_SIZE:
            raise ValueError(
                f"image of {x.shape[2]}x{x.shape[3]} pixels: pad or enlarge it to at least {MIN_SIZE}x{MIN_SIZE}"
            )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Maps after each of `out_indices`, all of stride `patch_size`, without a final norm.

        Raises:
            ValueError: If the image has other channels than `in_channels` or a side below 32 pixels.
            TypeError: If the image is not floating point.
        """
        self._check_image(x)
        x = self.patch_embed(x)
        height, width = x.shape[-2:]
        x = self._tokens(x)
        maps = []
        for index, block in enumerate(self.blocks):
            if self.with_cp:
                x = recompute(block, block, x, height, width, when_compiled=True)
            else:
                x = block(x, height, width)
            if index in self.out_indices:
                maps.append(x.transpose(1, 2).view(x.shape[0], x.shape[2], height, width))
        return tuple(maps)

    def _tokens(self, x: Tensor) -> Tensor:
        """The stem's map (B, C, h, w) as tokens (B, h w, C) that know their place."""
        height, width = x.shape[-2:]
        x = x.flatten(2).transpose(1, 2)
        if self.pos_embeder is not None:
            x = x + self.pos_embeder(height, width)
        return self.pos_drop(x)

    def _forward_together(self, images: list[Tensor]) -> tuple[list[Tensor], ...]:
        """As `forward`, of images of several sizes: for each tap a map of each size."""
        stems = self.patch_embed.forward_together(images)
        sizes = [tuple(x.shape[2:]) for x in stems]
        tokens = [self._tokens(x) for x in stems]
        maps = []
        blocks: list[Any] = list(self.blocks)
        for index, block in enumerate(blocks):
            if self.with_cp:
                tokens = recompute(block, block.forward_together, tokens, sizes, when_compiled=True)
            else:
                tokens = block.forward_together(tokens, sizes)
            if index in self.out_indices:
                maps.append([x.transpose(1, 2).unflatten(2, size) for x, size in zip(tokens, sizes, strict=True)])
        return tuple(maps)


@MODELS.register_module()
class XCiT(Trunk):
    """XCiT with a feature pyramid, for detection and segmentation.

    Paper: https://arxiv.org/abs/2106.09681, sections 3.3 and 4.2.

    Shape: (B, in_channels, H, W), H and W any sizes from 32 pixels -> a map of `embed_dim` channels for
    each of `strides`, the i-th from the i-th of `out_indices`.

    Args:
        arch: 'n12', 't12', 't24', 's12', 's24', 'm24' or 'l24', or a dict of `embed_dim`, `depth`,
            `num_heads` and `eta` (the initial LayerScale).
        patch_size: Side of a patch in pixels, 16 or 8.
        out_indices: 0-based numbers of the blocks to tap, increasing, one for each of `strides`. Blocks after
            the last are not built. Default: the published ones of these strides, of (3, 5, 7, 11) for 12
            blocks and (7, 11, 15, 23) for 24.
        strides: Of the maps, increasing, out of 4, 8, 16 and 32. Default: from 4 on, one for each of
            `out_indices`, which are four if not given either. RetinaNet and others that begin at stride 8
            need no map of stride 4, the costliest.
        ignore_padding: Whether an image of a zero-padded batch gives what it gives alone, with zeros in the maps'
            cells beyond it. Default: no, since the published weights learnt with padding. See `unpad` for how
            the sizes of the images are told.
        in_channels: Channels of the image; the published weights have 3, red, green and blue.
        patch_embed: 'conv', the published stem, or 'linear', ViT's projection (paper, Table 4).
        use_pos: Whether to add the positional encoding.
        drop_rate: Dropout probability of tokens, MLPs and attention outputs.
        attn_drop_rate: Dropout probability of attention matrices.
        drop_path_rate: Stochastic depth, the same for every block.
        norm_cfg: BatchNorm of stem, LPI and pyramid. Default: SyncBN, as published, which acts as
            BN where training is not distributed.
        norm_eval: Whether BatchNorm keeps its running statistics in training.
        frozen_stages: -1: train all; 0: freeze the stem and the positional encoding; n: also the first n blocks.
        with_cp: Whether to recompute each block in the backward pass instead of keeping its activations.
        attn_form: 'auto', 'plain', 'gram' or 'covariance': one function, computed in the order that is
            fastest for the image's size, or in the given one; see `xcit_mm.models.attention.XCA`.
        init_cfg: As in mmengine; `dict(type='Pretrained', checkpoint=...)` fills the trunk or raises. With other
            `in_channels`, `fill_stem='rgb-mean'`, 'rgb-zero' or 'mean' beside it makes a stem from weights
            for RGB; see `xcit_mm.weights.bands.stem_for_bands`.

    Raises:
        TypeError: If there is no such argument.
        ValueError: If an argument has a value other than these.
    """

    def __init__(
        self,
        arch: str | Mapping,
        patch_size: int = 16,
        out_indices: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        ignore_padding: bool = False,
        **kwargs: Any,
    ) -> None:
        if strides is not None:
            strides = check_strides(strides)
            if out_indices is None:
                published = default_out_indices(resolve_arch(arch).depth)
                out_indices = tuple(published[STRIDES.index(stride)] for stride in strides)
        super().__init__(arch, patch_size, out_indices, **kwargs)
        self.strides = strides or STRIDES[: len(self.out_indices)]
        if len(self.strides) != len(self.out_indices):
            raise ValueError(f"out_indices={self.out_indices}: give one for each stride of {self.strides}")
        levels = pyramid_levels(self.arch.embed_dim, patch_size, self.strides, self.norm_cfg)
        self.ignore_padding = ignore_padding
        self._level_names = tuple(levels)
        for name, level in levels.items():
            self.add_module(name, level)
        self.train()  # the pyramid's BatchNorm under `norm_eval`

    def fold_batch_norm(self) -> "XCiT":
        """Fold BatchNorm into the convolution before it, in the stem and the pyramid, for inference; returns self.

        Exact but for rounding. The BatchNorm of LPI stays: it stands between a GELU and a padded
        convolution. A folded model has other parameter names and cannot be trained on.

        Raises:
            RuntimeError: If the model is in training mode.
        """
        if self.training:
            raise RuntimeError("fold_batch_norm needs the running statistics: call eval() first")
        parents = [*self.patch_embed.modules(), *(getattr(self, name) for name in self._level_names)]
        for parent in parents:
            if not isinstance(parent, nn.Sequential):
                continue
            children: list[tuple[str, Any]] = list(parent.named_children())
            for (place, conv), (name, norm) in pairwise(children):
                if isinstance(norm, _BatchNorm):
                    parent[int(place)] = fuse_conv_bn_eval(conv, norm, transpose=conv.transposed)
                    parent[int(name)] = nn.Identity()
        return self

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Pyramid of an image, finest map first; raises as `Trunk.forward`, and with `ignore_padding` as `unpad`."""
        unpadded = unpad(x, MIN_SIZE) if self.ignore_padding else None
        if unpadded is not None:
            return self._forward_unpadded(x, unpadded)
        maps = super().forward(x)
        # Contiguous, since mmcv's RoIAlign reads its input as (B, C, H, W) in memory whatever its strides say.
        return tuple(getattr(self, name)(m).contiguous() for name, m in zip(self._level_names, maps, strict=True))

    def _forward_unpadded(self, x: Tensor, unpadded: Unpadded) -> tuple[Tensor, ...]:
        self._check_image(x)
        pyramid = []
        for stride, name, maps in zip(
            self.strides, self._level_names, self._forward_together(unpadded.images), strict=True
        ):
            # As large as the maps of the whole batch.
            height, width = (-(side // -self.patch_size) * self.patch_size // stride for side in x.shape[2:])
            maps = run_together(getattr(self, name), maps)
            pyramid.append(pad_together(maps, unpadded.places, (height, width)).contiguous())
        return tuple(pyramid)


def init_linear(module: nn.Module) -> None:
    """Initialise a linear layer, for `nn.Module.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
