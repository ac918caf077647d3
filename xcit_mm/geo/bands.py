"""Select the bands of a raster that a model gets, by their numbers or from the file's color names."""

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from .scaling import spread_patches

_COLORS = ["red", "green", "blue"]


class BandSelection(NamedTuple):
    """The bands that a model gets, and how their values become its input. Raw values have no other fields.

    Attributes:
        bands: Band numbers, from 1, in the order red, green, blue, or as given.
        bits: Bits per pixel, if the pixels are unsigned integers of at most 8 bits.
        palette: Colors (k, 4), RGBA, of a single band that numbers them.
        alpha: Number of the alpha band, if it is the mask of the other bands.
        blackens: Whether to set masked pixels to 0, as OpenCV does for a TIFF with alpha.
    """

    bands: tuple[int, ...]
    bits: int | None = None
    palette: np.ndarray | None = None
    alpha: int | None = None
    blackens: bool = False


def select_bands(file: Any, given: Sequence[int] | None, channels: int, raw: bool) -> BandSelection:
    """Select the bands of an open file for a model of `channels` channels; see `Raster`."""
    if not file.count:
        nested = file.subdatasets
        hint = f", but {len(nested)} others in it, such as {nested[0]}" if nested else ""
        raise ValueError(f"{file.name} has no bands{hint}: give a file with them")
    names = [color.name for color in file.colorinterp]
    is_color = channels == 3 and not raw
    bands = _default(file, names, channels, raw) if given is None else _check_given(file, given, channels, is_color)
    types = {file.dtypes[band - 1] for band in bands}
    if any(name.startswith("complex") for name in types):
        raise ValueError(f"{file.name} holds complex numbers: give a file of their magnitudes")
    alpha = names.index("alpha") + 1 if "alpha" in names else None
    if alpha in bands or (alpha is not None and not raw and _holds_data(file, alpha)):
        alpha = None
    if raw:
        return BandSelection(bands, alpha=alpha)
    palette = _palette(file) if file.count == 1 else None
    if palette is not None and channels != 3:
        raise ValueError(f"{file.name} has a palette of 3 colors, but the model takes {channels} bands")
    bits = [int(file.tags(band, ns="IMAGE_STRUCTURE").get("NBITS", 8)) for band in bands]
    blackens = file.driver == "GTiff" and alpha is not None and names[:3] == _COLORS
    return BandSelection(bands, max(bits) if types == {"uint8"} else None, palette, alpha, blackens)


def _check_given(file: Any, given: Sequence[int], channels: int, is_color: bool) -> tuple[int, ...]:
    if wrong := [band for band in given if not 1 <= band <= file.count]:
        raise ValueError(f"{file.name} has no band {wrong[0]}, but {file.count} bands, from 1 on")
    if len(given) != channels and not (len(given) == 1 and is_color):
        single = ", or one for all of them" if is_color else ""
        raise ValueError(f"--bands {_join(given)}: the model takes {channels} bands, give as many{single}")
    return tuple(given)


def _default(file: Any, names: list[str], channels: int, raw: bool) -> tuple[int, ...]:
    bands = [number for number, name in enumerate(names, 1) if raw or name != "alpha"]
    is_color = channels == 3 and not raw
    if len(bands) == 1 and is_color:
        return tuple(bands)
    has_colors = is_color and all(names.count(name) == 1 for name in _COLORS)
    in_order = [names.index(name) + 1 for name in _COLORS] if has_colors else bands[:channels]
    if len(bands) == channels:
        return tuple(in_order)
    listed = ", ".join(f"{number} {name}" for number, name in enumerate(names[:8], 1))
    listed += ", ..." if file.count > 8 else ""
    problem = f"{file.name} has {file.count} bands ({listed}), but the model takes {channels}"
    if file.count < channels:
        raise ValueError(problem)
    meaning = ", its red, green and blue" if is_color else ""
    example = f" {_join(in_order)}" if len(in_order) == channels else ""
    raise ValueError(f"{problem}: name them{meaning}, as --bands{example}")


def _join(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


def _palette(file: Any) -> np.ndarray | None:
    try:
        colors = file.colormap(1)
    except ValueError:
        return None
    table = np.zeros((max(colors) + 1, 4), np.uint8)
    table[list(colors)] = list(colors.values())
    return table


def _holds_data(file: Any, alpha: int) -> bool:
    """Return whether the values of an alpha band vary as those of an image.

    Writers mark the fourth of four bands as alpha, whatever its meaning. A mask has two values, and few between them
    where its edges were resampled.
    """
    patches = (
        file.read(alpha, window=((rows.start, rows.stop), (columns.start, columns.stop)))
        for rows, columns in product(spread_patches(file.height, 4), spread_patches(file.width, 4))
    )
    values = np.concatenate([patch[patch > 0] for patch in patches])
    return bool(values.size) and bool((values < values.max()).mean() > 0.25)
