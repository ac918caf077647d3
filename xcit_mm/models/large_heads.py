"""Neck and heads over an image of any size: they read its feature maps window by window.

A window sees a margin of its neighbours. A part of a model is local if what it computes for the
interior of a window is what it computes there for the image; locality.py tries it out.
mmseg's PPM, the pyramid of pools in UPerHead and PSPHead, is not local: each of its bins is a mean
over a part of the image. But a mean is a sum over windows, so `Pools` adds up the bins, some 50
vectors, and each window then gets its part of the resized bins.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from functools import reduce
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..utils.ranks import Ranks
from .large import Taps, pyramid_of
from .windows import CELL, in_cells
from .xcit import STRIDES

Place: TypeAlias = tuple[slice, slice]
"""Rows and columns."""


class LargeHeads:
    """The neck and heads of a model over the taps of an image, which they read in windows.

    Windows are given in pixels, as multiples of 32. They lie in the image that is padded to 32.

    Args:
        model: A detector or segmentor with an XCiT, in eval mode. It stays as it is.
        taps: The taps of its trunk, from `large_taps`.
    """

    def __init__(self, model: Any, taps: Taps) -> None:
        self._model = model
        self._taps = taps
        self._patch_size: int = model.backbone.patch_size
        self._pools: Pools | None = None

    @torch.no_grad()
    def add_pools(self, windows: Iterable[tuple[Place, Place]], group: Any = None) -> None:
        """Compute the pools over the image of a head of `pooled_head`, if the model has one.

        A map with cells of more than 32 pixels, to which images are padded, is pooled by windows.

        Args:
            windows: Windows, and their parts that count, which cover the image once.
            group: A group of torch.distributed, whose processes share the windows. Default: this
                process alone.
        """
        head = pooled_head(self._model)
        if head is None:
            return
        height, width = (side * self._patch_size for side in self._taps.valid.shape)
        corner = slice(0, min(CELL, height)), slice(0, min(CELL, width))
        stride = corner[0].stop // self._pooled_map(head, corner).shape[2]
        if stride > STRIDES[-1]:
            return
        pools = Pools(head, (height // stride, width // stride), stride)
        ranks = Ranks(group)
        for window, inside in list(windows)[ranks.rank :: ranks.size]:
            x = self._pooled_map(head, window)
            rows, columns = (in_cells(side, self._patch_size) for side in window)
            valid = cells_of(self._taps.valid[None, None, rows, columns], x)
            pools.add(x, valid, window, inside)
        pools.finish(ranks)
        self._pools = pools

    def _pooled_map(self, head: Any, window: Place) -> Tensor:
        model, images = self.model_at(*window)
        return pooled_map(head, model.extract_feat(images))

    def model_at(self, rows: slice, columns: slice) -> tuple[Any, Tensor]:
        """Return a model that predicts a window, and images of its size."""
        maps = pyramid_of(self._model.backbone, self._taps, rows, columns)
        model = replace_part(self._model, "backbone", _Given(maps))
        if self._pools is not None:
            model = replace_part(model, "decode_head", self._pools.head_at(rows, columns))
        # Heads take the size of a batch from its images, and no pixels.
        size = rows.stop - rows.start, columns.stop - columns.start
        return model, maps[0].new_empty(()).expand(1, self._model.backbone.in_channels, *size)


class _Given(nn.Module):
    """Takes the place of a module whose result is known."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def forward(self, x: Tensor) -> Any:
        return self.result


def replace_part(module: Any, name: str, part: nn.Module) -> Any:
    """Return a module that differs from another by one part, and shares all others."""
    changed = copy(module)
    # torch has no public name for the dict of submodules, which a copy shares with its original.
    changed._modules = module._modules | {name: part}
    return changed


def pooled_head(model: Any) -> Any | None:
    """Return the decode head of a model if its pools over the image can be exact, else None."""
    if not hasattr(model, "decode_head"):  # a detector does not need to import mmseg
        return None
    from mmseg.models.decode_heads import PSPHead, UPerHead

    return model.decode_head if type(model.decode_head) in (PSPHead, UPerHead) else None


