"""XCiT, Cross-Covariance Image Transformers (arXiv 2106.09681), in the order that an image takes.

An image (B, 3, H, W) becomes tokens (B, N, C) by the stem, one for each cell of a grid of
H / P x W / P, plus a positional encoding. 12 or 24 blocks of XCA, LPI and MLP follow. The tokens
after four of the blocks become the feature maps of a pyramid, of strides 4, 8, 16 and 32.

Modules have the names of the published checkpoints, so that these load as they are.
`covariance` computes XCA in another way, and `matmul` the transposed convolutions, with the same
results to rounding.

`valid`, of shape (B, 1, h, w), says which pixels or tokens have data (see `Backbone.valid`). By
default all have.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks import DropPath
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..archs import PATCH_SIZES, default_out_indices, resolve_arch
from ..weights.layouts import CLASSIFIER_PREFIXES, Weights, describe
from ..weights.matching import match_backbone
from ..weights.stem import with_stem_for_bands
from . import covariance
from .base import MIN_SIZE, Backbone, cells_with_data, keep_valid, mask_option, to_increasing
from .matmul import FastLinear, upsample

STRIDES = (4, 8, 16, 32)  # of the pyramid


class ConvPatchEmbed(nn.Module):
    """Convolutional stem (section 3.3, after LeViT): 3x3 stride-2 convolutions to a cell per patch.

    Each convolution halves the size, rounding up, and doubles the channels. BatchNorm follows each
    convolution, and GELU is between two of them.

    Shape: (B, in_channels, H, W) -> (B, embed_dim, ceil(H / P), ceil(W / P)).

    Args:
        patch_size: Side P of a patch in pixels, a power of two.
    """

    def __init__(self, in_channels: int, embed_dim: int, patch_size: int, norm_cfg: dict) -> None:
        super().__init__()
        self.proj = nn.Sequential()
        divisor = patch_size // 2
        while divisor:
            channels = embed_dim // divisor
            divisor //= 2
            if len(self.proj):
                self.proj.append(nn.GELU())
            conv = nn.Conv2d(in_channels, channels, 3, stride=2, padding=1, bias=False)
            self.proj.append(nn.Sequential(conv, build_norm_layer(norm_cfg, channels)[1]))
            in_channels = channels

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        # In this layout a map is a contiguous list of tokens.
        x = x.contiguous(memory_format=torch.channels_last)
        if valid is None:
            return self.proj(x)
        for layer in self.proj:
            if isinstance(layer, nn.Sequential):  # a convolution, which reads neighbours
                x = keep_valid(x, valid)
                valid = cells_with_data(valid, 2)
            x = layer(x)
        return x


class LinearPatchEmbed(nn.Module):
    """Linear projection of non-overlapping patches, as in ViT (Table 4).

    The right and bottom borders are padded with zeros to whole patches.

    Shape: (B, in_channels, H, W) -> (B, embed_dim, ceil(H / P), ceil(W / P)).
    """

    def __init__(
        self, in_channels: int, embed_dim: int, patch_size: int, norm_cfg: dict | None = None
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, embed_dim, patch_size, stride=patch_size)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        height, width = x.shape[-2:]
        x = keep_valid(x, valid)
        return self.proj(F.pad(x, (0, -width % self.patch_size, 0, -height % self.patch_size)))


STEMS = dict(conv=ConvPatchEmbed, linear=LinearPatchEmbed)


class PositionalEncoding(nn.Module):
    """2-D sine/cosine positional encoding, projected to the width of the tokens (appendix B.1)."""

    dim = 32  # features for each coordinate
    # The wavelengths grow from the side of the grid to 10000^(30 / 32) times this side.
    base = 10000.0

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.token_projection = nn.Conv2d(2 * self.dim, embed_dim, 1)

    def encode(self, length: int, device: torch.device) -> Tensor:
        """Return the code of the coordinates 1 to `length`, (length, dim), always in float32."""
        coordinate = torch.arange(1, length + 1, dtype=torch.float32, device=device)
        angle = coordinate / (length + 1e-6) * (2 * math.pi)
        exponent = torch.arange(0, self.dim, 2, dtype=torch.float32, device=device) / self.dim
        angle = angle[:, None] / self.base**exponent
        return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)

    def forward(self, x: Tensor, rows: slice = slice(None)) -> Tensor:
        """Return the encoding for rows of a map (B, C, h, w), by default for all, as (1, N, C).

        It depends on the size of the map alone.
        """
        height, width = x.shape[-2:]
        along_y = self.encode(height, x.device)[rows, None].expand(-1, width, -1)
        along_x = self.encode(width, x.device).expand(along_y.shape[0], -1, -1)
        code = torch.cat((along_y, along_x), dim=2).to(x.dtype).permute(2, 0, 1)
        return self.token_projection(code[None]).flatten(2).transpose(1, 2)


class XCA(nn.Module):
    """Cross-covariance attention (section 3.2, equation 1): a head's channels attend to each other.

    Per head, queries and keys are l2-normalised over the tokens. Their product, with one row per
    query channel, is multiplied by a learned temperature (the paper's 1 / tau) and softmaxed to a
    matrix A, which mixes the channels of the values. Time and memory are linear in the number of
    tokens N.

    Shape: (B, N, C) -> (B, N, C).

    Args:
        dim: Number of channels C of a token.
        num_heads: Number of heads, a divisor of `dim`.
        attn_drop: Dropout probability of the attention matrix A.
        proj_drop: Dropout probability after the output projection.
        implementation: 'plain', 'covariance' or 'auto': the order of the multiplications, see
            `covariance.uses_covariance`.

    Raises:
        ValueError: If the implementation is unknown.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        implementation: str = "auto",
    ) -> None:
        super().__init__()
        if implementation not in covariance.IMPLEMENTATIONS:
            choices = covariance.IMPLEMENTATIONS
            raise ValueError(f"attn_implementation={implementation!r}: choose one of {choices}")
        self.num_heads = num_heads
        self.implementation = implementation
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        if covariance.uses_covariance(self, x):
            return covariance.covariance_attention(self, x, valid=valid)
        # (B, N, 3C) -> three of (B, heads, C / heads, N): channels are rows, tokens columns.
        q, k, v = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 4, 1)
        if valid is not None:  # A is a sum over the tokens
            q, k = (keep_valid(part, valid.flatten(2).unsqueeze(1)) for part in (q, k))
        cosines = covariance.normalise(q) @ covariance.normalise(k).transpose(-2, -1)
        attn = (self.temperature * cosines).softmax(dim=-1)
        x = (self.attn_drop(attn) @ v).flatten(1, 2).transpose(1, 2)
        return self.proj_drop(self.proj(x))


