"""RoIAlign by means (Mask R-CNN, arXiv 1703.06870) and its gradient in torch, with the results of a
compiled mmcv.

The samples of a RoI stand on a grid, so a bin is a weighted sum over rows of the map, then over
columns: two small matrix products for each RoI, with channels last.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

MAX_COUNT = 4096  # samples per bin and axis of a RoI, many times the size of an image
Window = tuple[int, tuple[int, slice, slice], Tensor, Tensor]


def _weights(start: Tensor, length: Tensor, bins: int, size: int, sampling_ratio: int) -> Tensor:
    """Return the weight (n, bins, size) of each cell in the mean of a bin, of RoIs along an axis,
    in cells.

    The operations are mmcv's in mmcv's order, so they round as mmcv's do.
    """
    counts = (length / bins).float().ceil().to(length.dtype)  # none in an empty RoI
    counts = counts.clamp(min=0) if sampling_ratio <= 0 else torch.full_like(length, sampling_ratio)
    if (counts > MAX_COUNT).any():
        raise ValueError(f"a RoI is {length.max():.3g} cells long: clip boxes to the image")
    sample = torch.arange(max([1, *counts.int().tolist()]), dtype=start.dtype, device=start.device)
    bin_ = torch.arange(bins, dtype=start.dtype, device=start.device)[:, None]
    start, bin_size, counts = (
        start[:, None, None],
        (length / bins)[:, None, None],
        counts[:, None, None],
    )
    position = start + bin_ * bin_size + (sample + 0.5) * bin_size / counts  # (n, bins, samples)
    inside = (position >= -1) & (position <= size) & (sample < counts)
    cell = position.nan_to_num(0).clamp(0, size - 1)
    low = cell.long()
    share, fraction = inside / counts.clamp(min=1), cell - low
    weights = share.new_zeros(*low.shape[:2], size).scatter_add_(2, low, share * (1 - fraction))
    return weights.scatter_add_(2, (low + 1).clamp_(max=size - 1), share * fraction)


def _windows(
    rois: Tensor,
    shape: tuple[int, ...],
    bins: tuple[int, ...],
    scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> Iterator[Window]:
    """For each RoI: its index; image, rows and columns that it reads; their weights (bins, h) and
    (bins, w).
    """
    # A compiled mmcv rejects what is not valid, or reads foreign memory.
    valid = rois.isfinite().all(1) & (rois[:, 0] >= 0) & (rois[:, 0] < shape[0])
    if aligned:
        valid &= (rois[:, 1:3] <= rois[:, 3:]).all(1)
    if not valid.all():
        given = f"RoI {rois[~valid][0].tolist()} (image, x1, y1, x2, y2)"
        raise ValueError(
            f"{given}: must be finite, of one of {shape[0]} images, with x1 <= x2 and y1 <= y2"
        )
    x1, y1, x2, y2 = (rois[:, 1:] * scale - (0.5 if aligned else 0.0)).unbind(1)
    weights, ends = [], []
    for start, end, count, size in ((y1, y2, bins[0], shape[1]), (x1, x2, bins[1], shape[2])):
        length = end - start if aligned else (end - start).clamp(min=1)
        weights.append(_weights(start, length, count, size, sampling_ratio))
        used = weights[-1].ne(0).any(1).int()
        last = (used * torch.arange(1, size + 1, device=used.device)).amax(1)
        ends.append(zip(used.argmax(1).tolist(), last.tolist(), strict=True))
    for n, (image, rows, columns) in enumerate(zip(rois[:, 0].int().tolist(), *ends, strict=True)):
        place = image, slice(*rows), slice(*columns)
        yield n, place, weights[0][n, :, place[1]], weights[1][n, :, place[2]]


def roi_align(
    maps: Tensor,
    rois: Tensor,
    bins: tuple[int, ...],
    scale: float,
    sampling_ratio: int = 0,
    aligned: bool = True,
) -> Tensor:
    """Pool each RoI to rows and columns of bins, each the mean of samples that are interpolated
    bilinearly.

    Args:
        maps: (B, C, H, W).
        rois: (n, 5), index of the image, x1, y1, x2, y2 in pixels.
        bins: Numbers of rows and columns.
        scale: Cells of the map per pixel.
        sampling_ratio: Samples per bin and axis, or 0 for as many as the bin has cells, rounded up.
        aligned: Whether the center of the first cell is at half a cell (true) or at 0.

    Returns:
        (n, C, rows, columns) in the type of `maps`. An empty RoI has zeros.

    Raises:
        ValueError: If a RoI is not finite, is not of an image of the batch, is much larger than an
            image or, where `aligned` is true, ends before it begins.
    """
    channels, dtype = (
        maps.shape[1],
        torch.promote_types(maps.dtype, torch.float32),
    )  # half is too coarse for positions
    by_cell = maps.permute(0, 2, 3, 1).contiguous()
    pooled = maps.new_empty(len(rois), *bins, channels, dtype=dtype)
    with torch.autocast(maps.device.type, enabled=False):
        for n, place, rows, columns in _windows(
            rois.to(dtype), by_cell.shape, bins, scale, sampling_ratio, aligned
        ):
            window = by_cell[place].to(dtype)
            pooled_rows = (rows @ window.flatten(1)).view(bins[0], window.shape[1], channels)
            torch.matmul(columns, pooled_rows, out=pooled[n])
    return pooled.permute(0, 3, 1, 2).to(maps.dtype)


def roi_align_backward(
    grad: Tensor,
    rois: Tensor,
    shape: tuple[int, ...],
    scale: float,
    sampling_ratio: int = 0,
    aligned: bool = True,
) -> Tensor:
    """Compute the gradient of the maps of `roi_align`, which have the given `shape`, from `grad`,
    that of its result.

    Not by autograd, whose gradient of a window is as large as the map.
    """
    (images, channels, *size), bins = shape, tuple(grad.shape[2:])
    dtype = torch.promote_types(grad.dtype, torch.float32)
    by_bin = grad.permute(0, 2, 3, 1).to(dtype)
    by_cell = by_bin.new_zeros(images, *size, channels)
    with torch.autocast(grad.device.type, enabled=False):
        for n, place, rows, columns in _windows(
            rois.to(dtype), by_cell.shape, bins, scale, sampling_ratio, aligned
        ):
            by_row = (columns.mT @ by_bin[n]).flatten(1)
            by_cell[place] += (rows.mT @ by_row).view(rows.shape[1], columns.shape[1], channels)
    return by_cell.permute(0, 3, 1, 2).to(grad.dtype)
