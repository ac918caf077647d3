"""What an XCiT sees in an image: magnitudes of queries and keys, cross-covariances, class attention, maps."""

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import Tensor

from ..models.attention import XCA
from ..models.backbone import Trunk
from ..models.classifier import XCiTClassifier

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


class BlockActivations(NamedTuple):
    """Cross-covariance attention of one block (paper, Figure D.2).

    Attributes:
        queries: Magnitude over the channels of the l2-normalised queries, of every patch (h, w).
        keys: As `queries`, of the keys.
        covariance: Cosines between the channels of queries (rows) and keys, for each head (heads, d, d).
        temperature: By which each head multiplies them before its softmax, (heads,).
    """

    queries: Tensor
    keys: Tensor
    covariance: Tensor
    temperature: Tensor


class Activations(NamedTuple):
    """What a backbone made of an image.

    Attributes:
        image: Its input (C, H, W).
        blocks: Attention of some blocks, by their numbers.
        maps: That it puts out, or a classifier's before pooling, (C, h, w) each.
        class_attention: Of a classifier, the attention of CLS to the patches in each class attention block,
            (heads, h, w) (paper, Figure 4).
    """

    image: Tensor
    blocks: dict[int, BlockActivations]
    maps: list[Tensor]
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

    is_classifier = isinstance(backbone, XCiTClassifier)
    attentions: dict[int, Any] = {number: backbone.blocks[number].attn for number in blocks}
    class_attentions = [block.attn for block in backbone.cls_attn_blocks] if is_classifier else []
    hooks = [
        backbone.register_forward_pre_hook(keep_input("image")),
        backbone.patch_embed.register_forward_hook(keep_output("patches")),
        (backbone.norm if is_classifier else backbone).register_forward_hook(keep_output("out")),
        *(module.register_forward_pre_hook(keep_input(number)) for number, module in attentions.items()),
        *(module.register_forward_pre_hook(keep_input(module)) for module in class_attentions),
    ]
    try:
        with torch.no_grad():
            run()
            grid = seen["patches"].shape[2:]
            found = {number: _block_activations(attn, seen[number], grid) for number, attn in attentions.items()}
            class_attention = [attn.attention(seen[attn])[0, :, 1:].unflatten(1, grid) for attn in class_attentions]
    finally:
        for hook in hooks:
            hook.remove()
    # A classifier's map is that of its last norm, behind the CLS token.
    maps = [seen["out"][:, 1:].transpose(1, 2).unflatten(2, grid)] if is_classifier else seen["out"]
    return Activations(seen["image"][0], found, [one[0].clone() for one in maps], class_attention)


