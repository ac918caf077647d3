"""What an XCiT sees in an image: magnitudes of queries and keys, cross-covariances, maps."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from mmengine.runner import CheckpointLoader
from torch import Tensor, nn

from .attention import XCA
from .backbone import Trunk, XCiT
from .checkpoint import fitting_trunk
from .layouts import backbone_options, recognise

__all__ = ["BlockView", "View", "draw", "load_trunk", "look_inside", "principal_components"]

# Of ImageNet, in RGB and units of 8-bit pixels: what the published trunks were trained on.
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


class BlockView(NamedTuple):
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


class View(NamedTuple):
    """What a backbone made of an image: its input (C, H, W), attention of some blocks, and its maps (C, h, w)."""

    image: Tensor
    blocks: dict[int, BlockView]
    maps: list[Tensor]


def look_inside(backbone: Trunk, run: Callable[[], Any], blocks: Sequence[int]) -> View:
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

    def keep_grid(number: int) -> Callable:
        return lambda module, args: seen.update({(number, "grid"): args[1:3]})

    def keep_tokens(number: int) -> Callable:
        return lambda module, args: seen.update({number: args[0][:1].clone()})

    def keep_maps(module: nn.Module, args: tuple, maps: tuple[Tensor, ...]) -> None:
        seen.update(image=args[0][0].clone(), maps=[one[0].clone() for one in maps])

    hooks = [backbone.register_forward_hook(keep_maps)]
    for number in blocks:
        hooks.append(backbone.blocks[number].register_forward_pre_hook(keep_grid(number)))
        hooks.append(backbone.blocks[number].attn.register_forward_pre_hook(keep_tokens(number)))
    try:
        with torch.no_grad():
            run()
            views = {
                number: _block_view(backbone.blocks[number].attn, seen[number], seen[number, "grid"])
                for number in blocks
            }
    finally:
        for hook in hooks:
            hook.remove()
    return View(seen["image"], views, seen["maps"])


def _block_view(attn: XCA, x: Tensor, grid: tuple[int, int]) -> BlockView:
    channels = x.shape[2]
    weight, bias = attn.qkv.weight[: 2 * channels], attn.qkv.bias[: 2 * channels]
    # (1, N, 2C) -> two of (C, N): as the paper's equation 1, normalised over the tokens.
    q, k = F.normalize(F.linear(x, weight, bias)[0].float().T, dim=1).split(channels)
    by_head = (attn.num_heads, channels // attn.num_heads)
    return BlockView(
        q.norm(dim=0).unflatten(0, grid),
        k.norm(dim=0).unflatten(0, grid),
        q.unflatten(0, by_head) @ k.unflatten(0, by_head).transpose(1, 2),
        attn.temperature.flatten(),
    )


def load_trunk(checkpoint: str, use_ema: bool = False) -> Trunk:
    """The backbone that a file of weights, in any layout, is of: with the pyramid if the file has one; in eval mode.

    Args:
        checkpoint: A path, a URL or `xcit://NAME`.
        use_ema: Take the `model_ema` of a training file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it holds no XCiT.
    """
    try:
        weights = recognise(CheckpointLoader.load_checkpoint(checkpoint, map_location="cpu"), use_ema)
        dense = any(key.startswith("fpn") for key in weights.trunk)
        backbone = (XCiT if dense else Trunk)(**backbone_options(weights.trunk))
        backbone.load_state_dict(fitting_trunk(backbone, weights))
    except ValueError as error:
        raise ValueError(f"{checkpoint}: {error}") from None
    return backbone.eval()


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


def draw(view: View, picture: Tensor, path: str | Path) -> None:
    """Write a view as one picture: the image and its maps' principal components, below them a row a block.

    Args:
        view: As `look_inside` gives it.
        picture: The image as it is shown, (3, H, W), RGB from 0 to 1.
        path: Of the file; its suffix tells the format.
    """
    height, width = picture.shape[1:]
    rows, columns = 1 + len(view.blocks), max(5, 1 + len(view.maps))
    cell = 3.2
    tall = cell * min(max(height / width, 0.4), 1.6)
    figure = Figure(figsize=(cell * columns, (tall + 0.3) * rows), dpi=100, layout="constrained")
    grid = figure.add_gridspec(rows, columns)
    _show(figure.add_subplot(grid[0, 0]), picture, "image")
    for number, features in enumerate(view.maps):
        c, h, w = features.shape
        title = f"map {number + 1}: {c} x {h} x {w}, PCA"
        _show(figure.add_subplot(grid[0, number + 1]), principal_components(features.float().cpu()), title)
    for row, (number, block) in enumerate(view.blocks.items(), start=1):
        for column, (name, magnitude) in enumerate(dict(queries=block.queries, keys=block.keys).items()):
            axes = figure.add_subplot(grid[row, column])
            axes.imshow(magnitude.cpu().numpy(), cmap="viridis", extent=(0, width, height, 0))
            _finish(axes, f"block {number}: |{name}|")
        axes = figure.add_subplot(grid[row, 2:])
        limit = float(block.covariance.abs().max())
        shown = axes.imshow(_side_by_side(block.covariance.cpu()), cmap="RdBu_r", vmin=-limit, vmax=limit)
        temperatures = ", ".join(f"{value:.2g}" for value in block.temperature.tolist())
        _finish(axes, f"cross-covariance of queries (down) and keys, a head each; temperatures {temperatures}")
        figure.colorbar(shown, ax=axes, fraction=0.02)
    figure.savefig(path)


def _show(axes: Any, picture: Tensor, title: str) -> None:
    axes.imshow(picture.permute(1, 2, 0).cpu().numpy())
    _finish(axes, title)


def _finish(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=8)
    axes.set_axis_off()


def _side_by_side(matrices: Tensor) -> np.ndarray:
    """Square matrices (n, d, d) in one or two rows, with gaps of no value."""
    count, size = matrices.shape[:2]
    gap = max(size // 24, 1)
    padded = F.pad(matrices, (0, gap, 0, gap), value=torch.nan)
    lines = 1 if count <= 4 else 2
    if count % lines:
        padded = torch.cat((padded, torch.full_like(padded[:1], torch.nan)))
    rows = padded.unflatten(0, (lines, -1)).transpose(1, 2).flatten(2).flatten(0, 1)
    return rows[:-gap, :-gap].numpy()
