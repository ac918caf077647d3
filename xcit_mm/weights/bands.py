"""The stem of a model for other bands than red, green and blue, made from the published stem."""

from collections.abc import Mapping

import torch
from torch import Tensor

RGB = 3
LINEAR_STEM = "patch_embed.proj.weight"
STEM_RULES = ("mean", "rgb-mean", "rgb-zero")


def check_stem_rule(rule: str | None) -> None:
    """Raise ValueError unless a rule is None or one of `stem_for_bands`."""
    if rule is not None and rule not in STEM_RULES:
        raise ValueError(f"fill_stem={rule!r}: choose one of {', '.join(map(repr, STEM_RULES))}")


def stem_key(trunk: Mapping[str, Tensor]) -> str:
    """Return the published name of the stem's first weight (C, bands, h, w), linear or not."""
    return LINEAR_STEM if LINEAR_STEM in trunk else "patch_embed.proj.0.0.weight"


def with_stem_for_bands(
    trunk: dict[str, Tensor], bands: int, rule: str | None
) -> dict[str, Tensor]:
    """Return the trunk with a stem for `bands`, which the rule makes from a stem for RGB."""
    key = stem_key(trunk)
    bands_in_file = trunk[key].shape[1]
    if bands_in_file == bands:
        return trunk
    if rule is not None and bands_in_file == RGB:
        return {**trunk, key: stem_for_bands(trunk[key], bands, rule)}
    problem = f"its stem is for {bands_in_file} bands, the model has in_channels={bands}"
    if bands_in_file == RGB:
        fix = "fill_stem='rgb-mean' (or 'rgb-zero', 'mean') in init_cfg or StrictLoadHook"
        problem += f"; to fine-tune: {fix}"
    raise ValueError(problem)


def stem_for_bands(rgb: Tensor, bands: int, rule: str) -> Tensor:
    """Make filters of the first layer for other bands from those for red, green and blue.

    Args:
        rgb: Filters (C, 3, h, w).
        bands: Number of bands of the image, other than 3.
        rule: 'mean': every band gets the mean of the three filters. 'rgb-mean': bands 1 to 3 are
            red, green and blue and keep their filters, the other bands get the mean. Both scale by
            3 / `bands`, so that an image whose bands are equal gives the output of a grey image.
            'rgb-zero': bands 1 to 3 keep their filters unscaled, the other filters are zero.

    Returns:
        Filters (C, bands, h, w) of the type of `rgb`.

    Raises:
        ValueError: If the rule needs more bands.
    """
    if rule != "mean" and bands <= RGB:
        raise ValueError(
            f"fill_stem={rule!r} needs in_channels above 3, the model has {bands}: take 'mean'"
        )
    filters = rgb.double()
    grey = filters.mean(dim=1, keepdim=True)
    if rule == "mean":
        stem = grey.expand(-1, bands, -1, -1) * RGB / bands
    else:
        stem = torch.cat((filters, grey.expand(-1, bands - RGB, -1, -1)), dim=1)
        if rule == "rgb-mean":
            stem = stem * RGB / bands
        else:
            stem[:, RGB:] = 0
    return stem.to(rgb.dtype)