def _block_activations(attn: XCA, x: Tensor, grid: torch.Size) -> BlockActivations:
    channels = x.shape[2]
    weight, bias = attn.qkv.weight[: 2 * channels], attn.qkv.bias[: 2 * channels]
    # (1, N, 2C) -> two of (C, N): as the paper's equation 1, normalised over the tokens.
    q, k = F.normalize(F.linear(x, weight, bias)[0].float().T, dim=1).split(channels)
    by_head = (attn.num_heads, channels // attn.num_heads)
    return BlockActivations(
        q.norm(dim=0).unflatten(0, grid),
        k.norm(dim=0).unflatten(0, grid),
        q.unflatten(0, by_head) @ k.unflatten(0, by_head).transpose(1, 2),
        attn.temperature.flatten(),
    )


def principal_components(features: Tensor) -> Tensor:
    """The first three principal components of a map's channels, (C, h, w) -> (3, h, w), each from 0 to 1.

    Ends of the range are the 1st and 99th percentile. The sign of a component is that of its largest weight.
    """
    tokens = features.flatten(1).double()
    tokens = tokens - tokens.mean(dim=1, keepdim=True)
    directions = torch.linalg.eigh(tokens @ tokens.T).eigenvectors[:, -3:].flip(1)
    directions = directions * directions.gather(0, directions.abs().argmax(dim=0, keepdim=True)).sign()
    components = (directions.T @ tokens).numpy()
    low, high = np.percentile(components, [1, 99], axis=1, keepdims=True)
    scaled = (components - low) / np.maximum(high - low, 1e-12)
    return torch.from_numpy(scaled.clip(0, 1)).unflatten(1, features.shape[1:])


def draw(activations: Activations, picture: Tensor) -> Figure:
    """Show activations in one picture: the image and its maps' principal components, below them a row a block.

    Args:
        activations: As `capture_activations` gives it.
        picture: The image as it is shown, (3, H, W), RGB from 0 to 1.
    """
    height, width = picture.shape[1:]
    cell, columns = 3.2, max(5, 1 + len(activations.maps))
    tall = cell * min(max(height / width, 0.4), 1.6)
    overlays = [_overlays(attention.cpu(), picture.cpu()) for attention in activations.class_attention]
    heights = [tall] * (1 + len(activations.blocks))
    heights += [cell * columns * one.shape[0] / one.shape[1] for one in overlays]
    figure = Figure(figsize=(cell * columns, sum(heights) + 0.3 * len(heights)), dpi=100, layout="constrained")
    grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    _show(figure.add_subplot(grid[0, 0]), picture.permute(1, 2, 0).cpu().numpy(), "image")
    for number, features in enumerate(activations.maps):
        title = f"map {number + 1}: {' x '.join(map(str, features.shape))}, PCA"
        components = principal_components(features.float().cpu())
        _show(figure.add_subplot(grid[0, number + 1]), components.permute(1, 2, 0).numpy(), title)
    for row, (number, block) in enumerate(activations.blocks.items(), start=1):
        for column, (name, magnitude) in enumerate(dict(queries=block.queries, keys=block.keys).items()):
            axes = figure.add_subplot(grid[row, column])
            _show(axes, magnitude.cpu().numpy(), f"block {number}: |{name}|", extent=(0, width, height, 0))
        axes = figure.add_subplot(grid[row, 2:])
        limit = float(block.covariance.abs().max())
        matrices = _side_by_side(block.covariance.cpu()[..., None], 1 if len(block.covariance) <= 4 else 2)
        temperatures = ", ".join(f"{value:.2g}" for value in block.temperature.tolist())
        title = f"cross-covariance of queries (down) and keys, a head each; temperatures {temperatures}"
        shown = _show(axes, matrices[..., 0], title, cmap="RdBu_r", vmin=-limit, vmax=limit)
        figure.colorbar(shown, ax=axes, fraction=0.02)
    for row, overlay in enumerate(overlays):
        title = f"class attention {row + 1}: of CLS to the patches, a head each, from its least to its largest"
        _show(figure.add_subplot(grid[1 + len(activations.blocks) + row, :]), overlay, title)
    return figure


def check_figure(path: Path) -> None:
    """Raise ValueError if a figure cannot be written under this name."""
    if path.suffix.lower() not in FIGURES:
        raise ValueError(f"--out {path}: name a {', '.join(FIGURES[:-1])} or {FIGURES[-1]}")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format that its name tells, once it is complete."""
    content = BytesIO()
    figure.savefig(content, format=path.suffix[1:].lower())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.getvalue())


def _show(axes: Any, values: np.ndarray, title: str, **options: Any) -> Any:
    axes.set_title(title, fontsize=8)
    axes.set_axis_off()
    return axes.imshow(values, **options)


def _overlays(attention: Tensor, picture: Tensor) -> np.ndarray:
    """The attention of each head (heads, h, w) over the image (3, H, W), side by side: RGB (rows, columns, 3)."""
    scale = min(1, 400 / max(picture.shape[1:]))
    grey = F.interpolate(picture.mean(dim=0)[None, None], scale_factor=scale, mode="area")
    heat = F.interpolate(attention[None].float(), grey.shape[2:], mode="bilinear")[0]
    low, high = heat.amin(dim=(1, 2), keepdim=True), heat.amax(dim=(1, 2), keepdim=True)
    heat = (heat - low) / (high - low).clamp(min=1e-12)
    colours = torch.from_numpy(np.asarray(colormaps["inferno"](heat))[..., :3])
    lines = 1 if len(attention) <= 8 else 2
    return np.nan_to_num(_side_by_side(0.6 * colours + 0.4 * grey[0, 0, ..., None], lines), nan=1.0)


def _side_by_side(pictures: Tensor, lines: int) -> np.ndarray:
    """Pictures (n, h, w, c) in lines, with gaps of no value."""
    gap = max(pictures.shape[1] // 24, 1)
    empty = -len(pictures) % lines
    padded = F.pad(pictures, (0, 0, 0, gap, 0, gap, 0, empty), value=torch.nan)
    rows = padded.unflatten(0, (lines, -1)).transpose(1, 2).flatten(2, 3).flatten(0, 1)
    return rows[:-gap, :-gap].numpy()
