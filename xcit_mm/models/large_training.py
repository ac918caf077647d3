"""Training on a large image in bounded memory, with the gradients of the whole image.

It is `with_cp="bands"` of `XCiT`. As in `large`, a block is two functions of its tokens x, which
autograd sees as such:

- sums over all tokens y = norm1(x), which give their mean m and centred products S,
- given m, and M and o, which `fast.attention_matrix` computes from m and S, a map of rows, which
  reads two rows to each side. The stem is a map of rows, too.

Both run over bands of rows. The backward pass computes each band again, and takes from it the
gradient of its rows of x, and summands of those of m, M, o and the weights. Between m, S, M and o
the gradients are those of a few matrices of C x C.

So only the tokens before each block are stored for the backward pass: on the device, or in memory,
or in temporary files. They are in float32, and m, S, M, o and their gradients in float64, also
under autocast.
"""

import math
from contextlib import nullcontext
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from ..utils.compat import BatchNorm, is_in_backward
from . import fast, large
from .precision import current_autocast
from .products import is_traced, linear_by_image, product_dtype
from .tokens import check_disk
from .trunk_check import check_trunk

# Tokens of a band.
CPU_TOKENS = 2048
GPU_TOKENS = 16384
# Bytes that the tokens before all blocks may take on a CPU that trains, on a GPU, and in the memory
# of a GPU's host. If they need more, they are in files.
CPU_BYTES = 2**28
GPU_BYTES = 2**32
HOST_BYTES = 2**33

OPTION = "with_cp='bands'"


def taps_by_bands(trunk: Any, images: Tensor) -> tuple[Tensor, ...]:
    """Compute the maps of `Trunk.forward` so that their gradients take little memory.

    Maps and gradients are those of the trunk in memory, to rounding, and drop path draws the same
    numbers. Images, maps and their gradients are in memory as a whole, and two or three times the
    tokens.

    Args:
        images: (B, in_channels, H, W).

    Raises:
        ValueError: If the trunk has changed layers, dropout, BatchNorm in training mode, or weights
            in half precision, in parts or with hooks.
        TypeError: If the images have another type than the weights.
        RuntimeError: If the call is compiled or traced, or a checkpoint around it repeats it.
        OSError: If the disk of the temporary files lacks space.
    """
    check_training(trunk)
    autocast = current_autocast(images.device.type)
    try:
        x = embed(trunk, images, autocast)
    except RuntimeError:
        trunk.check_type(images)
        raise
    maps = []
    with storage(x, len(trunk.blocks)):
        for number, block in enumerate(trunk.blocks):
            x = run_block(block, x, autocast)
            if number in trunk.out_indices:
                maps.append(x.permute(0, 3, 1, 2))
    return tuple(maps)


def check_training(trunk: Any) -> None:
    """Raise ValueError or RuntimeError unless bands can train a trunk, here and as it is."""
    if is_traced() or is_in_backward():
        around = "torch.compile or trace" if is_traced() else "torch.utils.checkpoint"
        raise RuntimeError(f"{OPTION} in {around}: set with_cp=True")
    check_trunk(trunk, is_training=True)
    for name, layer in trunk.named_modules():
        if layer.training and (isinstance(layer, BatchNorm) or getattr(layer, "p", 0)):
            raise ValueError(f"{OPTION} with active {name}: set norm_eval=True and no dropout")
    for name, weight in trunk.named_parameters():
        if type(weight) is not nn.Parameter or weight._backward_hooks or weight.itemsize < 4:
            kind = f"{weight.dtype}, hooks or FSDP"
            raise ValueError(f"{OPTION} with {name} of {kind}: set with_cp=True")


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
    last: Any = [None, None]  # the address of tokens, and what is stored of them

    def pack(x: Tensor) -> Any:
        if x.ndim < 4:
            return x
        if last[0] != x.data_ptr():  # two functions of a block save the same tokens
            last[:] = x.data_ptr(), to_file(x) if in_files else x.cpu()
        return last[1]

    def unpack(stored: Any) -> Tensor:
        if isinstance(stored, Tensor):
            return stored.to(device)
        stored.seek(0)
        return torch.load(stored, weights_only=True)

    return saved_tensors_hooks(pack, unpack)


def to_file(x: Tensor) -> IO:
    """Write a tensor to a file without a name, which is gone when no one refers to it."""
    file = TemporaryFile()  # noqa: SIM115  # open as long as it is needed
    torch.save(x, file)
    return file


def embed(trunk: Any, images: Tensor, autocast: torch.autocast) -> Tensor:
    """Compute the tokens (B, h, w, C) of images, by stem and positional encoding."""
    scale = trunk.patch_size
    height, width = (math.ceil(side / scale) for side in images.shape[2:])

    def embed_band(pixels: Tensor, rows: slice) -> Tensor:
        with autocast:
            x = large.embed_rows(trunk, pixels.transpose(1, 2), rows, (height, width))
        return x.unflatten(1, (-1, width))

    weights = [weight for part in trunk.stages()[0] for weight in part.parameters()]
    x = images.transpose(1, 2)  # rows first
    # The stem reads up to 15 pixels above a token, and none below.
    bands = split(x, height, width, above=1, scale=scale)
    return _ByBands.apply(embed_band, bands, weights, x, *weights)


