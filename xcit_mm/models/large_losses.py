"""The losses of a segmentor on a large image, and their gradients, window by window.

Pyramid, neck and heads read the taps of the trunk in windows, of which only the interiors count.
Cross entropy is a mean over pixels, so the loss of an image is a sum over its windows. The largest
maps are logits at the size of the image. So a window enlarges a band of rows at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import get_device_states, set_device_states

from ..utils.memory import return_freed_memory
from .by_parts import by_parts
from .windows import CELL, Window, in_cells, windows_along
from .xcit import STRIDES

BAND_LOGITS = 2**20
"""Logits at full size at one time: 4 MiB, or those of 32 rows."""

Term = Callable[[Tensor, Tensor], Tensor]
"""What pixels add to a loss or an accuracy, by logits (B, classes, h, w) and labels (B, h, w)."""


def losses_by_windows(
    model: Any, taps: Sequence[Tensor], samples: Sequence[Any], side: int
) -> dict[str, Tensor]:
    """Compute the losses of a segmentor from the taps of its trunk, in bounded memory.

    Losses and gradients are those of mmseg's EncoderDecoder in memory, to rounding, and dropout of
    channels draws the same numbers. BatchNorm of heads in training mode sees windows, twice.

    Args:
        model: A `WholeImageEncoderDecoder`.
        taps: (B, C, h, w) each, of images whose sides are multiples of 32 pixels.
        samples: Data samples of mmseg with the labels of these images.
        side: About the side of the interiors of windows in pixels.

    Returns:
        The losses, and the accuracies, by the names that mmseg gives them.
    """
    losses = _Losses(model, samples)
    windows = product(*(windows_along(slice(0, n), n, side, 2 * CELL) for n in losses.size))
    parts = []
    for window in windows:
        tokens = (in_cells(axis.span, model.backbone.patch_size) for axis in window)
        parts.append((window, (..., *tokens)))
    values = by_parts(losses.of_window, parts, taps, weights=list(model.parameters()))
    found: dict[str, Tensor] = {}
    for name, value in zip(losses.names, values.to(taps[0]), strict=True):
        found[name] = found.get(name, 0) + value
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


class _Losses:
    """The losses and accuracies of a segmentor on images, of which each window has a part.

    Attributes:
        size: Height and width of the images.
        names: Those of losses and accuracies.
    """

    def __init__(self, model: Any, samples: Sequence[Any]) -> None:
        self._model = model
        self._labels = [sample.gt_sem_seg.data[0] for sample in samples]
        self.size = self._labels[0].shape
        counts: Any = sum(
            torch.bincount(labels.flatten(), minlength=max(256, model.num_classes))
            for labels in self._labels
        )
        self.names = []
        self._heads = []
        for prefix, head in heads_of(model).items():
            terms = _terms_of(head, counts.double())
            self.names += [f"{prefix}.{name}" for name, _ in terms]
            self._heads.append((head, [term for _, term in terms]))
        self._random = torch.get_rng_state(), get_device_states(*self._labels)

    def of_window(self, window: tuple[Window, Window], *taps: Tensor) -> Tensor:
        """Return what a window adds to losses and accuracies.

        Args:
            taps: The part of each tap in the window.
        """
        return_freed_memory()  # other windows have tensors of other sizes
        cpu, gpus = self._random
        torch.set_rng_state(cpu)  # the same draws in each window, as in the image
        set_device_states(*gpus)
        maps = self._model.backbone.apply_levels(taps)
        if self._model.with_neck:
            maps = self._model.neck(maps)
        values = []
        for head, terms in self._heads:
            logits = head(maps)
            stride = (window[0].stop - window[0].start) // logits.shape[2]
            bands = list(_bands(window, stride, logits))
            function = partial(self._of_band, terms, stride)
            # With gradients this is the backward pass of the windows, which needs no values.
            values.append(by_parts(function, bands, [logits], values=not torch.is_grad_enabled()))
        return torch.cat(values)

    def _of_band(self, terms: Sequence[Term], stride: int, band: "_Band", logits: Tensor) -> Tensor:
        """Return what a band adds to losses and accuracy of a head."""
        scale = float(stride)
        x = F.interpolate(logits, scale_factor=scale, mode="bilinear", align_corners=False)
        labels = torch.stack([labels[band.pixels] for labels in self._labels])
        return torch.stack([term(x[band.crop], labels) for term in terms])


def _terms_of(head: Any, counts: Tensor) -> list[tuple[str, Term]]:
    """List the losses of a head and its accuracy by the names that mmseg gives them.

    Args:
        counts: The number of pixels of each label in the images.
    """
    ignored = head.ignore_index
    kept = counts.masked_fill(torch.arange(len(counts), device=counts.device) == ignored, 0)
    terms: list[tuple[str, Term]] = []
    for loss in losses_of(head):
        counted = kept if loss.avg_non_ignore else counts
        if loss.class_weight is not None:
            weights = counts.new_tensor(loss.class_weight)
            counted = counted[: len(weights)] * weights
        # The loss divides a sum over pixels by `avg_factor`.
        term = partial(loss, avg_factor=counted.sum(), ignore_index=ignored)
        terms.append((loss.loss_name, term))
    terms.append(("acc_seg", partial(_accuracy, ignored, kept.sum())))
    return terms


def _accuracy(ignored: int, pixels: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the per cent of `pixels` that have the largest logit at their label.

    It has no gradients, and is 0 where these are enabled.
    """
    if torch.is_grad_enabled():
        return torch.zeros_like(pixels)
    is_right = (logits.argmax(dim=1) == labels) & (labels != ignored)
    return 100 * is_right.sum() / pixels.clamp(min=1)


class _Band(NamedTuple):
    """Some rows of the interior of a window.

    Attributes:
        pixels: Its place in the image.
        crop: Its place in the enlarged logits, which its cells of the logits become.
    """

    pixels: tuple[slice, slice]
    crop: tuple[Any, ...]


def _bands(
    window: tuple[Window, Window], stride: int, logits: Tensor
) -> Iterator[tuple[_Band, Any]]:
    """Divide the interior of a window into bands of rows.

    Args:
        stride: The pixels along a cell of the logits.

    Yields:
        A band, and the cells of the logits from which it is enlarged.
    """
    rows, columns = window
    batch, classes = logits.shape[:2]
    width = columns.inside.stop - columns.inside.start
    length = max(1, BAND_LOGITS // (batch * classes * width * STRIDES[-1])) * STRIDES[-1]
    across = _cells_of(columns.inside, columns.start, stride)
    for start in range(rows.inside.start, rows.inside.stop, length):
        inside = slice(start, min(start + length, rows.inside.stop))
        down = _cells_of(inside, rows.start, stride)
        cells, crop = zip(down, across, strict=True)
        yield _Band((inside, columns.inside), (..., *crop)), (..., *cells)


def _cells_of(pixels: slice, origin: int, stride: int) -> tuple[slice, slice]:
    """Return the cells along an axis of a map that pixels are interpolated from.

    The second result is the place of the pixels in the enlarged cells.

    Args:
        pixels: They start and stop at multiples of the stride.
        origin: The first pixel of the map.
        stride: The pixels along a cell.
    """
    first = max((pixels.start - origin) // stride - 1, 0)
    last = (pixels.stop - origin) // stride + 1
    origin += first * stride
    return slice(first, last), slice(pixels.start - origin, pixels.stop - origin)
