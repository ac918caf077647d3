"""Layers of XCiT: stem, positional encoding, local patch interaction, MLP and block."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..utils.compat import in_function_transform, is_plain
from .attention import XCA
from .chunks import in_chunks
from .norms import build_norm
from .recompute import recompute


def init_linear(module: nn.Module) -> None:
    """Initialise a linear layer, for `nn.Module.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


def channels_last(x: Tensor) -> Tensor:
    """Return a map (B, C, H, W) in the layout in which it is a contiguous list of tokens; vmap has no such layout."""
    return x if in_function_transform() else x.contiguous(memory_format=torch.channels_last)


class ConvPatchEmbed(nn.Module):
    """Convolutional stem (paper, section 3.3, after LeViT): 3x3 stride-2 convolutions down to one cell per patch.

    Each convolution halves the size, rounding up, and doubles the channels. BatchNorm follows each convolution, GELU
    stands between them.

    Shape: (B, in_channels, H, W) -> (B, embed_dim, ceil(H / P), ceil(W / P)).

    Args:
        patch_size: Side P of a patch in pixels, a power of two.

    Raises:
        ValueError: If `embed_dim` is not a multiple of `patch_size / 2`.
    """

    def __init__(self, in_channels: int, embed_dim: int, patch_size: int, norm_cfg: dict) -> None:
        super().__init__()
        if embed_dim % (patch_size // 2):
            raise ValueError(f"embed_dim={embed_dim} must be a multiple of {patch_size // 2} with {patch_size=}")
        self.proj = nn.Sequential()
        channels = embed_dim // (patch_size // 2)
        while channels <= embed_dim:
            if len(self.proj):
                self.proj.append(nn.GELU())
            conv = nn.Conv2d(in_channels, channels, 3, stride=2, padding=1, bias=False)
            self.proj.append(nn.Sequential(conv, build_norm(norm_cfg, channels)))
            in_channels, channels = channels, 2 * channels

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(channels_last(x))


class LinearPatchEmbed(nn.Module):
    """Linear projection of non-overlapping patches, as in ViT (paper, Table 4).

    The right and bottom borders are padded with zeros to whole patches.

    Shape: (B, in_channels, H, W) -> (B, embed_dim, ceil(H / P), ceil(W / P)).
    """

    def __init__(self, in_channels: int, embed_dim: int, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, embed_dim, patch_size, stride=patch_size)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        return self.proj(F.pad(x, (0, -width % self.patch_size, 0, -height % self.patch_size)))


class PositionalEncoding(nn.Module):
    """2-D sine/cosine positional encoding, projected to the width of the tokens (paper, appendix B.1).

    The 1x1 projection of the concatenated codes of y and x is the sum of a projection of each code, so that H + W
    codes are projected instead of H x W, where the projection is a convolution without hooks.
    """

    dim = 32  # features for each coordinate
    max_period = 10000.0  # longest wavelength of the code, in units of the extent over 2 pi

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.token_projection = nn.Conv2d(2 * self.dim, embed_dim, 1)

    def encode(self, length: int, device: torch.device) -> Tensor:
        """Return the code of the coordinates 1 to `length`, (length, dim), always in float32."""
        coordinate = torch.arange(1, length + 1, dtype=torch.float32, device=device)
        angle = coordinate / (length + 1e-6) * (2 * math.pi)
        exponent = torch.arange(0, self.dim, 2, dtype=torch.float32, device=device) / self.dim
        angle = angle[:, None] / self.max_period**exponent
        return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)

    def forward(self, height: int, width: int) -> Tensor:
        """Return the code of a grid, (height * width, embed_dim)."""
        projection = self.token_projection
        plain = is_plain(projection, nn.Conv2d)
        weight = projection.weight if plain else next(projection.parameters(), torch.empty(0))
        y, x = (self.encode(length, weight.device).to(weight.dtype) for length in (height, width))
        if not plain:
            codes = torch.cat((y[:, None].expand(-1, width, -1), x.expand(height, -1, -1)), dim=2)
            return projection(codes.permute(2, 0, 1)[None])[0].flatten(1).T
        along_y, along_x = weight.flatten(1).split(self.dim, dim=1)
        return (F.linear(y, along_y, projection.bias)[:, None] + F.linear(x, along_x)).flatten(0, 1)


class LPI(nn.Module):
    """Local patch interaction (paper, section 3.3): depthwise 3x3, GELU, BatchNorm, depthwise 3x3.

    Shape: (B, N, C) tokens of a `height` x `width` grid -> (B, N, C).
    """

    def __init__(self, dim: int, norm_cfg: dict) -> None:
        super().__init__()
        # mmcv's fuse_conv_bn follows the order of registration: it would fold a BatchNorm registered after conv1 into
        # conv1, past the GELU between them.
        self.bn = build_norm(norm_cfg, dim)
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.act = nn.GELU()
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        # Two 3x3 convolutions: each row depends on two rows to each side.
        return in_chunks(self, self._interact_rows, x.unflatten(1, (height, width)), halo=2).flatten(1, 2)

    def _interact_rows(self, x: Tensor) -> Tensor:
        # (B, rows, width, C) is a channels-last map already: the permutations copy nothing.
        return recompute(self, self._interact, x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    def _interact(self, x: Tensor) -> Tensor:
        return self.conv2(self.bn(self.act(self.conv1(x))))


class MLP(nn.Module):
    """Two linear layers with an exact GELU between them, four times as wide inside. Shape: (B, N, C) -> (B, N, C)."""

    def __init__(self, dim: int, drop: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return recompute(self, self._project, self.fc1(x))

    def _project(self, hidden: Tensor) -> Tensor:
        # Recomputation ends at the input of fc2, so the second product is computed once.
        return self.drop(self.fc2(self.drop(self.act(hidden))))


class DropPath(nn.Module):
    """Stochastic depth: drops a sample's branch in training at a rate, and scales it by 1 / (1 - rate) otherwise.

    Shape: (B, ...) -> (B, ...).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        noise = torch.rand((len(x), *[1] * (x.dim() - 1)), dtype=x.dtype, device=x.device)
        mask = (noise + (1 - self.rate)).floor()
        return x.div(1 - self.rate) * mask


class Block(nn.Module):
    """XCiT layer (paper, Figure 1): XCA, LPI and MLP, each pre-normalised, residual and scaled by LayerScale.

    Shape: (B, N, C) tokens of a `height` x `width` grid -> (B, N, C).

    Args:
        dim: Number of channels C of a token.
        eta: Initial value of LayerScale.
        norm_cfg: Config of the LPI's BatchNorm.
        drop_rate: Dropout probability in the MLP and after the attention's projection.
        attn_drop_rate: Dropout probability of the attention matrix.
        drop_path_rate: Probability that a sample skips a residual branch.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        eta: float,
        norm_cfg: dict,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        attn_implementation: str = "auto",
    ) -> None:
        super().__init__()
        # norm2 belongs to the MLP and norm3 to the LPI, though LPI runs first: the published numbering.
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = XCA(dim, num_heads, attn_drop_rate, drop_rate, attn_implementation)
        self.norm3 = nn.LayerNorm(dim, eps=1e-6)
        self.local_mp = LPI(dim, norm_cfg)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = MLP(dim, drop=drop_rate)
        self.gamma1 = nn.Parameter(torch.full((dim,), eta))
        self.gamma2 = nn.Parameter(torch.full((dim,), eta))
        self.gamma3 = nn.Parameter(torch.full((dim,), eta))
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        x = self.add_branch(x, self.gamma1, self.attn(self.norm1(x)))
        x = self.add_branch(x, self.gamma3, self.local_mp(self.norm3(x), height, width))
        return in_chunks(self, self.add_mlp, x)

    def add_mlp(self, x: Tensor) -> Tensor:
        return self.add_branch(x, self.gamma2, self.mlp(self.norm2(x)))

    def add_branch(self, x: Tensor, gamma: Tensor, branch: Tensor) -> Tensor:
        """Return x + gamma * drop_path(branch)."""
        if x.dtype == torch.bfloat16 and not torch.is_grad_enabled():
            gamma = gamma.to(x.dtype)  # gamma in float32 makes the tokens float32, which takes time and training needs
        return torch.addcmul(x, gamma, self.drop_path(branch))
