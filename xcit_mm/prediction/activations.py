"""A backbone's activations for an image: features, query and key magnitudes, cross-covariances, class attention."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.attention import XCA
from ..models.backbone import Trunk
from ..models.classifier import XCiTClassifier

# Cells at the border that scales and components ignore: the convolutions of stem and LPI pad with zeros, which shows
# in the features of a trained model as a ring that would otherwise dominate the first component.
BORDER = 2


class BlockActivations(NamedTuple):
    """A block's output and cross-covariance attention (paper, Figure D.2).

    Attributes:
        features: Tokens after the block, (C, h, w), which are the input of the pyramid where the block is tapped. The
            pyramid's feature maps also show a lattice, since a transposed convolution has separate weights for each of
            the four cells that it computes from one cell.
        queries: Magnitude over the channels of the l2-normalised queries of every patch, (h, w).
        keys: Magnitude over the channels of the l2-normalised keys of every patch, (h, w).
        covariance: Cosines between the channels of queries (rows) and keys, for each head, (heads, d, d).
        temperature: Factor of each head's cosines before the softmax, (heads,).
    """

    features: Tensor
    queries: Tensor
    keys: Tensor
    covariance: Tensor
    temperature: Tensor


class Activations(NamedTuple):
    """A backbone's activations for an image.

    Attributes:
        image: Input of the backbone, (C, H, W).
        blocks: Activations of the captured blocks, by block number.
        class_attention: For a classifier, the attention of CLS to the patches in each class attention block,
            (heads, h, w) (paper, Figure 4).
    """

    image: Tensor
    blocks: dict[int, BlockActivations]
    class_attention: list[Tensor]


def capture_activations(backbone: Trunk, run: Callable[[], Any], blocks: Sequence[int]) -> Activations:
    """Capture the activations of some blocks while `run` passes an image through the backbone.

    The first image of a batch is captured, and the last of several runs.

    Args:
        backbone: The backbone, alone or as part of a model.
        run: Calls the backbone or its model.
        blocks: Numbers of the blocks, from 0.

    Raises:
        ValueError: If the backbone has no block of such a number.
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
            captured = {
                number: _block_activations(attn, seen[number], seen["after", number], grid)
                for number, attn in attentions.items()
            }
            class_attention = [attn.attention(seen[attn])[0, :, 1:].unflatten(1, grid) for attn in class_attentions]
    finally:
        for hook in hooks:
            hook.remove()
    return Activations(seen["image"][0], captured, class_attention)


def _block_activations(attn: XCA, x: Tensor, after: Tensor, grid: torch.Size) -> BlockActivations:
    channels = x.shape[2]
    # (1, N, 2C) -> two of (C, N), normalised over the tokens (paper, equation 1).
    q, k = F.normalize(attn.qkv(x)[0, :, : 2 * channels].float().T, dim=1).split(channels)
    by_head = (attn.num_heads, channels // attn.num_heads)
    return BlockActivations(
        after[0].T.unflatten(1, grid),
        q.norm(dim=0).unflatten(0, grid),
        k.norm(dim=0).unflatten(0, grid),
        q.unflatten(0, by_head) @ k.unflatten(0, by_head).transpose(1, 2),
        attn.temperature.flatten(),
    )


def crop_border(cells: Tensor) -> Tensor:
    """Crop `BORDER` cells from each side of cells (..., h, w), or less if the cells are few."""
    height, width = cells.shape[-2:]
    margin = min(BORDER, (min(height, width) - 1) // 4)
    return cells[..., margin : height - margin, margin : width - margin]


def principal_components(features: Tensor) -> Tensor:
    """Compute the first three principal components of features, (C, h, w) -> (3, h, w), each from 0 to 1.

    The components and the ends of their range, the 1st and 99th percentile, are computed from the cells off the border
    (`BORDER`). The sign of a component makes few cells bright and many dark (positive skewness), which are usually the
    objects and their background.
    """
    inner = crop_border(features.double())
    mean = inner.mean(dim=(1, 2))[:, None]
    tokens = inner.flatten(1) - mean
    directions = torch.linalg.eigh(tokens @ tokens.T).eigenvectors[:, -3:].flip(1)
    directions = torch.where((directions.T @ tokens).pow(3).sum(dim=1) < 0, -directions, directions)
    low, high = np.percentile((directions.T @ tokens).cpu(), [1, 99], axis=1, keepdims=True)
    components = (directions.T @ (features.double().flatten(1) - mean)).cpu().numpy()
    scaled = (components - low) / np.maximum(high - low, 1e-12)
    return torch.from_numpy(scaled.clip(0, 1)).unflatten(1, features.shape[1:])