class LPI(nn.Module):
    """Local patch interaction (section 3.3): two depthwise 3x3 convolutions.

    GELU and BatchNorm are between them.

    Shape: (B, N, C) tokens of a `height` x `width` grid -> (B, N, C).
    """

    def __init__(self, dim: int, norm_cfg: dict) -> None:
        super().__init__()
        # mmcv's fuse_conv_bn follows the order of registration: it would fold a BatchNorm
        # registered after conv1 into conv1, past the GELU between them.
        self.bn = build_norm_layer(norm_cfg, dim)[1]
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.act = nn.GELU()
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor, height: int, width: int, valid: Tensor | None = None) -> Tensor:
        x = x.unflatten(1, (height, width)).permute(0, 3, 1, 2)
        x = self.conv1(keep_valid(x, valid))
        x = self.conv2(keep_valid(self.bn(self.act(x)), valid))
        return x.permute(0, 2, 3, 1).flatten(1, 2)


class MLP(nn.Module):
    """Two linear layers with an exact GELU between them, four times as wide inside.

    Shape: (B, N, C) -> (B, N, C).
    """

    def __init__(self, dim: int, drop: float = 0.0) -> None:
        super().__init__()
        self.fc1 = FastLinear(dim, 4 * dim)
        self.act = nn.GELU()
        self.fc2 = FastLinear(4 * dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class Block(nn.Module):
    """XCiT layer (Figure 1): XCA, LPI and MLP, each pre-normalised, residual and with LayerScale.

    Shape: (B, N, C) tokens of a `height` x `width` grid -> (B, N, C).

    Args: see `XCiT`. `dim` is the number of channels C, `eta` the initial value of LayerScale.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        eta: float,
        norm_cfg: dict,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        attn_implementation: str = "auto",
    ) -> None:
        super().__init__()
        # norm2 belongs to the MLP and norm3 to LPI, though LPI runs first: the published numbers.
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = XCA(dim, num_heads, attn_drop_rate, drop_rate, attn_implementation)
        self.norm3 = nn.LayerNorm(dim, eps=1e-6)
        self.local_mp = LPI(dim, norm_cfg)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = MLP(dim, drop=drop_rate)
        self.gamma1 = nn.Parameter(torch.full((dim,), eta))
        self.gamma2 = nn.Parameter(torch.full((dim,), eta))
        self.gamma3 = nn.Parameter(torch.full((dim,), eta))
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Tensor, height: int, width: int, valid: Tensor | None = None) -> Tensor:
        x = self.add_attention(x, valid)
        x = self.add_interaction(x, height, width, valid)
        return self.add_mlp(x)

    def add_attention(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        attended = self.attn(self.norm1(x), **mask_option(valid))
        # addcmul(x, gamma, branch) = x + gamma * branch
        return torch.addcmul(x, self.gamma1, self.drop_path(attended))

    def add_interaction(
        self, x: Tensor, height: int, width: int, valid: Tensor | None = None
    ) -> Tensor:
        local = self.local_mp(self.norm3(x), height, width, **mask_option(valid))
        return torch.addcmul(x, self.gamma3, self.drop_path(local))

    def add_mlp(self, x: Tensor) -> Tensor:
        return torch.addcmul(x, self.gamma2, self.drop_path(self.mlp(self.norm2(x))))


def init_linear(module: nn.Module) -> None:
    """Initialise a linear layer, for `nn.Module.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


class Trunk(Backbone):
    """Stem, positional encoding and blocks: feature maps of one stride after the given blocks.

    Shape: (B, in_channels, H, W)
    -> for each of `out_indices` (B, embed_dim, ceil(H / P), ceil(W / P)).

    Args: see `XCiT`.
    """

    can_leave_out_pixels = True
    # Of tensors in files that the network does not have.
    unused_prefixes: tuple[str, ...] = CLASSIFIER_PREFIXES

    def __init__(
        self,
        arch: str | Mapping | None = None,
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
        with_cp: bool | str = False,
        attn_implementation: str = "auto",
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.arch = resolve_arch(arch)
        if patch_size not in PATCH_SIZES:
            raise ValueError(f"{patch_size=}: choose one of {PATCH_SIZES}")
        if patch_embed not in STEMS:
            raise ValueError(f"{patch_embed=}: choose one of {tuple(STEMS)}")
        if with_cp not in (False, True, "bands"):
            raise ValueError(f"{with_cp=}: choose False, True or 'bands'")
        if not 0 <= drop_path_rate < 1:
            raise ValueError(f"{drop_path_rate=}: must be at least 0 and below 1")
        if with_cp == "bands" and not norm_eval:
            raise ValueError(f"{with_cp=} with {norm_eval=}: set norm_eval=True")
        if out_indices is None:
            out_indices = default_out_indices(self.arch.depth)

        self.in_channels = in_channels
        self.patch_size = patch_size
        self.out_indices = to_increasing("out_indices", out_indices, range(self.arch.depth))
        self.frozen_stages = frozen_stages
        self.norm_cfg = norm_cfg or dict(type="SyncBN", requires_grad=True)
        self.norm_eval = norm_eval
        self.with_cp = with_cp

        dim, _, num_heads, eta, _ = self.arch
        self.patch_embed = STEMS[patch_embed](in_channels, dim, patch_size, self.norm_cfg)
        self.pos_embeder = PositionalEncoding(dim) if use_pos else None  # the published spelling
        self.pos_drop = nn.Dropout(drop_rate)
        rates = drop_rate, attn_drop_rate, drop_path_rate
        self.blocks = nn.ModuleList(
            Block(dim, num_heads, eta, self.norm_cfg, *rates, attn_implementation)
            for _ in range(self.out_indices[-1] + 1)
        )
        self.apply(init_linear)
        for module in self.frozen_modules():
            module.requires_grad_(False)
        self.train()  # frozen stages are in eval mode from the start

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Compute the maps after each of `out_indices`, of stride `patch_size`, without a norm.

        Raises:
            RuntimeError: If the number of the image's channels is not `in_channels`, or its type is
                not that of the weights.
        """
        if self.with_cp == "bands" and torch.is_grad_enabled() and not x.is_meta:
            from .large_training import taps_by_bands  # which imports this module

            return taps_by_bands(self, x)
        return tuple(self._maps_after(self.out_indices, x))

    @torch.no_grad()
    def forward_intermediates(
        self, x: Tensor, indices: int | Sequence[int] | None = None, output_fmt: str = "NCHW"
    ) -> list[Tensor]:
        """Compute the tokens after any blocks, without gradients and without a norm.

        It is timm's method of this name with `intermediates_only=True`.

        Args:
            x: Normalised images, (B, in_channels, H, W).
            indices: A list of increasing numbers of blocks from 0, where negative ones count from
                the end, or the number of last blocks, from 1 on. Default: all blocks.
            output_fmt: 'NCHW' for maps, or 'NLC' for sequences.

        Returns:
            For each block (B, embed_dim, ceil(H / P), ceil(W / P)), or (B, N, embed_dim).

        Raises:
            ValueError: If there is no such block or format.

        Example:
            >>> import torch
            >>> from xcit_mm import XCiT
            >>> maps = XCiT("n12").eval().forward_intermediates(torch.zeros(1, 3, 96, 64), [3, -1])
            >>> [tuple(tokens.shape) for tokens in maps]
            [(1, 128, 6, 4), (1, 128, 6, 4)]
        """
        depth = len(self.blocks)
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"{output_fmt=}: choose NCHW or NLC")
        if indices is None:
            indices = depth
        if isinstance(indices, int):
            if not 1 <= indices <= depth:
                raise ValueError(f"{indices=}: give a number of last blocks from 1 to {depth}")
            indices = range(depth - indices, depth)
        taps = to_increasing("indices", indices, range(depth))
        maps = self._maps_after(taps, x)
        return maps if output_fmt == "NCHW" else [m.flatten(2).transpose(1, 2) for m in maps]

    def _maps_after(self, indices: Sequence[int], x: Tensor) -> list[Tensor]:
        """Compute the maps (B, C, h, w) after blocks, with zeros where no data are.

        Blocks after the last of `indices` do not run.
        """
        valid = self.valid_cells(x, self.patch_size)
        x = self.patch_embed(x, **mask_option(self.valid_cells(x, 1)))
        batch, channels, height, width = x.shape
        code = 0 if self.pos_embeder is None else self.pos_embeder(x)
        x = self.pos_drop(x.flatten(2).transpose(1, 2) + code)
        maps = []
        for index, block in enumerate(self.blocks):
            if self.with_cp and torch.is_grad_enabled():  # there are masks only without gradients
                x = checkpoint(block, x, height, width, use_reentrant=False)
            else:
                x = block(x, height, width, **mask_option(valid))
            if index in indices:
                tap = x.transpose(1, 2).reshape(batch, channels, height, width)
                maps.append(keep_valid(tap, valid))
            if index == indices[-1]:
                break
        return maps

    def match_weights(
        self, weights: Weights, strict_heads: bool = True, fill_stem: bool = False
    ) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint that fill the network.

        A file with a level of the pyramid must fill the pyramid.

        Raises:
            ValueError: If they do not fit. The message names an option that helps a training to
                start.
        """
        expected = self.state_dict()
        in_file = describe(weights.trunk)
        in_config = describe(expected, self.arch.depth)
        # A backbone ends with its last tap, so it may save fewer blocks than its architecture has.
        if in_file not in (in_config, describe(expected)):
            raise ValueError(f"the file is {in_file}, but the config asks for {in_config}")
        trunk = with_stem_for_bands(weights.trunk, self.in_channels, fill_stem)
        weights = replace(weights, trunk=trunk)
        return match_backbone(self, weights, self.arch.depth, self.unused_prefixes)

    def stages(self) -> list[list[nn.Module]]:
        """Return the modules of the stem and the positional encoding, then those of each block."""
        stem = [module for module in (self.patch_embed, self.pos_embeder) if module is not None]
        return [stem, *([block] for block in self.blocks)]


class Upsample2x(nn.ConvTranspose2d):
    """2x2 stride-2 transposed convolution. Shape: (B, C, h, w) -> (B, C, 2h, 2w)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # without output_size
        return upsample(self, x)


def level_name(stride: int) -> str:
    """Return the published name of a level of the pyramid, 'fpn1' for stride 4 to 'fpn4' for 32."""
    return f"fpn{1 + STRIDES.index(stride)}"


def pyramid_levels(
    channels: int, patch_size: int, strides: Sequence[int], norm_cfg: dict
) -> dict[str, nn.Sequential]:
    """Build modules that bring maps of one stride to other strides (section 4.2, appendix B.2).

    A level upsamples by 2x2 stride-2 transposed convolutions, with BatchNorm and GELU between two
    of them, or downsamples by max-pooling: (B, channels, h, w) -> (B, channels, h * r, w * r), with
    r = patch_size / stride, rounded down where r < 1. The keys (see `level_name`) and the positions
    within a level are the published names. The levels serve any backbone whose maps have one
    stride: `nn.ModuleDict(pyramid_levels(...))`.

    Args:
        patch_size: Stride of the input maps in pixels, a power of two.
        strides: Strides of the levels, from `STRIDES`.

    Raises:
        ValueError: If `patch_size` is not a power of two, or a stride is not from `STRIDES`.
    """
    if not math.log2(patch_size).is_integer():
        raise ValueError(f"{patch_size=}: give a power of two")
    levels = {}
    for stride in strides:
        name = level_name(stride)
        level = nn.Sequential()
        if stride > patch_size:
            level.append(nn.MaxPool2d(stride // patch_size))
        while stride < patch_size:
            if len(level):
                level.append(build_norm_layer(norm_cfg, channels)[1])
                level.append(nn.GELU())
            level.append(Upsample2x(channels))
            stride *= 2
        levels[name] = level
    return levels


def taps_and_strides(
    depth: int, out_indices: Sequence[int] | None, strides: Sequence[int] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the blocks to tap and the strides of their feature maps, given both, one or none."""
    if strides is not None:
        strides = to_increasing("strides", strides, STRIDES)
    if out_indices is None:
        published = default_out_indices(depth)
        out_indices = [published[STRIDES.index(stride)] for stride in strides or STRIDES]
    taps = to_increasing("out_indices", out_indices, range(depth))
    strides = strides or STRIDES[: len(taps)]
    if len(strides) != len(taps):
        raise ValueError(f"{out_indices=}: give one for each stride of {strides}")
    return taps, strides


# A trace serves images on both sides of the condition. A default value of `least` would stop
# torch.compile (2.1).
@torch.jit.script_if_tracing
def pad_small_sides(x: Tensor, least: int) -> Tensor:
    """Pad images (B, C, H, W) with zeros, right and bottom, to at least `least` pixels a side."""
    height = x.shape[2]
    width = x.shape[3]
    if height >= least and width >= least:
        return x[:]  # a trace tells the padded image from `x` only if it is another tensor
    return F.pad(x, (0, max(least - width, 0), 0, max(least - height, 0)))


@torch.jit.script_if_tracing
def crop_padded_sides(x: Tensor, images: Tensor, stride: int, least: int) -> Tensor:
    """Crop a feature map at the sides at which `pad_small_sides` pads images."""
    for side in (2, 3):
        if images.shape[side] < least:
            x = x.narrow(side, 0, (images.shape[side] + stride - 1) // stride)
    return x


class Level(NamedTuple):
    """Channels of a feature map, and its stride in pixels."""

    channels: int
    stride: int


class Pyramid(Backbone):
    """A backbone whose maps of one stride become feature maps of several strides."""

    # mmcv's RoIAlign reads its input as (B, C, H, W) in memory whatever its strides are.
    memory_format = torch.contiguous_format
    strides: tuple[int, ...]
    channels: int

    def add_levels(self, channels: int, patch_size: int, norm_cfg: dict) -> None:
        """Add the modules of `pyramid_levels` for `strides`."""
        self.channels = channels
        for name, level in pyramid_levels(channels, patch_size, self.strides, norm_cfg).items():
            self.add_module(name, level)
        self.train()  # the pyramid's BatchNorm under `norm_eval`

    def levels(self) -> list[nn.Sequential]:
        """Return the modules of the pyramid, finest level first."""
        return [getattr(self, level_name(stride)) for stride in self.strides]

    def output_shape(self) -> dict[str, Level]:
        """Return channels and stride of each feature map, in the order of `forward`.

        The keys are the names of the pyramid's levels. No image is needed.

        Example:
            >>> from xcit_mm import XCiT
            >>> XCiT("n12", strides=(16, 32)).output_shape()
            {'fpn3': Level(channels=128, stride=16), 'fpn4': Level(channels=128, stride=32)}
        """
        return {level_name(stride): Level(self.channels, stride) for stride in self.strides}

    def apply_levels(
        self,
        taps: Sequence[Tensor],
        valid: Tensor | None = None,
        images: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Compute the feature maps, finest map first, from maps of one stride.

        Args:
            taps: (B, C, h, w) each.
            valid: Which tokens have data, (B, 1, h, w).
            images: The images before `pad_small_sides`, whose sides the feature maps get.
        """
        maps = []
        for level, tap, stride in zip(self.levels(), taps, self.strides, strict=True):
            x = _apply_level(level, tap, valid)
            if images is not None:
                x = crop_padded_sides(x, images, stride, MIN_SIZE)
            maps.append(x.contiguous(memory_format=self.memory_format))
        return tuple(maps)


def _apply_level(level: nn.Sequential, tap: Tensor, valid: Tensor | None) -> Tensor:
    """Compute a feature map from the valid tokens, with zeros elsewhere."""
    if valid is None:
        return level(tap)
    if len(level) == 1 and isinstance(level[0], nn.MaxPool2d):
        maxima = level(tap.masked_fill(~valid, -math.inf))
        return maxima.masked_fill(maxima.isneginf(), 0)
    x = level(tap)
    scale = x.shape[-1] // tap.shape[-1]
    return keep_valid(x, valid.repeat_interleave(scale, 2).repeat_interleave(scale, 3))


@MODELS.register_module()
class XCiT(Trunk, Pyramid):
    """XCiT with a feature pyramid, for detection and segmentation (sections 3.3 and 4.2).

    Shape: (B, in_channels, H, W), H and W any sizes -> a feature map of `embed_dim` channels for
    each of `strides`, computed from the block of the same position in `out_indices`. Sides below 32
    pixels are padded with zeros, and the maps are cropped again at these sides.

    Args:
        arch: 'n12', 't12', 't24', 's12', 's24', 'm24' or 'l24', or a dict of `embed_dim`, `depth`,
            `num_heads` and `eta` (the initial LayerScale).
        patch_size: Side of a patch in pixels, 16 or 8.
        out_indices: Increasing 0-based numbers of the blocks to tap, one for each of `strides`.
            Blocks after the last number are not built. Default: the published numbers of these
            strides, of (3, 5, 7, 11) for 12 blocks and (7, 11, 15, 23) for 24.
        strides: Increasing strides of the feature maps, from 4, 8, 16 and 32. Default: from 4 on,
            one for each of `out_indices`; all four without `out_indices`. RetinaNet and other heads
            that begin at stride 8 do not need the map of stride 4, the costliest, and a level that
            no head uses fails in distributed training.
        in_channels: Number of channels of the image. The published weights have 3: red, green and
            blue.
        patch_embed: 'conv', the published stem, or 'linear', ViT's projection (Table 4).
        use_pos: Whether to add the positional encoding.
        drop_rate: Dropout probability of tokens, MLPs and attention outputs.
        attn_drop_rate: Dropout probability of attention matrices.
        drop_path_rate: Rate of stochastic depth, the same for every block.
        norm_cfg: Config of the BatchNorm of stem, LPI and pyramid: BN or SyncBN. Default: SyncBN,
            as published, which acts as BN where training is not distributed.
        norm_eval: Whether BatchNorm keeps its running statistics in training.
        frozen_stages: -1: train all; 0: freeze the stem and the positional encoding; n: also the
            first n blocks.
        with_cp: Whether to recompute each block in the backward pass instead of storing its
            activations. BatchNorm then counts a batch twice in its running statistics. 'bands'
            recomputes bands of rows, for large images, with the same gradients to rounding: see
            `xcit_mm.models.large_training`. It needs `norm_eval=True`, no dropout and the layers
            of the paper.
        attn_implementation: 'auto', 'plain' or 'covariance', with the same results to rounding.
            'auto' selects the fastest for the image's size; see `xcit_mm.models.covariance`.
        init_cfg: See mmengine. `dict(type='Pretrained', checkpoint=...)` fills the trunk or raises.
            With other `in_channels`, `fill_stem=True` in this dict makes a stem from weights for
            RGB; see `xcit_mm.weights.stem.stem_for_bands`.

    Raises:
        TypeError, ValueError: If an argument is unknown, or has an invalid value.
    """

    def __init__(
        self,
        arch: str | Mapping | None = None,
        patch_size: int = 16,
        out_indices: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        out_indices, strides = taps_and_strides(resolve_arch(arch).depth, out_indices, strides)
        super().__init__(arch, patch_size, out_indices, **kwargs)
        self.strides = strides
        self.add_levels(self.arch.embed_dim, patch_size, self.norm_cfg)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Compute the pyramid of an image, finest map first.

        Raises:
            RuntimeError: If the number of the image's channels is not `in_channels`, or its type is
                not that of the weights.
        """
        padded = pad_small_sides(x, MIN_SIZE)
        taps = super().forward(padded)
        return self.apply_levels(taps, self.valid_cells(padded, self.patch_size), x)
