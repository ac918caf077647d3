"""What an XCiT is made of: stem, positional encoding, local patch interaction, MLP, block, class attention block."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import XCA, ClassAttention
from .chunks import in_chunks, is_traced, is_watched
from .norms import build_norm
from .padding import run_together
from .recompute import recompute

__all__ = [
    "LPI",
    "MLP",
    "Block",
    "ClassAttentionBlock",
    "ConvPatchEmbed",
    "DropPath",
    "LinearPatchEmbed",
    "PositionalEncoding",
]


class ConvPatchEmbed(nn.Module):
    """Convolutional stem (paper, section 3.3, after LeViT): 3x3 stride-2 convolutions down to one map cell a patch.

    Each convolution halves the size, rounding up, and doubles the channels; BatchNorm follows each,
    GELU stands between them.

    Shape: (B, in_channels, H, W) -> (B, embed_dim, ceil(H / P), ceil(W / P)).

    Args:
        in_channels: Channels of the image.
        embed_dim: Channels of a token, a multiple of `patch_size / 2`.
        patch_size: Side P of a patch in pixels, a power of two.
        norm_cfg: Config of the BatchNorm layers.
    """

    def __init__(self, in_channels: int, embed_dim: int, patch_size: int, norm_cfg: dict) -> None:
        super().__init__()
        if embed_dim % (patch_size // 2):
            raise ValueError(f"embed_dim={embed_dim} must be a multiple of {patch_size // 2} with {patch_size=}")
        self.proj = nn.Sequential()
        channels = embed_dim // (patch_size // 2)
        while True:
            self.proj.append(
                nn.Sequential(
                    nn.Conv2d(in_channels, channels, 3, stride=2, padding=1, bias=False),
                    build_norm(norm_cfg, channels),
                )
            )
            if channels == embed_dim:
                break
            self.proj.append(nn.GELU())
            in_channels, channels = channels, 2 * channels

    def forward(self, x: Tensor) -> Tensor:
        # In this layout the map that comes out is a contiguous list of tokens.
        return self.proj(x.contiguous(memory_format=torch.channels_last))

    def forward_together(self, images: list[Tensor]) -> list[Tensor]:
        """As `forward`, of images of several sizes; see `run_together`."""
        return run_together(self.proj, [x.contiguous(memory_format=torch.channels_last) for x in images])


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

    def forward_together(self, images: list[Tensor]) -> list[Tensor]:
        """As `forward`, of images of several sizes."""
        return [self(x) for x in images]


class PositionalEncoding(nn.Module):
    """2-D sine/cosine positional encoding, projected to the width of the tokens (paper, appendix B.1).

    The 1x1 projection of the concatenated codes of y and x is the sum of a projection for each, so
    only the H + W distinct codes are projected, never the H x W grid.

    Args:
        embed_dim: Channels of a token.
        dim: Features for each coordinate.
        max_period: Longest wavelength of the code, in units of the extent over 2 pi.
    """

    def __init__(self, embed_dim: int, dim: int = 32, max_period: float = 10000.0) -> None:
        super().__init__()
        self.dim = dim
        self.max_period = max_period
        self.token_projection = nn.Conv2d(2 * dim, embed_dim, 1)

    def encode(self, length: int, device: torch.device) -> Tensor:
        """Code of the coordinates 1 to `length`, (length, dim), in float32 whatever the model's precision."""
        coordinate = torch.arange(1, length + 1, dtype=torch.float32, device=device)
        angle = coordinate / (length + 1e-6) * (2 * math.pi)
        exponent = torch.arange(0, self.dim, 2, dtype=torch.float32, device=device) / self.dim
        angle = angle[:, None] / self.max_period**exponent
        return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)

    def forward(self, height: int, width: int) -> Tensor:
        """Code of a grid, (height * width, embed_dim)."""
        weight = self.token_projection.weight
        along_y, along_x = weight.flatten(1).split(self.dim, dim=1)
        y = F.linear(self.encode(height, weight.device).to(weight.dtype), along_y, self.token_projection.bias)
        x = F.linear(self.encode(width, weight.device).to(weight.dtype), along_x)
        return (y[:, None] + x).flatten(0, 1)


