"""Training on a large image in bounded memory, with the gradients of the whole image.

It is `with_cp="bands"` of `XCiT`. As in `large`, a block is two functions of its tokens x, which
autograd sees as such:

- sums over all tokens y = norm1(x), which give their mean m and centred products S,
- given m, and M and o, which `attention_matrix` computes from m and S, a map of rows, which reads
  two rows to each side. The stem is a map of rows, too.

`by_parts` runs both over bands of rows. The backward pass computes each band again, and takes from
it the gradient of its rows of x, and summands of those of m, M, o and the weights. Between m, S, M
and o the gradients are those of a few matrices of C x C.

So only the tokens before each block are stored for the backward pass: on the device, or in memory,
or in temporary files. They are in float32, and m, S, M, o and their gradients in float64, also
under autocast.
"""

import math
from contextlib import nullcontext
from tempfile import TemporaryFile, gettempdir
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from ..utils.compat import BatchNorm, is_in_backward
from .by_parts import by_parts
from .covariance import Moments, attention_matrix
from .large import HALO, embed_rows, split_rows
from .matmul import is_traced, linear_by_image, product_dtype
from .token_stores import check_disk
from .trunk_check import check_trunk

# Tokens of a band.
CPU_BAND = 2048
GPU_BAND = 16384
# Bytes that the tokens before all blocks may take on a CPU that trains, on a GPU, and in the memory
# of a GPU's host. If they need more, they are in files.
CPU_BYTES = 2**28
GPU_BYTES = 2**32
HOST_BYTES = 2**33

OPTION = "with_cp='bands'"


def taps_by_bands(trunk: Any, images: Tensor) -> tuple[Tensor, ...]:
    """Compute the maps of `Trunk.forward` so that their gradients take little memory.

    Maps and gradients are those of the trunk in memory, to rounding, and drop path draws the same
    numbers. Images, maps and their gradients are in memory as a whole, and so are the tokens, two
    or three times.

    Args:
        images: (B, in_channels, H, W).

    Raises:
        ValueError: If the trunk has changed layers, dropout or BatchNorm in training mode, or if
            its weights are in half precision, are divided among processes by FSDP, or have hooks.
        RuntimeError: If the images have another type than the weights, pixels are left out by
            `valid`, or the call is compiled, traced or repeated by `torch.utils.checkpoint`.
        OSError: If the disk is too small for the temporary files.
    """
    trunk.valid_cells(images, 1)  # which raises for masks
    check_training(trunk)
    x = embed(trunk, images)
    maps = []
    with storage(x, len(trunk.blocks)):
        for number, block in enumerate(trunk.blocks):
            x = run_block(block, x)
            if number in trunk.out_indices:
                maps.append(x.permute(0, 3, 1, 2))
    return tuple(maps)


def check_training(trunk: Any) -> None:
    """Raise ValueError or RuntimeError unless bands can train a trunk, here and as it is."""
    if is_traced() or is_in_backward():
        around = "torch.compile or trace" if is_traced() else "torch.utils.checkpoint"
        raise RuntimeError(f"{OPTION} does not work in {around}: set with_cp=True")
    check_trunk(trunk, is_training=True)
    for name, layer in trunk.named_modules():
        if layer.training and (isinstance(layer, BatchNorm) or getattr(layer, "p", 0)):
            raise ValueError(f"{OPTION} cannot train {name}: set norm_eval=True and no dropout")
    for name, weight in trunk.named_parameters():
        # torch (2.13) has no public name for the hooks of a parameter.
        if type(weight) is not nn.Parameter or weight._backward_hooks or weight.itemsize < 4:
            kind = f"which is {weight.dtype}, has hooks or is divided by FSDP"
            raise ValueError(f"{OPTION} cannot train {name}, {kind}: set with_cp=True")


def storage(x: Tensor, blocks: int) -> Any:
    """Return a context that keeps the input tokens of each block where those of all blocks fit.

    They stay on the device, or move to main memory or to temporary files.

    Args:
        x: Input tokens (B, h, w, C) of a block.
        blocks: Number of blocks.

    Raises:
        OSError: If the disk is too small for the temporary files.
    """
    device = x.device
    size = x.nbytes * blocks
    if size <= (CPU_BYTES if x.is_cpu else GPU_BYTES):
        return nullcontext()
    in_files = x.is_cpu or size > HOST_BYTES
    if in_files:
        check_disk(gettempdir(), size, "set TMPDIR to a larger one")
    # The last tokens that were stored. They exist until the next ones are computed, so these have
    # another address.
    address = 0
    last: Any = None

    def pack(x: Tensor) -> Any:
        nonlocal address, last
        if x.ndim < 4:  # no tokens
            return x
        if x.data_ptr() != address:  # two functions of a block save the same tokens
            address = x.data_ptr()
            last = _write(x) if in_files else x.cpu()
        return last

    def unpack(stored: Any) -> Tensor:
        if isinstance(stored, Tensor):
            return stored.to(device)
        stored.seek(0)
        return torch.load(stored, weights_only=True)

    return saved_tensors_hooks(pack, unpack)


