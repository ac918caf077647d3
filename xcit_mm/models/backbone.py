"""The XCiT backbone: stem, blocks, taps and pyramid."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..archs import arch_name, default_out_indices, resolve_arch
from ..utils.compat import BatchNorm
from .arguments import check_argument_names, check_choices, check_out_indices, check_rates, check_strides
from .initialization import PretrainedModule
from .layers import Block, ConvPatchEmbed, LinearPatchEmbed, PositionalEncoding, init_linear
from .padding import forward_unpadded, unpad
from .pyramid import STRIDES, Upsample2x, pyramid_levels
from .recompute import recompute

MIN_SIZE = 32  # pixels; the coarsest level has one cell


class Trunk(PretrainedModule):
    """Stem, positional encoding and blocks: feature maps of one stride after the given blocks.

    Module names are those of the published checkpoints, including their spelling of `pos_embeder`.

    Shape: (B, in_channels, H, W) -> for each of `out_indices` (B, embed_dim, ceil(H / P), ceil(W / P)).

    Args: see `XCiT`.
    """

    # Arguments of base classes that a subclass sets itself.
    fixed_arguments: tuple[str, ...] = ()

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
        attn_implementation: str = "auto",
        init_cfg: dict | list[dict] | None = None,
        **unknown: object,
    ) -> None:
        check_argument_names(type(self), unknown)
        super().__init__(init_cfg)
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
        self.patch_embed: ConvPatchEmbed | LinearPatchEmbed
        if patch_embed == "conv":
            self.patch_embed = ConvPatchEmbed(in_channels, dim, patch_size, self.norm_cfg)
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
                attn_implementation=attn_implementation,
            )
            for _ in range(depth)
        )
        self.apply(init_linear)
        for module in self._frozen_modules():
            module.requires_grad_(False)
        self.train()  # frozen stages are in eval mode from the start

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Compute the feature maps after each of `out_indices`, of stride `patch_size`, without a final norm.

        Raises:
            ValueError: If the image has other channels than `in_channels` or a side below 32 pixels.
            TypeError: If the image is not floating point.
        """
        self.check_image(x)
        x = self.patch_embed(x)
        height, width = x.shape[-2:]
        x = self.to_tokens(x)
        maps = []
        for index, block in enumerate(self.blocks):
            x = recompute(block, block, x, height, width, always=True) if self.with_cp else block(x, height, width)
            if index in self.out_indices:
                maps.append(x.transpose(1, 2).view(x.shape[0], x.shape[2], height, width))
        return tuple(maps)

    def to_tokens(self, x: Tensor) -> Tensor:
        """Return the stem's map (B, C, h, w) as tokens (B, h w, C) with their positional encoding."""
        height, width = x.shape[-2:]
        x = x.flatten(2).transpose(1, 2)
        if self.pos_embeder is not None:
            x = x + self.pos_embeder(height, width)
        return self.pos_drop(x)

    def check_image(self, x: Tensor) -> None:
        """Raise an error that names the fix if `forward` cannot take an image; see there."""
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

    def train(self, mode: bool = True) -> "Trunk":
        """Set the training mode. Frozen stages, and BatchNorm under `norm_eval`, stay in eval mode."""
        super().train(mode)
        for module in self._frozen_modules():
            module.eval()
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, BatchNorm):
                    module.eval()
        return self

    def describe(self, depth: int) -> str:
        """Return architecture, at this depth, and patch size in the words of `layouts.describe`: 's12/p16'."""
        linear = " (linear)" if isinstance(self.patch_embed, LinearPatchEmbed) else ""
        return f"{arch_name(self.arch.embed_dim, depth, self.arch.num_heads)}/p{self.patch_size}{linear}"

    def _frozen_modules(self) -> list[nn.Module]:
        if self.frozen_stages < 0:
            return []
        stem = [m for m in (self.patch_embed, self.pos_embeder) if m is not None]
        return stem + list(self.blocks[: self.frozen_stages])


