"""RoIAlign (Mask R-CNN, arXiv 1703.06870) and its gradient, with the results of a compiled mmcv.

The samples of a RoI stand on a grid, so a bin is a weighted sum over rows of the map, then over
columns: two small matrix products for each RoI, with channels last.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

MAX_COUNT = 4096  # samples per bin and axis of a RoI, many times the size of an image
Place = tuple[int, slice, slice]  # of a RoI in the maps: image, rows and columns


class Sampling(NamedTuple):
    """How RoIs are sampled: each has rows and columns of bins, each the mean of its samples.

    Attributes:
        bins: Numbers of rows and columns.
        scale: Cells of the map per pixel.
        ratio: Samples per bin and axis, or 0 for as many as the bin has cells, rounded up.
        aligned: Whether the centre of the first cell is at half a cell (true) or at 0.
    """

    bins: tuple[int, int]
    scale: float
    ratio: int
    aligned: bool


def _weights(start: Tensor, length: Tensor, bins: int, size: int, ratio: int) -> Tensor:
    """Return the weight (n, bins, size) of each cell in the mean of a bin, along one axis.

    The operations are mmcv's in mmcv's order, so they round as mmcv's do.

    Args:
        start: Where the RoIs begin on the axis, in cells, not rounded, (n,).
        length: Their lengths in cells, (n,).
        bins: Number of bins along the axis.
        size: Number of cells along the axis.
        ratio: See `Sampling`.
    """
    if ratio > 0:
        counts = torch.full_like(length, ratio)
    else:
        counts = (length / bins).float().ceil().to(length.dtype).clamp(min=0)  # 0 if RoI is empty
    if (counts > MAX_COUNT).any():
        raise ValueError(f"a RoI is {length.max():.3g} cells long: clip boxes to the image")
    sample = torch.arange(max([1, *counts.int().tolist()]), dtype=start.dtype, device=start.device)
    bin_ = torch.arange(bins, dtype=start.dtype, device=start.device)[:, None]
    start = start[:, None, None]
    bin_size = (length / bins)[:, None, None]
    counts = counts[:, None, None]
    position = start + bin_ * bin_size + (sample + 0.5) * bin_size / counts  # (n, bins, samples)
    inside = (position >= -1) & (position <= size) & (sample < counts)
    cell = position.nan_to_num(0).clamp(0, size - 1)
    low = cell.long()
    share = inside / counts.clamp(min=1)
    fraction = cell - low
    weights = share.new_zeros(*low.shape[:2], size).scatter_add_(2, low, share * (1 - fraction))
    return weights.scatter_add_(2, (low + 1).clamp_(max=size - 1), share * fraction)


def _weights_and_cells(
    start: Tensor, end: Tensor, bins: int, size: int, sampling: Sampling
) -> tuple[Tensor, list[slice]]:
    """Return the weights (n, bins, size) of cells in the means of n RoIs' bins along one axis.

    A range for each RoI has the cells with weights other than zero.
    """
    length = end - start
    if not sampling.aligned:
        length = length.clamp(min=1)
    weights = _weights(start, length, bins, size, sampling.ratio)
    is_read = weights.ne(0).any(1).int()
    firsts = is_read.argmax(1).tolist()
    ends = (is_read * torch.arange(1, size + 1, device=is_read.device)).amax(1).tolist()
    return weights, [slice(*cells) for cells in zip(firsts, ends, strict=True)]


def _check_rois(rois: Tensor, images: int, aligned: bool) -> None:
    """Raise ValueError if a compiled mmcv would reject a RoI, or read memory outside the maps.

    It rejects a RoI that ends before it begins only if `aligned`.
    """
    valid = rois.isfinite().all(1) & (rois[:, 0] >= 0) & (rois[:, 0] < images)
    if aligned:
        valid &= (rois[:, 1:3] <= rois[:, 3:]).all(1)
    if not valid.all():
        roi = f"RoI {rois[~valid][0].tolist()} (image, x1, y1, x2, y2)"
        order = ", with x1 <= x2 and y1 <= y2" if aligned else ""
        rule = f"values must be finite, and the image from 0 to {images - 1}{order}"
        raise ValueError(f"{roi} is invalid: {rule}")


def _iter_windows(
    rois: Tensor, shape: tuple[int, ...], sampling: Sampling
) -> Iterator[tuple[Place, Tensor, Tensor]]:
    """Yield for each RoI the cells that it reads, and their weights in its bins.

    The cells are an index of h rows and w columns of maps (B, H, W, C). The weights are those of
    the rows, (row bins, h), and of the columns, (column bins, w).
    """
    images, height, width, _ = shape
    _check_rois(rois, images, sampling.aligned)
    shift = 0.5 if sampling.aligned else 0.0
    x1, y1, x2, y2 = (rois[:, 1:] * sampling.scale - shift).unbind(1)
    row_weights, rows = _weights_and_cells(y1, y2, sampling.bins[0], height, sampling)
    column_weights, columns = _weights_and_cells(x1, x2, sampling.bins[1], width, sampling)
    for n, image in enumerate(rois[:, 0].int().tolist()):
        place = image, rows[n], columns[n]
        yield place, row_weights[n, :, rows[n]], column_weights[n, :, columns[n]]


def roi_align(maps: Tensor, rois: Tensor, sampling: Sampling) -> Tensor:
    """Pool each RoI to bins, each the mean of samples that are interpolated bilinearly.

    Args:
        maps: (B, C, H, W).
        rois: (n, 5), index of the image, x1, y1, x2, y2 in pixels.
        sampling: Bins and their samples.

    Returns:
        (n, C, rows, columns) in the type of `maps`.

    Raises:
        ValueError: If a RoI is not finite, belongs to no image of the batch, is much larger than an
            image where `sampling.ratio` is 0, or ends before it begins where `sampling.aligned`.
    """
    channels = maps.shape[1]
    dtype = torch.promote_types(maps.dtype, torch.float32)  # half is too coarse for positions
    by_cell = maps.permute(0, 2, 3, 1).contiguous()
    pooled = maps.new_empty(len(rois), *sampling.bins, channels, dtype=dtype)
    with torch.autocast(maps.device.type, enabled=False):
        windows = _iter_windows(rois.to(dtype), by_cell.shape, sampling)
        for n, (place, rows, columns) in enumerate(windows):
            window = by_cell[place].to(dtype)
            pooled_rows = (rows @ window.flatten(1)).view(len(rows), window.shape[1], channels)
            torch.matmul(columns, pooled_rows, out=pooled[n])
    return pooled.permute(0, 3, 1, 2).to(maps.dtype)


def roi_align_gradient(
    grad: Tensor, rois: Tensor, shape: tuple[int, ...], sampling: Sampling
) -> Tensor:
    """Compute the gradient of the maps of `roi_align`, of this shape, from that of its result.

    Autograd would take a tensor as large as the maps for each RoI.
    """
    images, channels, height, width = shape
    dtype = torch.promote_types(grad.dtype, torch.float32)
    by_bin = grad.permute(0, 2, 3, 1).to(dtype)
    by_cell = by_bin.new_zeros(images, height, width, channels)
    with torch.autocast(grad.device.type, enabled=False):
        windows = _iter_windows(rois.to(dtype), by_cell.shape, sampling)
        for n, (place, rows, columns) in enumerate(windows):
            by_row = (columns.mT @ by_bin[n]).flatten(1)
            by_cell[place] += (rows.mT @ by_row).view(rows.shape[1], columns.shape[1], channels)
    return by_cell.permute(0, 3, 1, 2).to(grad.dtype)
