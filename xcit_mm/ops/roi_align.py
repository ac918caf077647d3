"""RoIAlign and its gradient in torch, with the results of mmcv's compiled operators (Mask R-CNN, arXiv 1703.06870)."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

MAX_SAMPLES = 2**18  # along an axis, over the RoIs whose weights are in memory at a time
MAX_COUNT = 2**20  # samples per bin and axis of a RoI, thousands of times the size of an image
EMPTY = -10_000.0  # mmcv's maximum of a bin without samples


class _Boxes(NamedTuple):
    """RoIs in cells of a feature map, rows before columns."""

    images: list[int]  # index in the batch
    start: Tensor  # (n, 2)
    size: Tensor  # (n, 2)


def _to_cells(rois: Tensor, batch_size: int, scale: float, aligned: bool) -> _Boxes:
    """Convert RoIs (n, 5) to cells. The operations are mmcv's in mmcv's order, so they round as mmcv's do.

    Raises:
        ValueError: If a compiled mmcv would reject a RoI, or read foreign memory for it.
    """
    finite = rois.isfinite().all(1)
    ordered = (rois[:, 1:3] <= rois[:, 3:]).all(1) if aligned else torch.ones_like(finite)
    known = (rois[:, 0] >= 0) & (rois[:, 0] < batch_size)
    for valid, problem in (
        (finite, "is not finite"),
        (ordered, "ends before it begins: give x1, y1, x2, y2 with x1 <= x2 and y1 <= y2"),
        (known, f"is of an image that is not among the {batch_size} of the batch"),
    ):
        if not valid.all():
            raise ValueError(f"RoI {rois[~valid][0].tolist()} (image, x1, y1, x2, y2) {problem}")
    x1, y1, x2, y2 = (rois[:, 1:] * scale - (0.5 if aligned else 0.0)).unbind(1)
    size = torch.stack([y2 - y1, x2 - x1], dim=1)
    return _Boxes(rois[:, 0].long().tolist(), torch.stack([y1, x1], dim=1), size if aligned else size.clamp(min=1))


def _counts(length: Tensor, bins: int, sampling_ratio: int) -> Tensor:
    """Return the samples per bin of RoIs: at least one per cell where `sampling_ratio` is 0, none in an empty RoI."""
    if sampling_ratio > 0:
        return torch.full_like(length, sampling_ratio)
    counts = (length / bins).float().ceil().to(length.dtype)
    if (counts > MAX_COUNT).any():
        raise ValueError(f"a RoI is {length.max():.3g} cells long: clip boxes to the image")
    return counts


def _sample(start: Tensor, length: Tensor, bins: int, sampling_ratio: int) -> tuple[Tensor, Tensor]:
    """Place the samples of RoIs from `start` (n,) over `length` (n,), in cells along an axis.

    Returns:
        Positions (n, bins, samples) in cells, and the number of them that each RoI uses, (n, 1, 1).
    """
    counts = _counts(length, bins, sampling_ratio)
    sample = torch.arange(max(int(counts.max()), 1), dtype=start.dtype, device=start.device)
    bin_ = torch.arange(bins, dtype=start.dtype, device=start.device)[:, None]
    start, bin_size, counts = start[:, None, None], (length / bins)[:, None, None], counts[:, None, None]
    return start + bin_ * bin_size + (sample + 0.5) * bin_size / counts, counts


class _Cells(NamedTuple):
    """Positions along an axis of a map, with the cells between which they are interpolated."""

    low: Tensor  # index of the cell before a position
    high: Tensor  # index of the cell after a position; at the border, the same cell
    fraction: Tensor  # of the way from low to high
    inside: Tensor  # whether the position is at most one cell beyond the border, where the map counts


def _locate(position: Tensor, size: int) -> _Cells:
    inside = (position >= -1) & (position <= size)
    cell = position.nan_to_num(0).clamp(0, size - 1)
    low = cell.long()
    return _Cells(low, (low + 1).clamp_(max=size - 1), cell - low, inside)


def _weights(position: Tensor, counts: Tensor, size: int) -> tuple[Tensor, Iterator[slice]]:
    """Return the weight (n, bins, size) of each cell in the mean of a bin, and the cells that each RoI reads."""
    low, high, fraction, inside = _locate(position, size)
    inside &= torch.arange(low.shape[2], device=low.device) < counts
    share = inside / counts.clamp(min=1)
    weights = share.new_zeros(*low.shape[:2], size)
    weights.scatter_add_(2, low, share * (1 - fraction)).scatter_add_(2, high, share * fraction)
    end = (high + 1).masked_fill(~inside, 0).flatten(1).amax(1)
    first = low.masked_fill(~inside, size).flatten(1).amin(1).minimum(end)
    return weights, map(slice, first.tolist(), end.tolist())


def _windows(
    boxes: _Boxes, map_size: tuple[int, ...], bins: tuple[int, ...], sampling_ratio: int
) -> Iterator[tuple[int, tuple[int, slice, slice], Tensor, Tensor]]:
    """For each RoI: its index; image, rows and columns that it reads; their weights (bins, h) and (bins, w)."""
    samples = _counts(boxes.size.amax(1), 1, sampling_ratio).clamp(min=max(map_size)).long()
    # RoIs of similar length together, since the weights of each are padded to the longest.
    order = samples.argsort(stable=True)
    sorted_samples = samples[order].tolist()
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * sorted_samples[end] <= MAX_SAMPLES:
            end += 1
        chosen = order[start:end]
        by_row, by_column = (
            _weights(
                *_sample(boxes.start[chosen, axis], boxes.size[chosen, axis], bins[axis], sampling_ratio),
                map_size[axis],
            )
            for axis in (0, 1)
        )
        for n, (roi, h, w) in enumerate(zip(chosen.tolist(), by_row[1], by_column[1], strict=True)):
            yield roi, (boxes.images[roi], h, w), by_row[0][n, :, h], by_column[0][n, :, w]
        start = end


def _channels_last_pays(boxes: _Boxes, shape: tuple[int, ...]) -> bool:
    """Return whether to lay out maps (B, C, H, W) with channels last as a whole, and not the windows of the RoIs alone.

    A cell of a window costs about eight times as much as a cell of the whole.
    """
    images, _, height, width = shape
    y, x = (boxes.size + 2).unbind(1)
    return bool(8 * (x.clamp(max=width) * y.clamp(max=height)).sum() > images * height * width)


def roi_align(
    maps: Tensor, rois: Tensor, bins: tuple[int, ...], scale: float, sampling_ratio: int = 0, aligned: bool = True
) -> Tensor:
    """Pool each RoI to rows and columns of bins, each the mean of samples that are interpolated bilinearly.

    The samples stand on a grid, so a bin is a weighted sum over rows, then over columns: two small matrix products for
    each RoI, with channels last.

    Args:
        maps: (B, C, H, W). A value that is not finite may spread to all bins of a RoI.
        rois: (n, 5), index of the image, x1, y1, x2, y2 in pixels.
        bins: Numbers of rows and columns.
        scale: Cells of the map per pixel.
        sampling_ratio: Samples per bin and axis, or 0 for as many as the bin has cells, rounded up.
        aligned: Whether the center of the first cell is at half a cell (true) or at 0.

    Returns:
        (n, C, rows, columns) in the type of `maps`. An empty RoI has zeros.

    Raises:
        ValueError: If a RoI is not finite, is not of an image of the batch, is much larger than an image or, where
            `aligned` is true, ends before it begins.
    """
    channels = maps.shape[1]
    rois = _in_single_precision(rois, maps)
    boxes = _to_cells(rois, len(maps), scale, aligned)
    copy = _channels_last_pays(boxes, maps.shape)
    maps = maps.permute(0, 2, 3, 1)
    maps = maps.contiguous() if copy else maps
    pooled = rois.new_empty(len(rois), *bins, channels)
    with _no_autocast(maps):
        for n, place, by_row, by_column in _windows(boxes, maps.shape[1:3], bins, sampling_ratio):
            window = maps[place].to(rois.dtype)
            height, width, _ = window.shape
            rows = (by_row @ window.reshape(height, width * channels)).view(bins[0], width, channels)
            torch.matmul(by_column, rows, out=pooled[n])
    return pooled.permute(0, 3, 1, 2).to(maps.dtype)


def roi_align_backward(
    grad: Tensor, rois: Tensor, shape: tuple[int, ...], scale: float, sampling_ratio: int = 0, aligned: bool = True
) -> Tensor:
    """Compute the gradient of the maps of `roi_align`, which have the given `shape`, (B, C, H, W).

    The weights are computed again, since mmcv passes only the arguments of the forward pass, and the gradient of the
    result, `grad` (n, C, rows, columns).
    """
    images, channels, *map_size = shape
    bins = tuple(grad.shape[2:])
    rois = _in_single_precision(rois, grad)
    boxes = _to_cells(rois, images, scale, aligned)
    if _channels_last_pays(boxes, shape):
        grad_maps = rois.new_zeros(images, *map_size, channels)
    else:
        grad_maps = rois.new_zeros(shape).permute(0, 2, 3, 1)
    by_bin = grad.permute(0, 2, 3, 1).to(rois.dtype)
    with _no_autocast(grad):
        for n, place, by_row, by_column in _windows(boxes, tuple(map_size), bins, sampling_ratio):
            height, width = by_row.shape[1], by_column.shape[1]
            rows = (by_column.mT @ by_bin[n]).view(bins[0], width * channels)
            grad_maps[place] += (by_row.mT @ rows).view(height, width, channels)
    return grad_maps.permute(0, 3, 1, 2).to(grad.dtype)


def roi_max_align(
    maps: Tensor, rois: Tensor, bins: tuple[int, ...], scale: float, sampling_ratio: int = 0, aligned: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Pool the maximum of a bin's samples instead of their mean; see `roi_align` for arguments and errors.

    Returns:
        Three tensors (n, C, rows, columns): the maxima, and rows and columns of their samples in cells, -1 for a bin
        without samples.
    """
    shape = len(rois), maps.shape[1], *bins
    rois = _in_single_precision(rois, maps)
    boxes = _to_cells(rois, len(maps), scale, aligned)
    best, best_y, best_x = (rois.new_full(shape, value) for value in (EMPTY, -1.0, -1.0))
    for n, image in enumerate(boxes.images):
        (y, y_counts), (x, x_counts) = (
            _sample(boxes.start[n, axis, None], boxes.size[n, axis, None], bins[axis], sampling_ratio)
            for axis in (0, 1)
        )
        if not y_counts.all() or not x_counts.all():
            continue
        y, x = y[0], x[0]
        sampled = _interpolate(maps[image].to(rois.dtype), y.flatten(), x.flatten())
        # (C, rows, y samples, columns, x samples), with the samples of a bin last.
        by_bin = sampled.unflatten(2, x.shape).unflatten(1, y.shape).transpose(2, 3).flatten(3)
        best[n], index = by_bin.max(3)
        row, column = (torch.arange(count, device=rois.device) for count in bins)
        best_y[n] = y[row[:, None], index // x.shape[1]]
        best_x[n] = x[column, index % x.shape[1]]
    return best.to(maps.dtype), best_y, best_x


def roi_max_align_backward(grad: Tensor, rois: Tensor, y: Tensor, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Compute the gradient of the maps of `roi_max_align`, which have the given `shape`, (B, C, H, W).

    `grad` is the gradient of the maxima, (n, C, rows, columns); `y` and `x` are their positions.
    """
    images, channels, height, width = shape
    grad_maps = _in_single_precision(grad, grad).new_zeros(images, channels, height * width)
    image = rois[:, 0].long()[:, None, None, None]
    channel = torch.arange(channels, device=grad.device)[:, None, None]
    row, column = _locate(y.to(grad_maps), height), _locate(x.to(grad_maps), width)
    grad = grad * (row.inside & column.inside & (y != -1))
    for cell_y, weight_y in ((row.low, 1 - row.fraction), (row.high, row.fraction)):
        for cell_x, weight_x in ((column.low, 1 - column.fraction), (column.high, column.fraction)):
            place = image, channel, cell_y * width + cell_x
            grad_maps.index_put_(place, grad * weight_y * weight_x, accumulate=True)
    return grad_maps.view(shape).to(grad.dtype)


def _interpolate(maps: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return the values (C, len(y), len(x)) of maps (C, H, W) at all pairs of positions, zero outside."""
    row, column = _locate(y, maps.shape[1]), _locate(x, maps.shape[2])
    rows = maps[:, row.low] * (1 - row.fraction)[:, None] + maps[:, row.high] * row.fraction[:, None]
    values = rows[..., column.low] * (1 - column.fraction) + rows[..., column.high] * column.fraction
    return values * (row.inside[:, None] & column.inside)


def _in_single_precision(tensor: Tensor, maps: Tensor) -> Tensor:
    """Convert to the type to compute in: that of the maps, or float32 for half precision, too coarse for positions."""
    return tensor.to(torch.promote_types(maps.dtype, torch.float32))


def _no_autocast(tensor: Tensor) -> torch.autocast:
    """Keep autocast, within which mmcv calls its operators, from products with positions' weights."""
    return torch.autocast(tensor.device.type, enabled=False)