class LPI(nn.Module):
    """Local patch interaction (paper, section 3.3): depthwise 3x3, GELU, BatchNorm, depthwise 3x3.

    Shape: (B, N, C) tokens of a `height` x `width` grid -> (B, N, C).
    """

    def __init__(self, dim: int, norm_cfg: dict) -> None:
        super().__init__()
        # mmcv's fuse_conv_bn goes by the order of registration and would fold a BatchNorm that comes
        # after conv1 into it, past the GELU between them.
        self.bn = build_norm(norm_cfg, dim)
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.act = nn.GELU()
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        # Two 3x3 convolutions: each row depends on two to each side.
        return in_chunks(self, self._interact_rows, x.unflatten(1, (height, width)), halo=2).flatten(1, 2)

    def forward_together(self, tokens: list[Tensor], sizes: list[tuple[int, int]]) -> list[Tensor]:
        """As `forward`, of grids of several sizes; see `run_together`."""
        if not self.bn.training:
            return [self(x, *size) for x, size in zip(tokens, sizes, strict=True)]
        maps = [x.unflatten(1, size).permute(0, 3, 1, 2) for x, size in zip(tokens, sizes, strict=True)]
        maps = recompute(self, run_together, (self.conv1, self.act, self.bn, self.conv2), maps)
        return [m.permute(0, 2, 3, 1).flatten(1, 2) for m in maps]

    def _interact_rows(self, x: Tensor) -> Tensor:
        # (B, rows, width, C) is a channels-last map already: the permutations copy nothing.
        return recompute(self, self._interact, x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    def _interact(self, x: Tensor) -> Tensor:
        return self.conv2(self.bn(self.act(self.conv1(x))))


class MLP(nn.Module):
    """Two linear layers with an exact GELU between them. Shape: (B, N, C) -> (B, N, C)."""

    def __init__(self, dim: int, hidden_dim: int, drop: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return recompute(self, self._project, self.fc1(x))

    def _project(self, hidden: Tensor) -> Tensor:
        # Recomputed up to the input of fc2: the second product is not done again.
        return self.drop(self.fc2(self.drop(self.act(hidden))))


class DropPath(nn.Module):
    """Stochastic depth: in training a sample's branch is left out at a rate, and enlarged by 1 / (1 - rate) where kept.

    Shape: (B, ...) -> (B, ...).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        drawn = torch.rand((len(x), *[1] * (x.dim() - 1)), dtype=x.dtype, device=x.device)
        kept = (drawn + (1 - self.rate)).floor()
        return x.div(1 - self.rate) * kept


class Block(nn.Module):
    """XCiT layer (paper, Figure 1): XCA, LPI and MLP, each pre-normalised, residual and scaled by LayerScale.

    Shape: (B, N, C) tokens of a `height` x `width` grid -> (B, N, C).

    Args:
        dim: Channels of a token.
        num_heads: Heads of the attention.
        eta: Initial value of LayerScale.
        norm_cfg: Config of the LPI's BatchNorm.
        mlp_ratio: Hidden width of the MLP over `dim`.
        drop_rate: Dropout probability in the MLP and after the attention's projection.
        attn_drop_rate: Dropout probability of the attention matrix.
        drop_path_rate: Probability that a sample skips a residual branch.
        attn_form: How the attention is computed, see `XCA`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        eta: float,
        norm_cfg: dict,
        mlp_ratio: int = 4,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        attn_form: str = "auto",
    ) -> None:
        super().__init__()
        # norm2 is the MLP's and norm3 the LPI's, though LPI runs first: the published numbering.
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = XCA(dim, num_heads, attn_drop=attn_drop_rate, proj_drop=drop_rate, form=attn_form)
        self.norm3 = nn.LayerNorm(dim, eps=1e-6)
        self.local_mp = LPI(dim, norm_cfg)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = MLP(dim, mlp_ratio * dim, drop=drop_rate)
        self.gamma1 = nn.Parameter(torch.full((dim,), eta))
        self.gamma2 = nn.Parameter(torch.full((dim,), eta))
        self.gamma3 = nn.Parameter(torch.full((dim,), eta))
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        x = self._add_scaled(x, self.gamma1, self.drop_path(self.attn(self.norm1(x))))
        x = self._add_scaled(x, self.gamma3, self.drop_path(self.local_mp(self.norm3(x), height, width)))
        return in_chunks(self, self._mix_channels, x)

    def forward_together(self, tokens: list[Tensor], sizes: list[tuple[int, int]]) -> list[Tensor]:
        """As `forward`, of grids of several sizes; only BatchNorm in training sees them together."""
        tokens = [self._add_scaled(x, self.gamma1, self.drop_path(self.attn(self.norm1(x)))) for x in tokens]
        branches = self.local_mp.forward_together([self.norm3(x) for x in tokens], sizes)
        tokens = [self._add_scaled(x, self.gamma3, self.drop_path(b)) for x, b in zip(tokens, branches, strict=True)]
        return [in_chunks(self, self._mix_channels, x) for x in tokens]

    def _mix_channels(self, x: Tensor) -> Tensor:
        return self._add_scaled(x, self.gamma2, self.drop_path(self.mlp(self.norm2(x))))

    def _add_scaled(self, x: Tensor, gamma: Tensor, branch: Tensor) -> Tensor:
        """x + gamma * branch; takes the memory of `branch` when inferring, if the sum is of its type."""
        inferring = not (torch.is_grad_enabled() or is_traced())
        # Under autocast gamma is float32 and so must the sum be, as it is in training, where `branch` may be half.
        reuse = inferring and x.dtype == gamma.dtype == branch.dtype and not is_watched(self)
        return torch.addcmul(x, gamma, branch, out=branch if reuse else None)


class ClassAttentionBlock(nn.Module):
    """Class attention layer (paper, section 3.3, after CaiT): the CLS token gathers from all tokens, then its MLP.

    As published, the other tokens pass both residual branches without attention and MLP: normalised in the
    first, doubled by the second.

    Shape: (B, N, C), the CLS token first -> (B, N, C).

    Args:
        dim: Channels of a token.
        num_heads: Heads of the attention.
        eta: Initial value of LayerScale.
        tokens_norm: Whether the second norm covers all tokens or the CLS token alone.
        mlp_ratio: Hidden width of the MLP over `dim`.
        drop_rate: Dropout probability in the MLP and after the attention's projection.
        attn_drop_rate: Dropout probability of the attention.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        eta: float,
        tokens_norm: bool,
        mlp_ratio: int = 4,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens_norm = tokens_norm
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = ClassAttention(dim, num_heads, attn_drop=attn_drop_rate, proj_drop=drop_rate)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = MLP(dim, mlp_ratio * dim, drop=drop_rate)
        self.gamma1 = nn.Parameter(torch.full((dim,), eta))
        self.gamma2 = nn.Parameter(torch.full((dim,), eta))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.gamma1 * torch.cat((self.attn(normed), normed[:, 1:]), dim=1)
        if self.tokens_norm:
            x = self.norm2(x)
        cls, tokens = x[:, :1], x[:, 1:]
        if not self.tokens_norm:
            cls = self.norm2(cls)
        return torch.cat((cls + self.gamma2 * self.mlp(cls), 2 * tokens), dim=1)