def _write(x: Tensor) -> Any:
    """Write tokens into a file without a name, which is gone when no one refers to it."""
    file = TemporaryFile()  # noqa: SIM115
    torch.save(x, file)
    return file


def embed(trunk: Any, images: Tensor) -> Tensor:
    """Compute the tokens (B, h, w, C) of images, by stem and positional encoding."""
    scale = trunk.patch_size
    height, width = (math.ceil(side / scale) for side in images.shape[2:])

    def embed_band(rows: slice, pixels: Tensor) -> Tensor:
        x = embed_rows(trunk, pixels.transpose(1, 2), rows, (height, width))
        return x.unflatten(1, (-1, width))

    weights = [weight for part in trunk.stages()[0] for weight in part.parameters()]
    x = images.transpose(1, 2)  # rows first
    # The stem reads up to 15 pixels above a token, and none below.
    bands = split(x, height, width, above=1, scale=scale)
    return by_parts(embed_band, bands, [x], weights=weights, height=height)


def run_block(block: Any, x: Tensor) -> Tensor:
    """Run a block on tokens (B, h, w, C)."""
    height, width = x.shape[1:3]
    moments = moments_of(block.norm1, x)
    matrices = checkpoint(attention_matrix, block.attn, moments, use_reentrant=False)
    of_xca, of_lpi, of_mlp = draw_paths(block.drop_path, x)

    def run_rows(rows: slice, x: Tensor, *attention: Tensor) -> Tensor:
        """Map tokens (B, r, w, C) of rows, and of HALO more at each side."""
        read = x.shape[1]
        first = min(rows.start, HALO)
        x = x.flatten(1, 2)
        mean, matrix, offset = (part.to(x) for part in attention)
        branch = linear_by_image(block.norm1(x) - mean, matrix, offset)
        x = torch.addcmul(x, block.gamma1 * of_xca, branch)
        branch = block.local_mp(block.norm3(x), read, width)
        x = torch.addcmul(x, block.gamma3 * of_lpi, branch)
        x = x[:, first * width : (first + rows.stop - rows.start) * width]
        x = torch.addcmul(x, block.gamma2 * of_mlp, block.mlp(block.norm2(x)))
        return x.unflatten(1, (-1, width))

    bands = split(x, height, width, above=HALO, below=HALO)
    attention = moments.mean, *matrices
    return by_parts(run_rows, bands, [x], attention, list(block.parameters()), height)


def moments_of(norm: nn.Module, x: Tensor) -> Moments:
    """Compute the moments of norm(x) for tokens x, (B, h, w, C).

    Bands are summed in the type of the tokens, and added up in float64.
    """
    height, width = x.shape[1:3]
    bands = split(x, height, width)
    # Products of differences to a value near the mean lose no digits.
    with torch.no_grad():
        near = sum(norm(x[index]).mean((1, 2)) for _, index in bands)[:, None] / len(bands)

    def add_up(rows: slice, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            y = norm(x.flatten(1, 2)) - near
            return torch.cat((y.sum(dim=1, keepdim=True), y.mT @ y), 1).double()

    sums = by_parts(add_up, bands, [x], weights=list(norm.parameters()))
    shift = sums[:, :1] / (height * width)
    products = sums[:, 1:] - sums[:, :1].mT @ shift
    return Moments(height * width, near + shift, products)


def draw_paths(path: Any, x: Tensor) -> list[Tensor]:
    """Draw the factors (B, 1, 1) of drop path for XCA, LPI and MLP, as a block draws them."""
    ones = x.new_ones(len(x), 1, 1, dtype=product_dtype(x))  # on which the draws depend
    kept = 1 - path.drop_prob * path.training
    return [(path(ones) > 0).to(x) / kept for _ in range(3)]


def split(
    x: Tensor, height: int, width: int, above: int = 0, below: int = 0, scale: int = 1
) -> list[tuple[slice, Any]]:
    """Divide the rows of a grid of tokens into bands.

    Args:
        x: (B, H, ...), with `scale` rows for a row of tokens.
        above, below: Further rows of tokens whose part of x a band reads.

    Returns:
        For each band its rows of tokens, and the index of the part of x that it reads.
    """
    tokens = CPU_BAND if x.is_cpu else GPU_BAND
    bands = []
    for rows in split_rows(slice(0, height), len(x) * width, tokens):
        read = slice(max(rows.start - above, 0) * scale, (rows.stop + below) * scale)
        bands.append((rows, (slice(None), read)))
    return bands
