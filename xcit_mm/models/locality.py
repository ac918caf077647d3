"""Which parts of a model see windows where they would see the image, found by trying."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .large_heads import pooled_head, replace_part
from .xcit import STRIDES, Pyramid


@torch.no_grad()
def parts_that_see_windows(model: Any, margin: int, tolerance: float = 1e-2) -> list[str]:
    """List the parts of a model that predict another result in windows than in the image.

    This is tried out: each part reads random maps of an image, and those of a window of it.

    Args:
        model: A detector or segmentor in eval mode with an XCiT.
        margin: Pixels around its interior that a window sees. Windows start at its multiples.
        tolerance: Share of the largest value by which results may differ. The default is for the
            convolutions of GPUs.

    Returns:
        The names of their classes.
    """
    found = []
    for axis in (2, 3):
        maps = _random_maps(model.backbone, axis, margin)
        # The middle three fifths.
        windows = [x.narrow(axis, x.shape[axis] // 5, x.shape[axis] * 3 // 5) for x in maps]
        for name, part in _parts(model, margin):
            # Heads that need more than maps, such as queries, are of many kinds, and none is local.
            try:
                whole = part(tuple(maps))
                window = part(tuple(windows))
            except Exception:
                found.append(type(part).__name__)
                break
            # Labels are interpolated from one cell of logits more.
            beyond = 1 if name == "decode_head" else 0
            if not _agree(whole, window, axis, beyond, tolerance):
                found.append(type(part).__name__)
            if name == "neck":
                maps = list(whole)
                windows = list(window)  # at their borders, they miss what lies beyond
    return list(dict.fromkeys(found))


def _parts(model: Any, margin: int) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a model that read feature maps, with their names, the neck first.

    RoIs are local, and an auxiliary head predicts nothing. A head of `pooled_head` is a copy
    without its pools, which are computed elsewhere.
    """
    head = pooled_head(model)
    for name, part in model.named_children():
        if name in ("backbone", "roi_head", "auxiliary_head", "data_preprocessor"):
            continue
        if part is head:
            part = replace_part(head, "psp_modules", _NoPools(head.psp_modules, margin))
        yield name, part


class _NoPools(nn.Module):
    """Takes the place of mmseg's PPM in a trial of what a head sees apart from its pools.

    A map with cells of more than 32 pixels, to which images are padded, is refused.
    """

    def __init__(self, ppm: Any, margin: int) -> None:
        super().__init__()
        self.channels = ppm.channels
        self.count = len(ppm)
        self.least = margin // STRIDES[-1]

    def forward(self, x: Tensor) -> list[Tensor]:
        if min(x.shape[2:]) < self.least:
            raise ValueError(f"cells of more than {STRIDES[-1]} pixels")
        return [x.new_zeros(len(x), self.channels, *x.shape[2:])] * self.count


def _random_maps(backbone: Pyramid, axis: int, margin: int) -> list[Tensor]:
    """Return random feature maps of an image of five margins along an axis, and one across.

    In the first and the last margin they have other statistics.
    """
    generator = torch.Generator().manual_seed(0)
    maps = []
    for stride in backbone.strides:
        cells = margin // stride
        size = [cells, cells]
        size[axis - 2] *= 5
        x = torch.randn(1, backbone.arch.embed_dim, *size, generator=generator)
        for start in (0, 4 * cells):
            x.narrow(axis, start, cells).mul_(10).add_(5)
        maps.append(x.to(next(backbone.parameters()).device))
    return maps


def _agree(whole: Any, window: Any, axis: int, beyond: int, tolerance: float) -> bool:
    """Return whether maps of an image and of its window are the same in the interior of the window.

    The window is the middle three fifths of the image along an axis, its interior the middle fifth.

    Args:
        beyond: Number of cells beyond the interior, to each side, that must be the same too.
    """
    if isinstance(whole, Tensor):
        if whole.dim() != 4 or whole.shape[axis] % 5:
            return False
        cells = whole.shape[axis] // 5
        if window.shape[axis] != 3 * cells:
            return False
        expected = whole.narrow(axis, 2 * cells - beyond, cells + 2 * beyond).float()
        given = window.narrow(axis, cells - beyond, cells + 2 * beyond).float()
        return bool((expected - given).abs().max() <= tolerance * expected.abs().max() + 1e-6)
    if isinstance(whole, Sequence) and len(whole) == len(window):
        pairs = zip(whole, window, strict=True)
        return all(_agree(*pair, axis, beyond, tolerance) for pair in pairs)
    return False
