"""A stem for bands other than red, green and blue, made from the published stem."""

from collections.abc import Mapping

import torch
from torch import Tensor

RGB = 3
LINEAR_STEM = "patch_embed.proj.weight"


def stem_key(trunk: Mapping[str, Tensor]) -> str:
    """Return the published name of the stem's first weight, (C, bands, h, w)."""
    return LINEAR_STEM if LINEAR_STEM in trunk else "patch_embed.proj.0.0.weight"


def with_stem_for_bands(trunk: dict[str, Tensor], bands: int, fill_stem: bool) -> dict[str, Tensor]:
    """Return the trunk with a stem for `bands`.

    Raises:
        ValueError: If the stem is for other bands, unless it is for RGB and `fill_stem` is set.
    """
    key = stem_key(trunk)
    bands_in_file = trunk[key].shape[1]
    if bands_in_file == bands:
        return trunk
    if fill_stem and bands_in_file == RGB:
        return {**trunk, key: stem_for_bands(trunk[key], bands)}
    problem = f"its stem is for {bands_in_file} bands, the model has in_channels={bands}"
    fix = "; to fine-tune: fill_stem=True in init_cfg or StrictLoadHook"
    raise ValueError(problem + (fix if bands_in_file == RGB else ""))


def stem_for_bands(rgb: Tensor, bands: int) -> Tensor:
    """Make the filters (C, bands, h, w) of the first layer from the filters for RGB, (C, 3, h, w).

    Bands 1 to 3 are red, green and blue and keep their filters. The other bands get the mean of the
    three. If there are only one or two bands, each gets the mean. The filters are scaled by
    3 / `bands`, so that an image with equal bands gives the output of a grey image.
    """
    filters = rgb.double()
    grey = filters.mean(dim=1, keepdim=True)
    if bands < RGB:
        stem = grey.expand(-1, bands, -1, -1)
    else:
        stem = torch.cat((filters, grey.expand(-1, bands - RGB, -1, -1)), dim=1)
    return (stem * RGB / bands).to(rgb.dtype)
