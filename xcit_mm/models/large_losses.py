"""The losses of a segmentor on a large image, and their gradients, window by window.

Pyramid, neck and heads read the taps of the trunk in windows, of which only the interiors count.
Cross entropy is a mean over pixels, so the loss of an image is a sum over its windows. The forward
pass runs the windows without gradients. The backward pass computes each again, and takes from it
the gradients of the weights and of its part of the taps.

The largest maps are logits at the size of the image. So a window enlarges a band of rows at a time.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..utils.memory import return_freed_memory
from .precision import current_autocast
from .xcit import STRIDES

MARGIN = 128
"""Pixels around its interior that a window sees."""
LOGITS = 2**20
"""Logits at full size at one time: 4 MiB, or those of 32 rows."""
EPS = torch.finfo(torch.float32).eps
"""What mmseg adds to a divisor."""

Place = tuple[slice, slice]
"""Rows and columns."""


class Window(NamedTuple):
    """A window of an image, in pixels.

    Attributes:
        span: All that it sees.
        inside: Its interior. The interiors of all windows cover the image, each pixel once.
    """

    span: Place
    inside: Place


def split_image(height: int, width: int, side: int) -> list[Window]:
    """Divide an image into windows whose interiors have sides of at most about `side` pixels."""
    axes = product(_split_axis(height, side), _split_axis(width, side))
    return [
        Window((rows, columns), (rows_inside, columns_inside))
        for (rows, rows_inside), (columns, columns_inside) in axes
    ]


def _split_axis(length: int, side: int) -> Iterator[tuple[slice, slice]]:
    """Divide an axis at multiples of 32 pixels, where cells of the coarsest map end."""
    cells = length // STRIDES[-1]
    count = math.ceil(length / side)
    seams = [number * cells // count * STRIDES[-1] for number in range(count + 1)]
    for start, stop in pairwise(seams):
        yield slice(max(start - MARGIN, 0), min(stop + MARGIN, length)), slice(start, stop)


def losses_by_windows(
    model: Any, taps: Sequence[Tensor], samples: Sequence[Any], side: int
) -> dict[str, Tensor]:
    """Compute the losses of a segmentor from the taps of its trunk, in bounded memory.

    Losses and gradients are those of mmseg's EncoderDecoder in memory, to rounding, and dropout of
    channels draws the same numbers. BatchNorm of heads in training mode sees windows, twice.

    Args:
        model: A segmentor of which `find_unfit_head` finds nothing.
        taps: (B, C, h, w) each, of images whose sides are multiples of 32 pixels.
        samples: Data samples of mmseg with the labels of these images.
        side: Side of the interiors of windows in pixels.

    Returns:
        The losses, and the accuracies, by the names that mmseg gives them.
    """
    losses = _Losses(model, samples, side)
    values, right = _ByWindows.apply(losses, len(taps), *taps, *losses.weights)
    found: dict[str, Tensor] = {}
    names = [name for head in losses.heads for name in head.names]
    for name, value in zip(names, values, strict=True):
        found[name] = found.get(name, 0) + value
    for head, count in zip(losses.heads, right, strict=True):
        accuracy = 100 * (count + EPS) / (head.pixels + EPS)
        found[f"{head.prefix}.acc_seg"] = accuracy.to(values)[None]
    return found


def heads_of(model: Any) -> dict[str, Any]:
    """Return the heads of a segmentor by the prefixes that mmseg gives the names of losses."""
    heads = {"decode": model.decode_head}
    if model.with_auxiliary_head:
        others = model.auxiliary_head
        if not isinstance(others, nn.ModuleList):
            return heads | {"aux": others}
        heads |= {f"aux_{number}": head for number, head in enumerate(others)}
    return heads


def losses_of(head: Any) -> list[Any]:
    """Return the losses of a head of mmseg."""
    losses = head.loss_decode
    return list(losses) if isinstance(losses, nn.ModuleList) else [losses]


class _Head:
    """A head with its losses, sums over pixels that are divided by what mmseg divides them by.

    Args:
        prefix: Prefix for the names of its losses.
        counts: The number of pixels of each label in the images.
    """

    def __init__(self, prefix: str, module: Any, counts: Tensor) -> None:
        self.prefix = prefix
        self.module = module
        self._losses = losses_of(module)
        self.names = [f"{prefix}.{loss.loss_name}" for loss in self._losses]
        self._ignored = module.ignore_index
        labels = torch.arange(len(counts), device=counts.device)
        kept = counts.masked_fill(labels == self._ignored, 0)
        self.pixels = kept.sum()
        self._divisors = []
        for loss in self._losses:
            counted = kept if loss.avg_non_ignore else counts
            if loss.class_weight is not None:
                weights = counts.new_tensor(loss.class_weight)
                counted = counted[: len(weights)] * weights
            self._divisors.append(counted.sum() + EPS)

    def values(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return what some pixels add to each loss.

        Args:
            logits: (B, classes, h, w).
            labels: (B, h, w).
        """
        options = dict(reduction_override="sum", ignore_index=self._ignored)
        sums = [loss(logits, labels, **options) for loss in self._losses]
        return torch.stack(sums) / torch.stack(self._divisors).to(sums[0])

    def count_right(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return how many of some pixels have the largest logit at their label."""
        return ((logits.argmax(dim=1) == labels) & (labels != self._ignored)).sum()


class _Band(NamedTuple):
    """Some rows of the interior of a window.

    Attributes:
        labels: (B, h, w).
        cells: The part of the window's logits from which these rows are enlarged.
        stride: The pixels along a cell.
        crop: The rows in the enlarged part.
    """

    labels: Tensor
    cells: tuple[Any, ...]
    stride: int
    crop: tuple[Any, ...]

    def enlarge(self, logits: Tensor) -> Tensor:
        """Enlarge the part of the logits to pixels."""
        scale = float(self.stride)
        x = F.interpolate(logits, scale_factor=scale, mode="bilinear", align_corners=False)
        return x[self.crop]


class _Losses:
    """The losses of a segmentor on images, of which each window has a part."""

    def __init__(self, model: Any, samples: Sequence[Any], side: int) -> None:
        self._model = model
        self._labels = [sample.gt_sem_seg.data[0] for sample in samples]
        height, width = self._labels[0].shape
        self.windows = split_image(height, width, side)
        most = max(256, model.num_classes)
        counts: Any = sum(torch.bincount(part.flatten(), minlength=most) for part in self._labels)
        modules = heads_of(model)
        self.heads = [_Head(*item, counts.double()) for item in modules.items()]
        parts = [*model.backbone.levels(), *modules.values()]
        if model.with_neck:
            parts.append(model.neck)
        self.weights = [w for part in parts for w in part.parameters() if w.requires_grad]
        device = self._labels[0].device
        self._autocast = current_autocast(device.type)
        self.gpus = [] if device.type == "cpu" else [device]
        self._random = torch.get_rng_state(), [torch.cuda.get_rng_state(gpu) for gpu in self.gpus]

    def tokens_in(self, window: Window) -> tuple[Any, ...]:
        """Return the place of a window in the taps."""
        size = self._model.backbone.patch_size
        return (..., *(slice(side.start // size, side.stop // size) for side in window.span))

    def values(self, window: Window, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return what a window adds to each loss, and to the right pixels of each head.

        Args:
            parts: The parts of the taps in the window.
        """
        values = []
        right = []
        with self._autocast:
            for head, logits in zip(self.heads, self._logits(parts), strict=True):
                value: Any = 0
                count: Any = 0
                for band in self._bands(window, logits):
                    enlarged = band.enlarge(logits[band.cells])
                    value = value + head.values(enlarged, band.labels).double()
                    count = count + head.count_right(enlarged, band.labels)
                values.append(value)
                right.append(count)
        return torch.cat(values), torch.stack(right)

    def gradients(
        self, window: Window, parts: Sequence[Tensor], of_values: Tensor
    ) -> list[Tensor | None]:
        """Return what a window adds to the gradients of its parts of the taps, and of the weights.

        Args:
            parts: The parts of the taps in the window.
            of_values: The gradients of the losses.
        """
        with torch.enable_grad(), self._autocast:
            logits = self._logits(parts)
        return_freed_memory()
        of_heads = of_values.split([len(head.names) for head in self.heads])
        of_logits = [
            self._gradient_of_logits(head, x.detach(), window, of_head)
            for head, x, of_head in zip(self.heads, logits, of_heads, strict=True)
        ]
        inputs = [*parts, *self.weights]
        needed = [x for x in inputs if x.requires_grad]
        return_freed_memory()
        # Not `backward`, at whose end DDP would count the weights as finished.
        found = torch.autograd.grad(logits, needed, of_logits, allow_unused=True)
        by_input = dict(zip(needed, found, strict=True))
        return [by_input.get(x) for x in inputs]

    def _gradient_of_logits(
        self, head: _Head, logits: Tensor, window: Window, of_values: Tensor
    ) -> Tensor:
        of_logits = torch.zeros_like(logits)
        for band in self._bands(window, logits):
            part = logits[band.cells].requires_grad_()
            with torch.enable_grad(), self._autocast:
                values = head.values(band.enlarge(part), band.labels)
            (gradient,) = torch.autograd.grad(values, part, of_values.to(values))
            of_logits[band.cells] += gradient
        return of_logits

    def _logits(self, taps: Sequence[Tensor]) -> list[Tensor]:
        """Return the logits of all heads from the part of the taps in a window."""
        cpu, gpus = self._random
        torch.set_rng_state(cpu)  # the same draws in each window, as in the image
        for device, state in zip(self.gpus, gpus, strict=True):
            torch.cuda.set_rng_state(state, device)
        maps = self._model.backbone.apply_levels(taps)
        if self._model.with_neck:
            maps = self._model.neck(maps)
        return [head.module(maps) for head in self.heads]

    def _bands(self, window: Window, logits: Tensor) -> Iterator[_Band]:
        """Divide the interior of a window into bands of rows."""
        rows, columns = window.inside
        batch, classes = logits.shape[:2]
        pixels = LOGITS // (batch * classes * (columns.stop - columns.start))
        height = max(1, pixels // STRIDES[-1]) * STRIDES[-1]
        stride = (window.span[0].stop - window.span[0].start) // logits.shape[2]
        for start in range(rows.start, rows.stop, height):
            inside = slice(start, min(start + height, rows.stop)), columns
            cells, crop = zip(
                *(
                    _cells_of(side, span.start, stride, count)
                    for side, span, count in zip(inside, window.span, logits.shape[2:], strict=True)
                ),
                strict=True,
            )
            labels = torch.stack([labels[inside] for labels in self._labels])
            yield _Band(labels, (..., *cells), stride, (..., *crop))


def _cells_of(pixels: slice, origin: int, stride: int, count: int) -> tuple[slice, slice]:
    """Return the cells along an axis of a map that pixels are interpolated from.

    The second result is the place of the pixels in the enlarged cells.

    Args:
        origin: The first pixel of the map.
        stride: The pixels along a cell.
        count: The number of cells.
    """
    start = pixels.start - origin
    stop = pixels.stop - origin
    first = max(start // stride - 1, 0)
    last = min(stop // stride + 1, count)
    return slice(first, last), slice(start - first * stride, stop - first * stride)


def _add(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    """Add a gradient to a sum. Either may be None, which is 0."""
    if total is None or gradient is None:
        return gradient if total is None else total
    return total + gradient


class _ByWindows(torch.autograd.Function):
    """The values of losses, and the numbers of right pixels of heads, added up over windows.

    Args of `apply`:
        losses: The losses.
        count: The number of taps.
        tensors: The taps, and the weights of the losses.
    """

    @staticmethod
    def forward(ctx: Any, losses: _Losses, count: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        taps = tensors[:count]
        ctx.losses = losses
        ctx.save_for_backward(*taps)
        values: Any = 0
        right: Any = 0
        for window in losses.windows:
            return_freed_memory()  # other windows have tensors of other sizes
            place = losses.tokens_in(window)
            of_window = losses.values(window, [tap[place] for tap in taps])
            values = values + of_window[0]
            right = right + of_window[1]
        ctx.mark_non_differentiable(right)
        return values.to(taps[0]), right

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_values: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        losses = ctx.losses
        taps = ctx.saved_tensors
        of_taps: list[Any] = [torch.zeros_like(tap) if tap.requires_grad else None for tap in taps]
        of_weights: list[Tensor | None] = [None] * len(losses.weights)
        with torch.random.fork_rng(losses.gpus):  # windows draw the numbers of the forward pass
            for window in losses.windows:
                return_freed_memory()
                place = losses.tokens_in(window)
                parts = [tap[place].detach().requires_grad_(tap.requires_grad) for tap in taps]
                gradients = losses.gradients(window, parts, of_values)
                for of_tap, gradient in zip(of_taps, gradients[: len(taps)], strict=True):
                    if gradient is not None:
                        of_tap[place] += gradient
                of_weights = list(map(_add, of_weights, gradients[len(taps) :]))
        return None, None, *of_taps, *of_weights