@MODELS.register_module()
class XCiT(Trunk):
    """XCiT with a feature pyramid, for detection and segmentation.

    Paper: https://arxiv.org/abs/2106.09681, sections 3.3 and 4.2.

    Shape: (B, in_channels, H, W), H and W any sizes from 32 pixels -> a feature map of `embed_dim` channels for each
    of `strides`, computed from the block of the same position in `out_indices`.

    Args:
        arch: 'n12', 't12', 't24', 's12', 's24', 'm24' or 'l24', or a dict of `embed_dim`, `depth`, `num_heads` and
            `eta` (the initial LayerScale).
        patch_size: Side of a patch in pixels, 16 or 8.
        out_indices: Increasing 0-based numbers of the blocks to tap, one for each of `strides`. Blocks after the last
            number are not built. Default: the published numbers of these strides, of (3, 5, 7, 11) for 12 blocks and
            (7, 11, 15, 23) for 24.
        strides: Increasing strides of the feature maps, from 4, 8, 16 and 32. Default: from 4 on, one for each of
            `out_indices`; all four without `out_indices`. RetinaNet and other heads that begin at stride 8 do not
            need the map of stride 4, the costliest.
        ignore_padding: Whether the output of an image is independent of the zero-padded batch that it is in, with
            zeros in the cells of its padding. Default: no, since the published weights were trained with padding. See
            `unpad` for how the sizes of the images are recognised.
        in_channels: Number of channels of the image. The published weights have 3: red, green and blue.
        patch_embed: 'conv', the published stem, or 'linear', ViT's projection (paper, Table 4).
        use_pos: Whether to add the positional encoding.
        drop_rate: Dropout probability of tokens, MLPs and attention outputs.
        attn_drop_rate: Dropout probability of attention matrices.
        drop_path_rate: Rate of stochastic depth, the same for every block.
        norm_cfg: Config of the BatchNorm of stem, LPI and pyramid. Default: SyncBN, as published, which acts as BN
            where training is not distributed.
        norm_eval: Whether BatchNorm keeps its running statistics in training.
        frozen_stages: -1: train all; 0: freeze the stem and the positional encoding; n: also the first n blocks.
        with_cp: Whether to recompute each block in the backward pass instead of storing its activations.
        attn_implementation: 'auto', 'plain', 'gram' or 'covariance', with the same results to rounding. 'auto' selects
            the fastest for the image's size; see `xcit_mm.models.attention.XCA`.
        init_cfg: See mmengine. `dict(type='Pretrained', checkpoint=...)` fills the trunk or raises. With other
            `in_channels`, `fill_stem='rgb-mean'`, 'rgb-zero' or 'mean' in this dict makes a stem from weights for RGB;
            see `xcit_mm.weights.bands.stem_for_bands`.

    Raises:
        TypeError: If an argument is unknown.
        ValueError: If an argument has an invalid value.
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
        self.ignore_padding = ignore_padding
        levels = pyramid_levels(self.arch.embed_dim, patch_size, self.strides, self.norm_cfg)
        self._level_names = tuple(levels)
        for name, level in levels.items():
            self.add_module(name, level)
        self.train()  # the pyramid's BatchNorm under `norm_eval`

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Compute the pyramid of an image, finest map first.

        Raises the errors of `Trunk.forward` and, with `ignore_padding`, of `unpad`.
        """
        if self.ignore_padding:
            self.check_image(x)
            unpadded = unpad(x, MIN_SIZE)
            if unpadded is not None:
                return forward_unpadded(self, unpadded, (x.shape[2], x.shape[3]))
        maps = tuple(level(m) for level, m in zip(self.levels(), super().forward(x), strict=True))
        layers = (layer for level in self.levels() for layer in level)
        if any(isinstance(layer, Upsample2x) and not layer.weight.is_contiguous() for layer in layers):
            return maps  # in the channels-last layout of the weights
        # Contiguous, since mmcv's RoIAlign reads its input as (B, C, H, W) in memory whatever its strides are.
        return tuple(m.contiguous() for m in maps)

    def levels(self) -> list[nn.Sequential]:
        """Return the modules of the pyramid, finest level first."""
        return [getattr(self, name) for name in self._level_names]

    def fold_batch_norm(self) -> "XCiT":
        """Fold BatchNorm into the convolution before it, in the stem and the pyramid, for inference; return self.

        Exact up to rounding. The BatchNorm of LPI stays, since it stands between a GELU and a padded convolution. A
        folded model has other parameter names and cannot be trained.

        Raises:
            RuntimeError: If the model is in training mode.
        """
        if self.training:
            raise RuntimeError("fold_batch_norm needs the running statistics: call eval() first")
        for parent in [*self.patch_embed.modules(), *self.levels()]:
            if not isinstance(parent, nn.Sequential):
                continue
            children: list[tuple[str, Any]] = list(parent.named_children())
            for (conv_name, conv), (norm_name, norm) in pairwise(children):
                if isinstance(norm, BatchNorm):
                    parent[int(conv_name)] = fuse_conv_bn_eval(conv, norm, transpose=conv.transposed)
                    parent[int(norm_name)] = nn.Identity()
        return self
