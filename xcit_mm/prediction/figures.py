"""A figure of a backbone's activations: one column per block, and below them the class attention."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from .activations import Activations, BlockActivations, crop_border, principal_components


def draw_activations(activations: Activations, image: Tensor) -> Figure:
    """Draw activations: the image first, a column per block, below them a line of heads per class attention block.

    Args:
        activations: Result of `capture_activations`.
        image: The image to show, (3, H, W), RGB from 0 to 1.
    """
    height, width = image.shape[1:]
    blocks = list(activations.blocks.values())
    heads = len(blocks[0].covariance)
    aspect = min(max(height / width, 0.6), 1.6)
    columns = max(len(blocks), 4) if activations.class_attention else len(blocks)
    heads_per_line = min(heads, 8)
    lines, span = math.ceil(heads / heads_per_line), columns / heads_per_line
    matrices = [_tile_matrices(block.covariance.cpu()) for block in blocks]
    matrix_height = _Sheet.cell * matrices[0].shape[0] / matrices[0].shape[1] + 0.2
    overlay_height = max(aspect * (span * (_Sheet.cell + _Sheet.gap) - _Sheet.gap), 0.7)
    heights = [aspect * _Sheet.cell] * 3 + [max(matrix_height, 1.45)]
    heights += [overlay_height] * (lines * len(activations.class_attention))
    size = " x ".join(map(str, blocks[0].features.shape))
    heading = f"Features after a block ({size}), its first three principal components as red, green and blue"
    sheet = _Sheet(heights, 1 + columns, heading)
    extent = (0, width, height, 0)

    sheet.show(0, 0, image.permute(1, 2, 0).cpu().numpy(), f"image, {width} x {height}")
    for column, (number, block) in enumerate(activations.blocks.items(), start=1):
        components = principal_components(block.features.float().cpu())
        sheet.show(0, column, components.permute(1, 2, 0).numpy(), f"block {number}", extent=extent)
    ring = "The model causes rings at the border: its convolutions pad with zeros. Scales ignore the border."
    _show_magnitudes(sheet, 1, blocks, "queries", "Magnitude of each patch's query, over the mean of the image", extent)
    _show_magnitudes(sheet, 2, blocks, "keys", f"Magnitude of each patch's key. {ring}", extent)
    _show_covariances(sheet, 3, blocks, matrices)
    for number, attention in enumerate(activations.class_attention):
        first = 4 + number * lines
        sheet.explain(first, f"class attention {number + 1}", "Attention of the CLS token to the patches, per head.")
        for head, overlay in enumerate(_overlay_attention(attention.cpu(), image.cpu())):
            line, position = divmod(head, heads_per_line)
            sheet.show(first + line, 1 + position * span, overlay.numpy(), span=span)
    return sheet.figure


class _Sheet:
    """A figure of rows of cells, under a heading that leaves the first column free. Sizes are in inches."""

    cell, gap = 2.4, 0.1

    def __init__(self, heights: Sequence[float], columns: int, heading: str) -> None:
        lines = textwrap.wrap(heading, 24 * (columns - 1))
        self.heights, self.top = heights, 0.42 + 0.2 * len(lines)
        self.width = columns * (self.cell + self.gap) + self.gap
        self.height = self.top + sum(heights) + len(heights) * self.gap
        self.figure = Figure(figsize=(self.width, self.height), dpi=120)
        place = (2 * self.gap + self.cell) / self.width, 1 - 0.12 / self.height
        self.figure.text(*place, "\n".join(lines), fontsize=12, weight="bold", va="top")

    def axes(self, row: int, column: float, span: float = 1) -> Axes:
        left = self.gap + column * (self.cell + self.gap)
        bottom = self.height - self.top - sum(self.heights[: row + 1]) - row * self.gap
        width = span * (self.cell + self.gap) - self.gap
        box = left / self.width, bottom / self.height, width / self.width, self.heights[row] / self.height
        axes = self.figure.add_axes(box)
        axes.set_axis_off()
        return axes

    def show(
        self, row: int, column: float, values: np.ndarray, title: str = "", span: float = 1, **options: Any
    ) -> Any:
        axes = self.axes(row, column, span)
        axes.set_title(title, fontsize=11, pad=4)
        return axes.imshow(values, **options)

    def explain(self, row: int, name: str, text: str, shown: Any = None) -> None:
        """Write at the left of a row what it shows, with the color bar of a shown image."""
        axes = self.axes(row, 0)
        axes.text(0, 1, name, fontsize=12, weight="bold", va="top", transform=axes.transAxes)
        below = 1 - 0.27 / self.heights[row]
        lines = "\n".join(textwrap.wrap(text, 36))
        axes.text(0, below, lines, fontsize=8.5, color="0.25", va="top", linespacing=1.25, transform=axes.transAxes)
        if shown is not None:
            bar = axes.inset_axes((0.02, 0.2 / self.heights[row], 0.88, 0.11 / self.heights[row]))
            self.figure.colorbar(shown, cax=bar, orientation="horizontal", ticks=MaxNLocator(4))
            bar.tick_params(labelsize=8)


def _show_magnitudes(
    sheet: _Sheet, row: int, blocks: list[BlockActivations], name: str, text: str, extent: tuple
) -> None:
    """Show the magnitudes of `queries` or `keys` over their mean, in one scale for all blocks."""
    magnitudes = [getattr(block, name).cpu() for block in blocks]
    magnitudes = [values / values.mean() for values in magnitudes]
    low, high = np.percentile(torch.cat([crop_border(values).flatten() for values in magnitudes]), [1, 99])
    for column, values in enumerate(magnitudes, start=1):
        shown = sheet.show(row, column, values.numpy(), vmin=low, vmax=high, extent=extent)
    sheet.explain(row, name, text, shown)


def _show_covariances(sheet: _Sheet, row: int, blocks: list[BlockActivations], matrices: list[np.ndarray]) -> None:
    """Show the matrices of all heads of each block, in one scale for all blocks, with the range of temperatures."""
    limit = np.nanpercentile(np.abs(np.concatenate([matrix.ravel() for matrix in matrices])), 99)
    for column, (block, matrix) in enumerate(zip(blocks, matrices, strict=True), start=1):
        shown = sheet.show(row, column, matrix, cmap="RdBu_r", vmin=-limit, vmax=limit)
        low, high = block.temperature.min(), block.temperature.max()
        place: Any = dict(ha="center", va="top", transform=shown.axes.transAxes)
        shown.axes.text(0.5, -0.01, f"temperatures {low:.2f} to {high:.2f}", fontsize=8, color="0.25", **place)
    text = "Cosines of query channels (down) and key channels, one square per head. The softmax of cosines times "
    sheet.explain(row, "cross-covariance", f"{text}temperature mixes the channels.", shown)


def _overlay_attention(attention: Tensor, image: Tensor) -> Tensor:
    """Blend the attention of each head (heads, h, w) with the image (3, H, W): RGB (heads, rows, columns, 3)."""
    scale = min(1, 400 / max(image.shape[1:]))
    grey = F.interpolate(image.mean(dim=0)[None, None], scale_factor=scale, mode="area")[0, 0]
    inner = crop_border(attention.float()).flatten(1)
    low, high = torch.quantile(inner, torch.tensor([0.01, 0.99]), dim=1)[..., None, None]
    heat = ((attention - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    heat = F.interpolate(heat[None], grey.shape, mode="bilinear")[0]
    colors = torch.from_numpy(np.asarray(colormaps["inferno"](heat))[..., :3])
    return 0.6 * colors + 0.4 * grey[..., None]


def _tile_matrices(matrices: Tensor) -> np.ndarray:
    """Arrange matrices (n, d, d) in a rectangle as square as n allows, with gaps of NaN."""
    count, gap = len(matrices), max(matrices.shape[1] // 24, 1)
    lines = max(number for number in range(1, math.isqrt(count) + 1) if count % number == 0)
    padded = F.pad(matrices, (0, gap, 0, gap), value=torch.nan).unflatten(0, (lines, -1))
    return padded.transpose(1, 2).flatten(2, 3).flatten(0, 1)[:-gap, :-gap].numpy()