class Pools:
    """The pools of a head of `pooled_head` over an image, added up window by window.

    Args:
        head: The head.
        size: Height and width of the map that is pooled.
        stride: Pixels along a cell of the map.
    """

    def __init__(self, head: Any, size: tuple[int, int], stride: int) -> None:
        self._head = head
        self._size = size
        self._stride = stride
        counts = [branch[0].output_size for branch in head.psp_modules]
        self._bins = [tuple(_bins(count, length) for length in size) for count in counts]
        # Of each bin the sum of each channel, and the number of cells with data.
        self._sums = [torch.zeros((), dtype=torch.float64)] * len(counts)

    def add(self, x: Tensor, valid: Tensor, window: Place, inside: Place) -> None:
        """Add what a window shows of the map.

        Args:
            x: The map in the window, (B, C, h, w).
            valid: Which of its cells have data, (B, 1, h, w).
            window: Its place in pixels.
            inside: The part of it that counts, in pixels.
        """
        cells = valid.double()
        x = torch.cat((x.double() * cells, cells), dim=1)
        rows, columns = (in_cells(side, self._stride) for side in inside)
        top, left = (side.start // self._stride for side in window)
        x = x[..., rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
        for number, (of_rows, of_columns) in enumerate(self._bins):
            in_rows = of_rows[:, rows].to(x)
            in_columns = of_columns[:, columns].to(x).T
            self._sums[number] = self._sums[number] + in_rows @ x @ in_columns

    def finish(self, ranks: Ranks) -> None:
        """Add the parts of all processes, in the order of ranks, and convolve the means."""
        parameter = next(self._head.parameters())
        of_ranks = ranks.gather([sums.cpu() for sums in self._sums])
        self._pooled = []
        for branch, *parts in zip(self._head.psp_modules, *of_ranks, strict=True):
            sums = reduce(torch.add, parts)
            mean = sums[:, :-1] / sums[:, -1:].clamp(min=1)
            self._pooled.append(branch[1](mean.to(parameter)))

    def head_at(self, rows: slice, columns: slice) -> Any:
        """Return the head for a window, given in pixels."""
        align = self._head.align_corners
        window = in_cells(rows, self._stride), in_cells(columns, self._stride)
        resized = []
        for x in self._pooled:
            of_rows, of_columns = (
                _weights(x.shape[-1], length, align)[:, side].to(x)
                for length, side in zip(self._size, window, strict=True)
            )
            resized.append(of_rows.T @ x @ of_columns)
        return replace_part(self._head, "psp_modules", _Given(resized))


def pooled_map(head: Any, features: Sequence[Tensor]) -> Tensor:
    """Return the map that a head of `pooled_head` pools, in UPerHead the coarsest."""
    # mmseg (1.2) has no public name for how a head selects, resizes and joins its maps.
    x = head._transform_inputs(features)
    return x if isinstance(x, Tensor) else x[-1]


def cells_of(valid: Tensor, x: Tensor) -> Tensor:
    """Return which cells of a map x (B, C, h, w) have data: (B, 1, h, w).

    The mask (B, 1, H, W) has another scale.
    """
    return F.adaptive_max_pool2d(valid.float(), x.shape[2:]) > 0


def head_with_data(model: Any, features: Sequence[Tensor], valid: Tensor) -> Any:
    """Return the decode head of a model for features of which some pixels have no data.

    If it is one of `pooled_head`, its pools leave these pixels out. They are computed here, so the
    head is for these features alone. Any other head is returned as it is.

    Args:
        features: What the head gets.
        valid: Which pixels have data, (B, 1, H, W).
    """
    head = pooled_head(model)
    if head is None:
        return model.decode_head
    x = pooled_map(head, features)
    everything = slice(0, x.shape[2]), slice(0, x.shape[3])
    pools = Pools(head, (x.shape[2], x.shape[3]), stride=1)
    pools.add(x, cells_of(valid, x), everything, everything)
    pools.finish(Ranks(None))
    return pools.head_at(*everything)


def _bins(count: int, length: int) -> Tensor:
    """Return which cells of an axis are in which bin of torch's adaptive pooling.

    Shape: (count, length).
    """
    return F.adaptive_avg_pool1d(torch.eye(length), count).T > 0


def _weights(count: int, length: int, align_corners: bool) -> Tensor:
    """Return the weights of linear interpolation from cells to a finer axis, (count, length)."""
    one_hot = torch.eye(count)[None]
    return F.interpolate(one_hot, length, mode="linear", align_corners=align_corners)[0]
