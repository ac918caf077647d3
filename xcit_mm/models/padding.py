"""Images of different sizes in one zero-padded batch, computed as if each were alone."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["Unpadded", "pad_together", "run_together", "unpad"]


class Unpadded(NamedTuple):
    """The images of a batch without their padding, those of one size together.

    Attributes:
        images: (b, C, h, w) for each size.
        places: Where in the batch the images of each size are.
    """

    images: list[Tensor]
    places: list[list[int]]


@torch.compiler.disable  # sizes are data: a compiled model begins after them
def unpad(x: Tensor, least: int) -> Unpadded | None:
    """Images of a batch (B, C, H, W) that is padded with zeros at the right and the bottom; None if all fill it.

    An image ends with the last row and the last column that hold anything but zeros. Nothing is said of sizes, since
    mmdet and mmseg hand their backbones one tensor; the tensor itself goes through DDP, autocast, checkpointing and
    test-time augmentation as it is. It tells the sizes for sure where no pixel of an image can be zero in all
    channels: with a normalisation whose mean is no whole number, as the published one, a pixel of whole numbers never
    is. An image of nothing but zeros counts as filling the batch.

    Args:
        x: The batch.
        least: Sides below this are taken as this.

    Raises:
        ValueError: If pixels within an image are zero in all channels: its size is then not known for sure.
    """
    if torch.jit.is_tracing():  # the graph is for images that fill their tensor
        return None
    ends = x[:, :, -1].ne(0).flatten(1).any(dim=1) & x[:, :, :, -1].ne(0).flatten(1).any(dim=1)
    if bool(ends.all()):
        return None
    occupied = x.ne(0).any(dim=1)
    places: dict[tuple[int, int], list[int]] = {}
    for place, image in enumerate(occupied):
        height, width = _extent(image.any(dim=1)), _extent(image.any(dim=0))
        if height and not bool(image[:height, :width].all()):
            raise ValueError(
                f"image {place} of the batch holds zeros in all channels within its {height}x{width} pixels, so its "
                "padding cannot be told: normalise with a mean that is no whole number, or set ignore_padding=False"
            )
        size = (max(height, least), max(width, least)) if height else tuple(image.shape)
        places.setdefault(size, []).append(place)
    if list(places) == [tuple(x.shape[2:])]:
        return None
    return Unpadded([x[where, :, :height, :width] for (height, width), where in places.items()], list(places.values()))


def _extent(occupied: Tensor) -> int:
    """Number of the last True entry, counted from 1; 0 if there is none."""
    found = occupied.nonzero()
    return int(found[-1]) + 1 if len(found) else 0


def pad_together(maps: Sequence[Tensor], places: Sequence[Sequence[int]], size: tuple[int, int]) -> Tensor:
    """One batch (B, C, H, W) of maps (b, C, h, w) of several sizes, with zeros at the right and the bottom."""
    height, width = size
    padded = torch.cat([F.pad(m, (0, width - m.shape[3], 0, height - m.shape[2])) for m in maps])
    order = [place for group in places for place in group]
    if order == sorted(order):
        return padded
    return padded[torch.tensor(order, device=padded.device).argsort()]


def run_together(modules: Iterable[nn.Module], maps: list[Tensor]) -> list[Tensor]:
    """Maps (b, C, h, w) of several sizes through modules, one after another.

    Each map goes alone, but for BatchNorm in training, whose statistics are those of all cells of all maps.
    """
    for module in modules:
        if isinstance(module, nn.Sequential):
            maps = run_together(module, maps)
        elif isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            maps = _normalize_together(module, maps)
        else:
            maps = [module(m) for m in maps]
    return maps


def _normalize_together(norm: _BatchNorm, maps: list[Tensor]) -> list[Tensor]:
    cells = torch.cat([m.permute(0, 2, 3, 1).flatten(0, 2) for m in maps])
    # One cell an image, not one image of many cells in channels-last: torch 2.13 gives wrong gradients there on CPU.
    normalized = norm(cells[:, :, None, None])[:, :, 0, 0]
    pieces = normalized.split([m.shape[0] * m.shape[2] * m.shape[3] for m in maps])
    return [
        piece.view(m.shape[0], m.shape[2], m.shape[3], m.shape[1]).permute(0, 3, 1, 2)
        for piece, m in zip(pieces, maps, strict=True)
    ]