def run_block(block: Any, x: Tensor, autocast: torch.autocast) -> Tensor:
    """Run a block on tokens (B, h, w, C)."""
    height, width = x.shape[1:3]
    moments = moments_of(block.norm1, x)
    matrices = checkpoint(fast.attention_matrix, block.attn, moments, use_reentrant=False)
    parts = moments.mean, *matrices
    leaves = [part.detach().requires_grad_() for part in parts]
    factors = draw_paths(block.drop_path, x)

    def run_rows(x: Tensor, rows: slice) -> Tensor:
        """Map tokens (B, r, w, C) of rows, and of HALO more at each side."""
        read = x.shape[1]
        first = min(rows.start, large.HALO)
        x = x.flatten(1, 2)
        mean, matrix, offset = (leaf.to(x) for leaf in leaves)
        with autocast:
            branch = linear_by_image(block.norm1(x) - mean, matrix, offset)
            x = torch.addcmul(x, block.gamma1 * factors[0], branch)
            branch = block.local_mp(block.norm3(x), read, width)
            x = torch.addcmul(x, block.gamma3 * factors[1], branch)
            x = x[:, first * width : (first + rows.stop - rows.start) * width]
            x = torch.addcmul(x, block.gamma2 * factors[2], block.mlp(block.norm2(x)))
        return x.unflatten(1, (-1, width))

    weights = [w for name, w in block.named_parameters() if not name.startswith("attn.")]
    bands = split(x, height, width, above=large.HALO, below=large.HALO)
    return _ByBands.apply(run_rows, bands, [*leaves, *weights], x, *parts, *weights)


def moments_of(norm: nn.Module, x: Tensor) -> fast.Moments:
    """Compute the moments of normalised tokens (B, h, w, C) in float64."""
    height, width = x.shape[1:3]
    bands = [(None, rows) for rows, _ in split(x, height, width)]
    # Products of differences to a value near the mean lose no digits.
    with torch.no_grad():
        near = sum(norm(x[:, rows]).mean((1, 2)) for _, rows in bands)[:, None] / len(bands)

    def add_up(x: Tensor, rows: None) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            y = norm(x.flatten(1, 2)) - near
            return torch.cat((y.sum(dim=1, keepdim=True), y.mT @ y), 1).double()

    weights = list(norm.parameters())
    sums = _ByBands.apply(add_up, bands, weights, x, *weights)
    shift = sums[:, :1] / (height * width)
    products = sums[:, 1:] - sums[:, :1].mT @ shift
    return fast.Moments(height * width, near + shift, products)


def draw_paths(path: Any, x: Tensor) -> list[Tensor]:
    """Draw the factors (B, 1, 1) of drop path for XCA, LPI and MLP, as a block draws them."""
    ones = x.new_ones(len(x), 1, 1, dtype=product_dtype(x))  # on which the draws depend
    kept = 1 - path.drop_prob * path.training
    return [(path(ones) > 0).to(x) / kept for _ in range(3)]


def split(
    x: Tensor, height: int, width: int, above: int = 0, below: int = 0, scale: int = 1
) -> list[tuple[slice, slice]]:
    """Divide the rows of a grid of tokens into bands.

    Args:
        x: (B, H, ...), with `scale` rows for a row of tokens.
        above, below: Further rows of tokens whose part of x a band reads.

    Returns:
        For each band its rows of tokens, and the rows of x that it reads.
    """
    tokens = CPU_TOKENS if x.is_cpu else GPU_TOKENS
    return [
        (rows, slice(max(rows.start - above, 0) * scale, (rows.stop + below) * scale))
        for rows in large.split_rows(height, len(x) * width, tokens)
    ]


class _ByBands(torch.autograd.Function):
    """A function of x (B, H, ...) and other tensors that is computed by bands of rows.

    Args of `apply`:
        function: Is called with rows of x and the rows of the result (B, h, ...).
        bands: The rows of the result and of x. Without rows of the result, its bands are added up.
        leaves: The weights and other tensors that the function uses, in the order of `tensors`.
        tensors: The same for autograd.
    """

    @staticmethod
    def forward(ctx: Any, function: Any, bands: Any, leaves: Any, x: Tensor, *_: Tensor) -> Any:
        ctx.save_for_backward(x)
        ctx.function = function
        ctx.bands = bands
        ctx.leaves = leaves
        out: Any = 0
        for rows, read in bands:
            band = function(x[:, read], rows)
            if rows is None:
                out = out + band
                continue
            if rows.start == 0:
                out = band.new_empty(len(x), bands[-1][0].stop, *band.shape[2:])
            out[:, rows] = band
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_out: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        of_x: Any = torch.zeros_like(x) if ctx.needs_input_grad[3] else None
        gradients: dict[Tensor, Any] = {}
        for rows, read in ctx.bands:
            part = x[:, read].detach().requires_grad_(of_x is not None)
            with torch.enable_grad():
                out = ctx.function(part, rows)
            needed = [leaf for leaf in (part, *ctx.leaves) if leaf.requires_grad]
            # Not `backward`, at whose end DDP would count the weights as finished.
            found = torch.autograd.grad(out, needed, of_out if rows is None else of_out[:, rows])
            for leaf, gradient in zip(needed, found, strict=True):
                if leaf is part:
                    of_x[:, read] += gradient
                else:
                    gradients[leaf] = gradients.get(leaf, 0) + gradient
        return None, None, None, of_x, *map(gradients.get, ctx.leaves)
