"""What an XCiT sees in an image: maps, magnitudes of queries and keys, cross-covariances, class attention."""

import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from ..models.attention import XCA
from ..models.backbone import Trunk
from ..models.classifier import XCiTClassifier
from ..utils.atomic import atomic_write

__all__ = [
    "Activations",
    "BlockActivations",
    "capture_activations",
    "check_figure",
    "draw",
    "principal_components",
    "save_figure",
]

FIGURES = (".png", ".jpg", ".jpeg", ".pdf", ".svg")

# Cells next to the border that take no part in scales and components: the convolutions of stem and LPI pad with
# zeros, which shows in the maps of a trained model as a ring that would else take the first component for itself.
BORDER = 2


class BlockActivations(NamedTuple):
    """A block's map and cross-covariance attention (paper, Figure D.2).

    Attributes:
        features: The tokens after the block (C, h, w): what the pyramid is given, where the block is tapped. The maps
            that it makes of them have a lattice besides, since a transposed convolution has weights of its own for
            each of the four cells that it makes of one.
        queries: Magnitude over the channels of the l2-normalised queries, of every patch (h, w).
        keys: As `queries`, of the keys.
        covariance: Cosines between the channels of queries (rows) and keys, for each head (heads, d, d).
        temperature: By which each head multiplies them before its softmax, (heads,).
    """

    features: Tensor
    queries: Tensor
    keys: Tensor
    covariance: Tensor
    temperature: Tensor


class Activations(NamedTuple):
    """What a backbone made of an image.

    Attributes:
        image: Its input (C, H, W).
        blocks: Of some blocks, by their numbers.
        class_attention: Of a classifier, the attention of CLS to the patches in each class attention block,
            (heads, h, w) (paper, Figure 4).
    """

    image: Tensor
    blocks: dict[int, BlockActivations]
    class_attention: list[Tensor]


def capture_activations(backbone: Trunk, run: Callable[[], Any], blocks: Sequence[int]) -> Activations:
    """Watch some blocks (0-based) while `run` gives an image to the backbone, alone or in a model.

    Of a batch the first image is taken, of several runs the last.

    Raises:
        ValueError: If a block is not there.
    """
    depth = len(backbone.blocks)
    for number in blocks:
        if not 0 <= number < depth:
            raise ValueError(f"block {number}: choose from 0 to {depth - 1}")
    seen: dict[Any, Any] = {}

    def keep_input(key: Any) -> Callable:
        return lambda module, args: seen.update({key: args[0][:1].clone()})

    def keep_output(key: Any) -> Callable:
        return lambda module, args, out: seen.update({key: out})

    attentions: dict[int, Any] = {number: backbone.blocks[number].attn for number in blocks}
    is_classifier = isinstance(backbone, XCiTClassifier)
    class_attentions = [block.attn for block in backbone.cls_attn_blocks] if is_classifier else []
    hooks = [
        backbone.register_forward_pre_hook(keep_input("image")),
        backbone.patch_embed.register_forward_hook(keep_output("patches")),
        *(backbone.blocks[number].register_forward_hook(keep_output(("after", number))) for number in blocks),
        *(module.register_forward_pre_hook(keep_input(number)) for number, module in attentions.items()),
        *(module.register_forward_pre_hook(keep_input(module)) for module in class_attentions),
    ]
    try:
        with torch.no_grad():
            run()
            grid = seen["patches"].shape[2:]
            found = {
                number: _block_activations(attn, seen[number], seen["after", number], grid)
                for number, attn in attentions.items()
            }
            class_attention = [attn.attention(seen[attn])[0, :, 1:].unflatten(1, grid) for attn in class_attentions]
    finally:
        for hook in hooks:
            hook.remove()
    return Activations(seen["image"][0], found, class_attention)


