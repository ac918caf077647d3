"""The stem of a published model, which sees red, green and blue, for images of other bands."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

__all__ = ["FILL_HINT", "RGB", "STEM_RULES", "check_stem_rule", "stem_for_bands", "stem_key"]

RGB = 3

# The filters of N bands from those of red, green and blue, (C, 3, h, w) -> (C, N, h, w).
STEM_RULES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mean": lambda rgb, bands: _grey(rgb, bands) * RGB / bands,
    "rgb-mean": lambda rgb, bands: torch.cat((rgb, _grey(rgb, bands - RGB)), dim=1) * RGB / bands,
    "rgb-zero": lambda rgb, bands: torch.cat((rgb, 0 * _grey(rgb, bands - RGB)), dim=1),
}


# What to ask for.
FILL_HINT = "fill_stem='rgb-mean' (or 'rgb-zero', 'mean')"


def _grey(rgb: Tensor, bands: int) -> Tensor:
    return rgb.mean(dim=1, keepdim=True).expand(-1, bands, -1, -1)


def check_stem_rule(rule: str | None) -> None:
    """Refuse what is no rule of `stem_for_bands`; None is no wish for one.

    Raises:
        ValueError: If it is not one.
    """
    if rule is not None and rule not in STEM_RULES:
        raise ValueError(f"fill_stem={rule!r}: choose one of {', '.join(map(repr, STEM_RULES))}")


def stem_key(trunk: Mapping[str, Tensor]) -> str:
    """The published name of the first convolution's weight, (C, bands, h, w), or of the linear projection's."""
    linear = "patch_embed.proj.weight"
    return linear if linear in trunk and trunk[linear].dim() == 4 else "patch_embed.proj.0.0.weight"


def stem_for_bands(rgb: Tensor, bands: int, rule: str) -> Tensor:
    """Filters of the first layer for images of `bands` bands from those for red, green and blue.

    Args:
        rgb: (C, 3, h, w).
        bands: Of the image, other than 3.
        rule: 'mean': every band gets the mean of the three filters. 'rgb-mean': bands 1 to 3 are red, green and blue
            and keep their filters, the others get the mean. Both scale by 3 / `bands`, so that an image whose bands
            are all one grey gives what the grey gave. 'rgb-zero': bands 1 to 3 keep their filters as they are,
            those of the others begin at zero, so that the first output is the one of bands 1 to 3 alone.

    Returns:
        (C, bands, h, w), of the type of `rgb`.

    Raises:
        ValueError: If the rule does not go with so few bands.
    """
    if rule != "mean" and bands <= RGB:
        raise ValueError(f"fill_stem={rule!r} needs in_channels above 3, the model has {bands}: take 'mean'")
    return STEM_RULES[rule](rgb.double(), bands).to(rgb.dtype)
