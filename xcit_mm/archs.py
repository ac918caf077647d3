"""The XCiT family as data. No other module repeats these numbers."""

from collections.abc import Mapping
from typing import NamedTuple

PATCH_SIZES = (16, 8)  # of the published models

# Mean and standard deviation of ImageNet's pixels, RGB from 0 to 255. The published trunks take
# (image - MEAN) / STD.
MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)


class Arch(NamedTuple):
    """Shape of a trunk. Source: paper, Tables 1 and B.1.

    Attributes:
        embed_dim: Number of channels of a token.
        depth: Number of blocks.
        num_heads: Number of channel groups in cross-covariance attention.
        eta: Initial value of LayerScale.
        tokens_norm: Whether the second norm of class attention covers all tokens or the CLS token
            alone.
    """

    embed_dim: int
    depth: int
    num_heads: int
    eta: float
    tokens_norm: bool = True


ARCHS: dict[str, Arch] = {
    "n12": Arch(embed_dim=128, depth=12, num_heads=4, eta=1.0, tokens_norm=False),
    "t12": Arch(embed_dim=192, depth=12, num_heads=4, eta=1.0),
    "t24": Arch(embed_dim=192, depth=24, num_heads=4, eta=1e-5),
    "s12": Arch(embed_dim=384, depth=12, num_heads=8, eta=1.0),
    "s24": Arch(embed_dim=384, depth=24, num_heads=8, eta=1e-5),
    "m24": Arch(embed_dim=512, depth=24, num_heads=8, eta=1e-5),
    "l24": Arch(embed_dim=768, depth=24, num_heads=16, eta=1e-5),
}


def resolve_arch(arch: str | Mapping | None) -> Arch:
    """Return a published architecture by its name, or check a user's own architecture.

    Args:
        arch: A key of `ARCHS`, or a mapping with every field of `Arch`. The default of
            `tokens_norm` is the value of the published architecture of this shape, or else True.

    Raises:
        ValueError: If the name is missing or unknown, a field is missing or unknown, or `num_heads`
            does not divide `embed_dim`.
    """
    if isinstance(arch, str) and arch in ARCHS:
        return ARCHS[arch]
    required = [field for field in Arch._fields if field not in Arch._field_defaults]
    if not isinstance(arch, Mapping) or not set(required) <= set(arch) <= set(Arch._fields):
        fields = f"{', '.join(required)} and, if needed, {', '.join(Arch._field_defaults)}"
        choices = f"one of {', '.join(ARCHS)}, or a dict of {fields}"
        raise ValueError(f"{arch=}: give {choices}, see docs/backbone.md")
    shape = Arch(**arch)
    published = ARCHS.get(arch_name(*shape[:3]))
    if published and "tokens_norm" not in arch:
        shape = shape._replace(tokens_norm=published.tokens_norm)
    if shape.embed_dim % shape.num_heads:
        raise ValueError(
            f"num_heads={shape.num_heads} does not divide embed_dim={shape.embed_dim}: "
            "choose a divisor of the width"
        )
    return shape


def arch_name(embed_dim: int, depth: int, num_heads: int) -> str:
    """Return the name of the published architecture of this shape, or a name such as '32x12x4'."""
    names = [name for name, arch in ARCHS.items() if arch[:3] == (embed_dim, depth, num_heads)]
    return names[0] if names else f"{embed_dim}x{depth}x{num_heads}"


def default_out_indices(depth: int) -> tuple[int, ...]:
    """Return the blocks (0-based) for strides 4, 8, 16, 32: at 1/3, 1/2, 2/3 and all of the depth.

    They are (3, 5, 7, 11) for 12 blocks and (7, 11, 15, 23) for 24. Source: paper, appendix B.2.

    Raises:
        ValueError: If the depth is too small for four different blocks.
    """
    indices = tuple(depth * twelfths // 12 - 1 for twelfths in (4, 6, 8, 12))
    if indices[0] < 0 or len(set(indices)) < len(indices):
        raise ValueError(
            f"depth {depth} is too shallow for four default out_indices: pass out_indices"
        )
    return indices
