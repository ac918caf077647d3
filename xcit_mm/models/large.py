"""The trunk over an image of any size, in bounded memory, with the results of the trunk in memory.

XCA sees the tokens of an image by their moments alone: number N, mean m and centred products S (see
`covariance_attention`). Those of two parts a and b add up to those of both:

    N = Na + Nb,    m = ma + Nb/N d,    S = Sa + Sb + Na Nb/N d^T d,    with d = mb - ma.

Given the moments, XCA maps each token by itself, as MLP does, and LPI reads two rows to each side.
So a block is one pass over bands of rows: XCA by the moments that the last pass has summed, LPI,
MLP, and the moments for the next block. The stem is the first pass: a token reads up to 15 pixels
above its own, none below.

Each pass replaces the tokens in place, where the last tap will be: N tokens and four taps take
16 N C bytes, in memory or in files.

Several processes share the rows of an image. In each pass they add up their moments, in the order
of ranks, and give two rows of tokens to each neighbour. All else they read from their own rows.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..utils.folders import check_is_shared
from ..utils.ranks import Ranks
from .base import cells_with_data, keep_valid
from .covariance import Moments, attention_matrix, centre
from .matmul import linear_by_image
from .token_stores import TokensInFile, TokensInMemory, TokenStore, prepare_files
from .trunk_check import check_trunk
from .windows import in_cells
from .xcit import STRIDES, Trunk, XCiT

# Tokens of a band. In a wide image a band has 8 rows, and LPI computes 4 more.
CPU_TOKENS = 8192
GPU_TOKENS = 65536
MIN_ROWS = 8
# Bands, and the rows of a process, start at its multiples. So each has a row of the image itself,
# though the grid is padded.
ROW_STEP = 4
HALO = 2  # rows of tokens that LPI reads to each side

# Returns the rows `first` to `last - 1` of an image, normalised (in_channels, rows, width), and
# which pixels have data (rows, width), or None if all have.
ReadRows = Callable[[int, int], tuple[Tensor, Tensor | None]]


class Taps(NamedTuple):
    """The maps of a trunk over an image, which counts as padded to multiples of 32 pixels.

    Attributes:
        stores: For each of `out_indices`, tokens (height, width, C), zero where no data are.
        valid: Which tokens have data, (height, width).
    """

    stores: list[TokenStore]
    valid: Tensor

    def crop(self, rows: slice, columns: slice) -> tuple[list[Tensor], Tensor]:
        """Read a window, given in tokens: its maps (1, C, h, w) and its part of `valid`."""
        maps = [store.read(rows, columns).permute(2, 0, 1)[None] for store in self.stores]
        return maps, self.valid[rows, columns]


@torch.no_grad()
def pyramid_of(backbone: XCiT, taps: Taps, rows: slice, columns: slice) -> tuple[Tensor, ...]:
    """Compute the part of an image's feature maps in a window, finest map first.

    It needs no margin, since no level of a pyramid reads neighbours.

    Args:
        rows, columns: The window in pixels: multiples of 32 inside the padded image.

    Raises:
        ValueError: If the window is empty, is not inside the image, or does not start and stop at
            multiples of 32.
    """
    for side, cells in zip((rows, columns), taps.valid.shape, strict=True):
        ends = range(0, cells * backbone.patch_size + 1, STRIDES[-1])
        if side.start not in ends or side.stop not in ends or side.start >= side.stop:
            raise ValueError(f"{side} of a window: give multiples of 32 from 0 to {ends[-1]}")
    maps, valid = taps.crop(*(in_cells(side, backbone.patch_size) for side in (rows, columns)))
    return backbone.apply_levels(maps, None if valid.all() else valid[None, None])


@torch.no_grad()
def large_taps(
    trunk: Trunk,
    read_rows: ReadRows,
    height: int,
    width: int,
    folder: str | Path | None = None,
    memory: int = 2**30,
    progress: Callable[[int, int], None] = lambda done, passes: None,
    group: Any = None,
) -> Taps:
    """Compute the maps after each of `out_indices` of a trunk over an image, by bands of rows.

    To rounding, they are those of `Trunk.forward` of the image padded to multiples of 32 pixels,
    with the padding left out by `Backbone.valid`. Under autocast, products alone are in half
    precision.

    Processes of a group share the rows, and each returns the maps of all. Its result is the same in
    each run with as many processes, and to rounding that of one process. The trunk and all other
    arguments must be the same in each.

    Args:
        trunk: In eval mode, as built or prepared for inference, with weights in float32.
        read_rows: Function that takes `first` and `last`, and returns the rows `first` to
            `last - 1` of the image, normalised (in_channels, rows, width), and which pixels have
            data (rows, width), or None if all have. It is called for one band after the other, over
            all rows or over the rows of this process.
        height, width: Size of the image in pixels.
        folder: For this image and this model alone. It must exist. A later call with the same
            folder continues after the last tap that was finished, without the image. The number of
            processes may have changed.
        memory: Bytes that tokens and taps may take on the trunk's device. If they need more, or if
            there are several processes, they are in files of the folder.
        progress: Function that is called with the number of passes done and of all passes.
        group: A group of torch.distributed. Default: this process alone.

    Raises:
        ValueError: If the trunk is not XCiT's, is in training mode or has changed layers, or if a
            folder is needed.
        OSError: If the folder's disk is too small for the taps, a process does not see the first
            one's folder, or another process has ended.
    """
    check_trunk(trunk)
    image = _Image(trunk, height, width, Ranks(group))
    stores = image.open_stores(folder, memory)
    work = stores[trunk.out_indices[-1]]
    finished = [index for index, store in stores.items() if store.is_finished]
    if finished:
        start = finished[-1] + 1
        tokens = stores[finished[-1]]
        image.resume(tokens, start)
    else:
        start = 0
        tokens = work
        image.embed(read_rows, tokens)
    passes = 1 + len(trunk.blocks)
    progress(1 + start, passes)
    for number in range(start, len(trunk.blocks)):
        target = stores.get(number, work)
        image.run_block(number, tokens, target)
        if number in stores:
            target.finish(image.ranks)
        tokens = target
        progress(2 + number, passes)
    return Taps(list(stores.values()), image.valid)


def split_rows(rows: slice, width: int, tokens: int) -> Iterator[slice]:
    """Divide rows of a grid of tokens into bands of about as many tokens."""
    length = max(MIN_ROWS, tokens // width // ROW_STEP * ROW_STEP)
    for first in range(rows.start, rows.stop, length):
        yield slice(first, min(first + length, rows.stop))


def embed_rows(
    trunk: Any, pixels: Tensor, rows: slice, grid: tuple[int, int], valid: Tensor | None = None
) -> Tensor:
    """Compute tokens (B, N, C) of rows by stem and positional encoding.

    They have the type of the weights, also under autocast.

    Args:
        pixels: (B, in_channels, H, W) of these rows and, unless they are the first, of the row of
            patches above.
        grid: Height and width of the image in tokens.
        valid: Which of the pixels have data, (B, 1, H, W), or None if all have.
    """
    x = trunk.patch_embed(pixels, valid=valid)
    x = x[:, :, min(rows.start, 1) :].flatten(2).transpose(1, 2).to(trunk.blocks[0].gamma1)
    if trunk.pos_embeder is not None:
        x = x + trunk.pos_embeder(x.new_empty(()).expand(1, 1, *grid), rows)
    return x


def add_moments(one: Moments, other: Moments) -> Moments:
    """Compute the moments of two parts of an image together."""
    if other.tokens == 0:
        return one
    count = one.tokens + other.tokens
    shift = other.mean - one.mean
    mean = one.mean + shift * (other.tokens / count)
    products = one.products + other.products
    products += shift.transpose(1, 2) @ shift * (one.tokens * other.tokens / count)
    return Moments(count, mean, products)


class _Image:
    """The grid of tokens of an image, and the passes of a process over its rows."""

    def __init__(self, trunk: Trunk, height: int, width: int, ranks: Ranks) -> None:
        self.trunk: Any = trunk
        self.ranks = ranks
        self.size = height, width
        cells = STRIDES[-1] // trunk.patch_size  # tokens along a cell of stride 32
        self.height = math.ceil(height / STRIDES[-1]) * cells
        self.width = math.ceil(width / STRIDES[-1]) * cells
        shares = ranks.divide(self.height, ROW_STEP)
        self.rows = shares[ranks.rank]
        self.processes = sum(share.start < share.stop for share in shares)  # that have rows
        self.device = next(trunk.parameters()).device
        self.valid = torch.zeros(self.height, self.width, dtype=torch.bool, device=self.device)
        self.forget_moments()

    def open_stores(self, folder: str | Path | None, memory: int) -> dict[int, TokenStore]:
        """Make place for each tap, by the number of its block, or raise."""
        indices = self.trunk.out_indices
        shape = self.height, self.width, self.trunk.arch.embed_dim
        size = 4 * math.prod(shape)
        if len(indices) * size <= memory and self.ranks.size == 1:
            return {index: TokensInMemory(shape, self.device) for index in indices}
        if folder is None:
            raise ValueError(f"the taps take {len(indices) * size / 1e9:.1f} GB: give a folder")
        folder = Path(folder)
        check_is_shared(folder, self.ranks)
        names = [f"tap{index}" for index in indices]
        current = self.ranks.of_first(lambda: prepare_files(folder, names, size))
        stores = map(partial(TokensInFile, shape, self.device, folder), names, current)
        return dict(zip(indices, stores, strict=True))

    def bands(self) -> Iterator[slice]:
        """Divide the rows of this process."""
        tokens = CPU_TOKENS if self.device.type == "cpu" else GPU_TOKENS
        return split_rows(self.rows, self.width, tokens)

    def mask(self, rows: slice) -> Tensor | None:
        """Return which tokens of rows have data, (1, 1, rows, width), or None if all have."""
        valid = self.valid[None, None, rows]
        return None if valid.all() else valid

    def forget_moments(self) -> None:
        channels = self.trunk.arch.embed_dim
        zeros = torch.zeros(1, channels, channels, dtype=torch.float64, device=self.device)
        self.moments = Moments(0, zeros[:, :1], zeros)

    def finish_band(self, number: int, x: Tensor, rows: slice, target: TokenStore) -> None:
        """Write the input x (1, N, C) of a block for some rows, and add the moments of x."""
        grid = x[0].unflatten(0, (-1, self.width))
        target.write(rows, keep_valid(grid, self.valid[rows, :, None]))
        self.collect_moments(number, x, rows)

    def collect_moments(self, number: int, x: Tensor, rows: slice) -> None:
        """Add the moments of a block's input x (1, N, C) to those of earlier rows."""
        if number == len(self.trunk.blocks):
            return
        with torch.autocast(self.device.type, enabled=False):
            normed = self.trunk.blocks[number].norm1(x)
            _, band = centre(normed, torch.float32, self.mask(rows))
        added = Moments(int(band.tokens), band.mean.double(), band.products.double())
        self.moments = add_moments(self.moments, added)

    def take_moments(self) -> Moments:
        """Return the moments of the rows of all processes, and forget them for the next block."""
        tokens, mean, products = self.moments
        self.forget_moments()
        parts = self.ranks.gather(Moments(tokens, mean.cpu(), products.cpu()))
        tokens, mean, products = reduce(add_moments, parts)
        return Moments(tokens, mean.to(self.device), products.to(self.device))

    def resume(self, tokens: TokenStore, number: int) -> None:
        """Go on with a finished tap as the input of a block."""
        for rows in self.bands():
            x = tokens.read(rows)
            self.valid[rows] = x.any(dim=2)  # a tap is zero where no data are
            self.collect_moments(number, x.flatten(0, 1)[None], rows)
        self.share_valid()

    def share_valid(self) -> None:
        """Collect from all processes which tokens in their rows have data."""
        parts = self.ranks.gather(self.valid[self.rows].cpu())
        self.valid = torch.cat(parts).to(self.device)

    def embed(self, read_rows: ReadRows, target: TokenStore) -> None:
        """Compute the tokens of the image: stem and positional encoding."""
        patch_size = self.trunk.patch_size
        height, width = self.size
        for rows in self.bands():
            top = max(rows.start - 1, 0)  # of the tokens: the stem reads a row of patches above
            bottom = rows.stop * patch_size
            pixels, has_data = read_rows(top * patch_size, min(bottom, height))
            if has_data is None:
                has_data = torch.ones(pixels.shape[1:], dtype=torch.bool)
            padding = (0, self.width * patch_size - width, 0, max(bottom - height, 0))
            pixels = F.pad(pixels[None].to(self.device), padding)
            has_data = F.pad(has_data[None, None].to(self.device), padding)
            self.valid[top : rows.stop] = cells_with_data(has_data, patch_size)
            valid = None if has_data.all() else has_data
            x = embed_rows(self.trunk, pixels, rows, (self.height, self.width), valid)
            self.finish_band(0, x, rows, target)
        self.share_valid()

    def exchange_rows(self, source: TokenStore) -> tuple[Tensor, Tensor]:
        """Give the outer rows of tokens to the neighbours, and return theirs, above and below."""
        first = self.rows.start
        last = self.rows.stop
        upper = source.read(slice(first, min(first + HALO, last)))
        lower = source.read(slice(max(last - HALO, first), last))
        return self.ranks.exchange(upper, lower, self.processes)

    def attention_of(self, block: Any) -> Callable[[Tensor], Tensor]:
        """Return XCA of a block with its residual, as a map of tokens (r, w, C) of any rows."""
        moments = self.take_moments()
        matrices = moments.mean, *attention_matrix(block.attn, moments)
        mean, matrix, offset = (part.float() for part in matrices)

        def attend(rows: Tensor) -> Tensor:
            x = rows.flatten(0, 1)[None]
            branch = linear_by_image(block.norm1(x) - mean, matrix, offset)
            return torch.addcmul(x, block.gamma1, branch).reshape(rows.shape)

        return attend

    def run_block(self, number: int, source: TokenStore, target: TokenStore) -> None:
        """Run a block from the tokens in `source` to those in `target`, which may be the same."""
        block = self.trunk.blocks[number]
        attend = self.attention_of(block)
        above, below = self.exchange_rows(source)
        attended = attend(above)
        start = self.rows.start - len(above)  # of `attended`
        for rows in self.bands():
            further = slice(start + len(attended), min(rows.stop + HALO, self.rows.stop))
            x = source.read(further)
            if rows.stop == self.rows.stop:
                x = torch.cat((x, below))
            attended = torch.cat((attended, attend(x)))
            height = len(attended)
            valid = self.mask(slice(start, start + height))
            x = block.add_interaction(attended.flatten(0, 1)[None], height, self.width, valid)
            x = x.unflatten(1, (height, self.width))[:, rows.start - start : rows.stop - start]
            x = block.add_mlp(x.flatten(1, 2))
            self.finish_band(number + 1, x, rows, target)
            # LPI of the next band reads rows above it, which `target` has replaced.
            attended = attended[rows.stop - HALO - start :]
            start = rows.stop - HALO