def _block_activations(attn: XCA, x: Tensor, after: Tensor, grid: torch.Size) -> BlockActivations:
    channels = x.shape[2]
    weight, bias = attn.qkv.weight[: 2 * channels], attn.qkv.bias[: 2 * channels]
    # (1, N, 2C) -> two of (C, N): as the paper's equation 1, normalised over the tokens.
    q, k = F.normalize(F.linear(x, weight, bias)[0].float().T, dim=1).split(channels)
    by_head = (attn.num_heads, channels // attn.num_heads)
    return BlockActivations(
        after[0].T.unflatten(1, grid),
        q.norm(dim=0).unflatten(0, grid),
        k.norm(dim=0).unflatten(0, grid),
        q.unflatten(0, by_head) @ k.unflatten(0, by_head).transpose(1, 2),
        attn.temperature.flatten(),
    )


def _inner(cells: Tensor) -> Tensor:
    """Cells (..., h, w) without the `BORDER`, or less of it where there are few."""
    height, width = cells.shape[-2:]
    margin = min(BORDER, (min(height, width) - 1) // 4)
    return cells[..., margin : height - margin, margin : width - margin]


def principal_components(features: Tensor) -> Tensor:
    """The first three principal components of a map's channels, (C, h, w) -> (3, h, w), each from 0 to 1.

    Components, and the ends of their range, the 1st and 99th percentile, are of the cells off the border
    (`BORDER`); cells at the border may lie at the ends. A component has the sign that makes few cells bright
    and many dark (positive skewness), which are objects and their background more often than not.
    """
    inner = _inner(features.double())
    mean = inner.mean(dim=(1, 2))[:, None]
    tokens = inner.flatten(1) - mean
    directions = torch.linalg.eigh(tokens @ tokens.T).eigenvectors[:, -3:].flip(1)
    directions = torch.where((directions.T @ tokens).pow(3).sum(dim=1) < 0, -directions, directions)
    low, high = np.percentile((directions.T @ tokens).cpu(), [1, 99], axis=1, keepdims=True)
    components = (directions.T @ (features.double().flatten(1) - mean)).cpu().numpy()
    scaled = (components - low) / np.maximum(high - low, 1e-12)
    return torch.from_numpy(scaled.clip(0, 1)).unflatten(1, features.shape[1:])


class _Sheet:
    """A figure of rows of cells, under a heading that leaves the first column free; sizes in inches.

    Args:
        heights: Of the rows.
        columns: Cells in a row.
        heading: Broken into lines where there are few columns.
    """

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
        wide = span * (self.cell + self.gap) - self.gap
        box = left / self.width, bottom / self.height, wide / self.width, self.heights[row] / self.height
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
        """Say at the left of a row what it shows, and by which colours."""
        axes = self.axes(row, 0)
        axes.text(0, 1, name, fontsize=12, weight="bold", va="top", transform=axes.transAxes)
        below = 1 - 0.27 / self.heights[row]
        lines = "\n".join(textwrap.wrap(text, 36))
        axes.text(0, below, lines, fontsize=8.5, color="0.25", va="top", linespacing=1.25, transform=axes.transAxes)
        if shown is not None:
            bar = axes.inset_axes((0.02, 0.2 / self.heights[row], 0.88, 0.11 / self.heights[row]))
            self.figure.colorbar(shown, cax=bar, orientation="horizontal", ticks=MaxNLocator(4))
            bar.tick_params(labelsize=8)


def draw(activations: Activations, picture: Tensor) -> Figure:
    """Show activations in one picture: the image first, a column a block, below them class attention.

    Args:
        activations: As `capture_activations` gives it.
        picture: The image as it is shown, (3, H, W), RGB from 0 to 1.
    """
    height, width = picture.shape[1:]
    blocks = list(activations.blocks.values())
    heads = len(blocks[0].covariance)
    aspect = min(max(height / width, 0.6), 1.6)
    columns = max(len(blocks), 4) if activations.class_attention else len(blocks)
    in_line = min(heads, 8)  # pictures of class attention
    lines, share = math.ceil(heads / in_line), columns / in_line
    tall = aspect * _Sheet.cell
    overlaid = max(aspect * (share * (_Sheet.cell + _Sheet.gap) - _Sheet.gap), 0.7)
    matrices = [_tiles(block.covariance.cpu()) for block in blocks]
    square = _Sheet.cell * matrices[0].shape[0] / matrices[0].shape[1] + 0.2
    heights = [tall, tall, tall, max(square, 1.45)] + [overlaid] * (lines * len(activations.class_attention))
    size = " x ".join(map(str, blocks[0].features.shape))
    heading = f"Map after a block ({size}), its first three principal components as red, green and blue"
    sheet = _Sheet(heights, 1 + columns, heading)
    corners: Any = dict(extent=(0, width, height, 0))

    sheet.show(0, 0, picture.permute(1, 2, 0).cpu().numpy(), f"image, {width} x {height}")
    for column, (number, block) in enumerate(activations.blocks.items(), start=1):
        components = principal_components(block.features.float().cpu())
        sheet.show(0, column, components.permute(1, 2, 0).numpy(), f"block {number}", **corners)
    ring = (
        "A ring at the border is the model's own: its convolutions pad the image with zeros. It is left out of scales."
    )
    for row, name, text in (
        (1, "queries", "Magnitude of each patch's query, over the mean of the image"),
        (2, "keys", f"Likewise. {ring}"),
    ):
        magnitudes = [getattr(block, name).cpu() for block in blocks]
        magnitudes = [one / one.mean() for one in magnitudes]
        low, high = np.percentile(torch.cat([_inner(one).flatten() for one in magnitudes]), [1, 99])
        for column, one in enumerate(magnitudes, start=1):
            shown = sheet.show(row, column, one.numpy(), vmin=low, vmax=high, **corners)
        sheet.explain(row, name, text, shown)
    limit = np.nanpercentile(np.abs(np.concatenate([one.ravel() for one in matrices])), 99)
    for column, (block, matrix) in enumerate(zip(blocks, matrices, strict=True), start=1):
        shown = sheet.show(3, column, matrix, cmap="RdBu_r", vmin=-limit, vmax=limit)
        low, high = block.temperature.min(), block.temperature.max()
        place: Any = dict(ha="center", va="top", transform=shown.axes.transAxes)
        shown.axes.text(0.5, -0.01, f"temperatures {low:.2f} to {high:.2f}", fontsize=8, color="0.25", **place)
    explanation = "Cosines of query channels (down) and key channels, a square a head. Times the temperature, they go"
    sheet.explain(3, "cross-covariance", f"{explanation} into the softmax that mixes the channels.", shown)
    for number, attention in enumerate(activations.class_attention):
        first = 4 + number * lines
        sheet.explain(first, f"class attention {number + 1}", "Of the CLS token to the patches, a picture a head.")
        for head, overlay in enumerate(_overlays(attention.cpu(), picture.cpu())):
            line, position = divmod(head, in_line)
            sheet.show(first + line, 1 + position * share, overlay.numpy(), span=share)
    return sheet.figure


def check_figure(path: Path) -> None:
    """Raise ValueError if a figure cannot be written under this name."""
    if path.suffix.lower() not in FIGURES:
        raise ValueError(f"--out {path}: name a {', '.join(FIGURES[:-1])} or {FIGURES[-1]}")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format that its name tells, once it is complete."""
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower())


def _overlays(attention: Tensor, picture: Tensor) -> Tensor:
    """The attention of each head (heads, h, w) over the image (3, H, W): RGB (heads, rows, columns, 3)."""
    scale = min(1, 400 / max(picture.shape[1:]))
    grey = F.interpolate(picture.mean(dim=0)[None, None], scale_factor=scale, mode="area")[0, 0]
    inner = _inner(attention.float()).flatten(1)
    low, high = torch.quantile(inner, torch.tensor([0.01, 0.99]), dim=1)[..., None, None]
    heat = ((attention - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    heat = F.interpolate(heat[None], grey.shape, mode="bilinear")[0]
    colours = torch.from_numpy(np.asarray(colormaps["inferno"](heat))[..., :3])
    return 0.6 * colours + 0.4 * grey[..., None]


def _tiles(matrices: Tensor) -> np.ndarray:
    """Matrices (n, d, d) in lines of a rectangle as square as n allows, with gaps of no value."""
    count, gap = len(matrices), max(matrices.shape[1] // 24, 1)
    lines = max(number for number in range(1, math.isqrt(count) + 1) if count % number == 0)
    padded = F.pad(matrices, (0, gap, 0, gap), value=torch.nan).unflatten(0, (lines, -1))
    return padded.transpose(1, 2).flatten(2, 3).flatten(0, 1)[:-gap, :-gap].numpy()
