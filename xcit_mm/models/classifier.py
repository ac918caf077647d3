"""The XCiT classifier: the trunk, class attention and a linear head."""

from collections.abc import Mapping
from typing import Any

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..archs import resolve_arch
from ..weights.layouts import Weights
from ..weights.matching import match_heads
from .xcit import MLP, Trunk, init_linear

CLASS_ATTENTION_BLOCKS = 2


class ClassAttention(nn.Module):
    """Attention of the CLS token to all tokens (section 3.3; CaiT, arXiv 2103.17239, section 3).

    Shape: (B, N, C), the CLS token first -> (B, 1, C).
    """

    def __init__(
        self, dim: int, num_heads: int, attn_drop: float = 0.0, proj_drop: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def attend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the CLS token's attention (B, heads, 1, N), and the values (B, heads, N, d)."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        # Scaled before the product, which could overflow in half precision.
        cls = q[:, :, :1] * q.shape[-1] ** -0.5
        return (cls @ k.transpose(2, 3)).softmax(dim=-1), v

    def forward(self, x: Tensor) -> Tensor:
        attn, v = self.attend(x)
        out = (self.attn_drop(attn) @ v).transpose(1, 2).flatten(2)
        return self.proj_drop(self.proj(out))


class ClassAttentionBlock(nn.Module):
    """Class attention layer (section 3.3, after CaiT): attention of the CLS token, then its MLP.

    As in the published models, the image's tokens pass both residual branches without attention and
    MLP: the first adds their norm, the second doubles them.

    Shape: (B, N, C), the CLS token first -> (B, N, C).

    Args: see `Block`, and `Arch` for `tokens_norm`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        eta: float,
        tokens_norm: bool,
        drop_rate: float,
        attn_drop_rate: float,
    ) -> None:
        super().__init__()
        self.tokens_norm = tokens_norm
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = ClassAttention(dim, num_heads, attn_drop=attn_drop_rate, proj_drop=drop_rate)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = MLP(dim, drop=drop_rate)
        self.gamma1 = nn.Parameter(torch.full((dim,), eta))
        self.gamma2 = nn.Parameter(torch.full((dim,), eta))

    def forward(self, x: Tensor) -> Tensor:
        # As in the published models, both residuals also reach the tokens of the image.
        normed = self.norm1(x)
        x = x + self.gamma1 * torch.cat((self.attn(normed), normed[:, 1:]), dim=1)
        if self.tokens_norm:
            x = self.norm2(x)
        cls = x[:, :1]
        if not self.tokens_norm:
            cls = self.norm2(cls)
        return torch.cat((cls + self.gamma2 * self.mlp(cls), 2 * x[:, 1:]), dim=1)


@MODELS.register_module()
class XCiTClassifier(Trunk):
    """XCiT for classification, and its CLS token as the descriptor of an image.

    Paper: https://arxiv.org/abs/2106.09681, section 3.3 and Table 2. Two class attention blocks
    follow the blocks of the trunk, then a LayerNorm and a linear layer on the CLS token. Parameter
    names are those of the published files.

    Shape: (B, in_channels, H, W), H and W any sizes -> (B, num_classes).

    Args:
        arch: See `XCiT`. A dict may also have `tokens_norm`, whether the second norm of class
            attention covers all tokens or the CLS token alone. Default: all tokens, as in every
            published model but n12.
        patch_size: Side of a patch in pixels, 16 or 8.
        num_classes: Number of classes of the linear head, or 0 for a model without a head, as in
            DINO's files, which returns the CLS token (B, embed_dim).
        as_tuple: Whether to return a tuple of one tensor, which mmpretrain's heads expect from a
            backbone.
        init_cfg: See mmengine. `dict(type='Pretrained', checkpoint=...)` fills the model or raises.
            With `strict_heads=False` the head stays as it is if the file's head has another shape.
        **kwargs: Arguments of `XCiT` except `out_indices`, `strides` and `with_cp='bands'`.
            `frozen_stages` and `drop_path_rate` apply to stem and blocks only.

    Raises:
        TypeError: If an argument is unknown.
        ValueError: If an argument has an invalid value.
    """

    # Class attention sees all tokens.
    can_leave_out_pixels = False
    unused_prefixes = ("head.",)

    def __init__(
        self,
        arch: str | Mapping | None = None,
        patch_size: int = 16,
        num_classes: int = 1000,
        as_tuple: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(arch, patch_size, out_indices=(resolve_arch(arch).depth - 1,), **kwargs)
        rates = {name: kwargs.get(name, 0.0) for name in ("drop_rate", "attn_drop_rate")}
        dim, _, num_heads, eta, tokens_norm = self.arch
        self.num_classes = num_classes
        self.as_tuple = as_tuple
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.cls_attn_blocks: Any = nn.ModuleList(
            ClassAttentionBlock(dim, num_heads, eta, tokens_norm, **rates)
            for _ in range(CLASS_ATTENTION_BLOCKS)
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes) if num_classes else nn.Identity()
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.cls_attn_blocks.apply(init_linear)
        self.head.apply(init_linear)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor]:  # type: ignore[override]  # no maps
        """Compute the logits, or the CLS token without a head, in a tuple if `as_tuple`.

        Raises:
            RuntimeError: If the number of the image's channels is not `in_channels`, or its type is
                not that of the weights.
        """
        cls, _ = self.forward_features(x)
        out = self.head(cls)
        return (out,) if self.as_tuple else out

    def match_weights(
        self, weights: Weights, strict_heads: bool = True, fill_stem: bool = False
    ) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint that fill the classifier.

        With `strict_heads=False`, a head for another number of classes is left out.
        """
        state = super().match_weights(weights, strict_heads, fill_stem)
        head = {key: tensor for key, tensor in self.state_dict().items() if key not in state}
        # Not all of DINO's head.
        in_file = {key: weights.trunk[key] for key in head if key in weights.trunk}
        return state | match_heads(head, in_file, strict_heads)

    def forward_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute CLS token (B, C) and map (B, C, h, w) after the final norm.

        h and w are H / P and W / P, rounded up.
        """
        tokens, size = self._with_cls_token(x)
        for block in self.cls_attn_blocks:
            tokens = block(tokens)
        tokens = self.norm(tokens)
        return tokens[:, 0], tokens[:, 1:].transpose(1, 2).unflatten(2, size)

    def attention_maps(self, x: Tensor) -> tuple[Tensor, ...]:
        """Compute the attention of the CLS token to the image in each block (paper, Figure 4).

        Returns:
            For each block (B, heads, h, w), with h and w as in `forward_features`. A map sums to 1
            minus the attention to the CLS token itself.
        """
        tokens, size = self._with_cls_token(x)
        maps = []
        for block in self.cls_attn_blocks:
            attention, _ = block.attn.attend(block.norm1(tokens))
            maps.append(attention[:, :, 0, 1:].unflatten(2, size))
            tokens = block(tokens)
        return tuple(maps)

    def _with_cls_token(self, x: Tensor) -> tuple[Tensor, torch.Size]:
        """Compute the CLS and the trunk's tokens, (B, 1 + N, C), and the size of their grid."""
        (grid,) = super().forward(x)
        tokens = grid.flatten(2).transpose(1, 2)
        # len(x) would fix the batch of a trace.
        return torch.cat((self.cls_token.expand(x.shape[0], -1, -1), tokens), dim=1), grid.shape[2:]
