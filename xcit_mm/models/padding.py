"""Images of different sizes in one zero-padded batch, each with the result that it has alone.

The network of the other files takes images of one size. Here its layers run on a list of maps, one for each size.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ..utils.compat import BatchNorm
from .chunks import in_chunks
from .layers import LPI, Block, ConvPatchEmbed, LinearPatchEmbed, channels_last
from .recompute import recompute

if TYPE_CHECKING:
    from .backbone import Trunk, XCiT

Sizes = list[tuple[int, int]]


class Unpadded(NamedTuple):
    """The images of a batch without their padding, grouped by size.

    Attributes:
        images: (b, C, h, w) for each size.
        indices: For each size, the indices of its images in the batch.
    """

    images: list[Tensor]
    indices: list[list[int]]


@torch.compiler.disable  # sizes are data: a compiled model begins after this function
def unpad(x: Tensor, min_size: int) -> Unpadded | None:
    """Crop the zero padding at the right and the bottom from the images of a batch (B, C, H, W).

    An image ends with its last row and its last column that hold a value other than zero. mmdet and mmseg call their
    backbones with one tensor, so the tensor itself carries the sizes through DDP, autocast, checkpointing and
    test-time augmentation. The sizes are certain where no pixel of an image can be zero in all channels. With a
    normalisation whose mean is not a whole number, as the published mean, a pixel of whole numbers never is. An image
    of zeros alone counts as filling the batch.

    Args:
        min_size: Minimum side of a cropped image in pixels.

    Returns:
        The images, or None if all images fill the batch or a graph is traced, which is for such images.

    Raises:
        ValueError: If pixels within an image are zero in all channels, since its size is then uncertain.
    """
    if torch.jit.is_tracing():
        return None
    full = x[:, :, -1].ne(0).flatten(1).any(dim=1) & x[:, :, :, -1].ne(0).flatten(1).any(dim=1)
    if bool(full.all()):
        return None
    indices: dict[tuple[int, int], list[int]] = {}
    for index, occupied in enumerate(x.ne(0).any(dim=1)):
        height, width = _extent(occupied.any(dim=1)), _extent(occupied.any(dim=0))
        if height and not bool(occupied[:height, :width].all()):
            raise ValueError(
                f"image {index} of the batch holds zeros in all channels within its {height}x{width} pixels, so its "
                "padding cannot be recognised: normalise with a mean that is not a whole number, or set "
                "ignore_padding=False"
            )
        size = (max(height, min_size), max(width, min_size)) if height else tuple(occupied.shape)
        indices.setdefault(size, []).append(index)
    if list(indices) == [tuple(x.shape[2:])]:
        return None
    images = [x[group, :, :height, :width] for (height, width), group in indices.items()]
    return Unpadded(images, list(indices.values()))


def _extent(occupied: Tensor) -> int:
    """Return the number of entries up to the last True entry, 0 without such an entry."""
    found = occupied.nonzero()
    return int(found[-1]) + 1 if len(found) else 0


def forward_unpadded(model: XCiT, unpadded: Unpadded, size: tuple[int, int]) -> tuple[Tensor, ...]:
    """Compute the pyramid (B, C, h, w) of a batch of `size` pixels, with zeros in the cells of the padding."""
    pyramid = []
    for stride, level, maps in zip(model.strides, model.levels(), _forward_trunk(model, unpadded.images), strict=True):
        # As large as the maps of the whole batch.
        height, width = (-(side // -model.patch_size) * model.patch_size // stride for side in size)
        maps = run_jointly(level, maps)
        batch = maps[0].new_zeros(sum(map(len, maps)), maps[0].shape[1], height, width)
        for group, x in zip(unpadded.indices, maps, strict=True):
            batch[group, :, : x.shape[2], : x.shape[3]] = x
        pyramid.append(batch)
    return tuple(pyramid)


def _forward_trunk(trunk: Trunk, images: list[Tensor]) -> list[list[Tensor]]:
    """Compute the maps of each tap: `Trunk.forward` for each image."""
    maps = _embed(trunk.patch_embed, images)
    sizes: Sizes = [(x.shape[2], x.shape[3]) for x in maps]
    tokens = [trunk.to_tokens(x) for x in maps]
    taps = []
    blocks: list[Any] = list(trunk.blocks)
    for index, block in enumerate(blocks):
        forward = partial(_forward_block, block)
        tokens = recompute(block, forward, tokens, sizes, always=True) if trunk.with_cp else forward(tokens, sizes)
        if index in trunk.out_indices:
            taps.append([x.transpose(1, 2).unflatten(2, size) for x, size in zip(tokens, sizes, strict=True)])
    return taps


def _embed(stem: ConvPatchEmbed | LinearPatchEmbed, images: list[Tensor]) -> list[Tensor]:
    if isinstance(stem, LinearPatchEmbed):
        return [stem(x) for x in images]
    return run_jointly(stem.proj, [channels_last(x) for x in images])


def _forward_block(block: Block, tokens: list[Tensor], sizes: Sizes) -> list[Tensor]:
    """Compute `Block.forward` for each size."""
    tokens = [block.add_branch(x, block.gamma1, block.attn(block.norm1(x))) for x in tokens]
    branches = _interact(block.local_mp, [block.norm3(x) for x in tokens], sizes)
    tokens = [block.add_branch(x, block.gamma3, branch) for x, branch in zip(tokens, branches, strict=True)]
    return [in_chunks(block, block.add_mlp, x) for x in tokens]


def _interact(lpi: LPI, tokens: list[Tensor], sizes: Sizes) -> list[Tensor]:
    """Compute `LPI.forward` for each size."""
    if not _normalizes_by_batch(lpi.bn):
        return [lpi(x, *size) for x, size in zip(tokens, sizes, strict=True)]
    maps = [x.unflatten(1, size).permute(0, 3, 1, 2) for x, size in zip(tokens, sizes, strict=True)]
    maps = recompute(lpi, run_jointly, (lpi.conv1, lpi.act, lpi.bn, lpi.conv2), maps)
    return [x.permute(0, 2, 3, 1).flatten(1, 2) for x in maps]


def run_jointly(modules: Iterable[nn.Module], maps: list[Tensor]) -> list[Tensor]:
    """Run maps (b, C, h, w) of several sizes through modules, in sequence.

    A module takes each map alone, but BatchNorm that normalises by the batch takes the cells of all maps together.
    """
    for module in modules:
        if isinstance(module, nn.Sequential):
            maps = run_jointly(module, maps)
        elif _normalizes_by_batch(module):
            maps = _normalize_jointly(module, maps)
        else:
            maps = [module(x) for x in maps]
    return maps


def _normalizes_by_batch(module: nn.Module) -> bool:
    return isinstance(module, BatchNorm) and (module.training or module.running_mean is None)


def _normalize_jointly(norm: nn.Module, maps: list[Tensor]) -> list[Tensor]:
    # Each cell as an image of 1x1: torch 2.13 computes wrong gradients of one channels-last image on a CPU.
    cells = [x.permute(0, 2, 3, 1).flatten(0, 2) for x in maps]
    normalized = norm(torch.cat(cells)[:, :, None, None])[:, :, 0, 0]
    pieces = normalized.split([len(piece) for piece in cells])
    return [
        piece.view(x.shape[0], x.shape[2], x.shape[3], x.shape[1]).permute(0, 3, 1, 2)
        for piece, x in zip(pieces, maps, strict=True)
    ]
