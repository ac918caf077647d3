"""Which bands of a raster are what to a model: by their numbers, or where the file leaves no choice."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .files import tiff_header

__all__ = ["Layers", "chosen_layers"]

_COLOURS = ["red", "green", "blue"]
_MOST_NAMED = 8


class Layers(NamedTuple):
    """What a raster's pixels are to a model.

    Attributes:
        bands: Numbers, from 1 on, in the order red, green, blue, or as given.
        channels: Of the model: as many as bands, or 3 of a single one.
        bits: Of a pixel, if these are at most 8 and count from 0 on; None of any other type.
        palette: Colours (k, 4), RGBA, of a single band that numbers them; None of others.
        blended_with: Number of the alpha channel by which OpenCV multiplies colours; None where it does not.
        raw: Whether the model takes the values as they are, in the order of `bands`.
    """

    bands: tuple[int, ...]
    channels: int
    bits: int | None
    palette: np.ndarray | None
    blended_with: int | None
    raw: bool


def chosen_layers(file: Any, given: Sequence[int] | None, channels: int, raw: bool) -> Layers:
    """The bands of an open file that a model of so many channels takes, by their numbers or else as they are.

    Raw ones are what `LoadRasterFromFile` loads: all in their order, an alpha channel and the numbers of colours too.

    Raises:
        ValueError: If the file has none, or no such ones; if there is a choice; if they hold complex numbers.
    """
    if not file.count:
        parts = f", but {len(file.subdatasets)} others in it, such as {file.subdatasets[0]}" if file.subdatasets else ""
        raise ValueError(f"{file.name} has no bands{parts}: give a file with them")
    names = [one.name for one in file.colorinterp]
    bands = _default(file, names, channels, raw) if given is None else _checked(file, given, channels, raw)
    types = {file.dtypes[band - 1] for band in bands}
    if any(one.startswith("complex") for one in types):
        raise ValueError(f"{file.name} holds complex numbers: give a file of their magnitudes")
    if raw:
        return Layers(bands, channels, None, None, None, raw)
    palette = _palette(file) if file.count == 1 else None
    if palette is not None and channels != 3:
        raise ValueError(f"{file.name} has a palette of 3 colours, but the model takes {channels} bands")
    return Layers(bands, channels, _bits(file, bands, types), palette, _blended_with(file, names, given), raw)


def _checked(file: Any, given: Sequence[int], channels: int, raw: bool) -> tuple[int, ...]:
    if wrong := [band for band in given if not 1 <= band <= file.count]:
        raise ValueError(f"{file.name} has no band {wrong[0]}, but {file.count} bands, from 1 on")
    coloured = channels == 3 and not raw
    if len(given) != channels and not (len(given) == 1 and coloured):
        alone = ", or one for all of them" if coloured else ""
        raise ValueError(f"--bands {_spaced(given)}: the model takes {channels} bands, give as many{alone}")
    return tuple(given)


def _default(file: Any, names: list[str], channels: int, raw: bool) -> tuple[int, ...]:
    bands = [number for number, name in enumerate(names, 1) if raw or name != "alpha"]
    if len(bands) == 1 and channels == 3 and not raw:
        return tuple(bands)
    coloured = channels == 3 and not raw and all(names.count(name) == 1 for name in _COLOURS)
    in_order = [names.index(name) + 1 for name in _COLOURS] if coloured else bands[:channels]
    if len(bands) == channels:
        return tuple(in_order)
    told = ", ".join(f"{number} {name}" for number, name in enumerate(names[:_MOST_NAMED], 1))
    told += ", ..." if file.count > _MOST_NAMED else ""
    if file.count < channels:
        raise ValueError(f"{file.name} has {file.count} bands ({told}), but the model takes {channels}")
    example = f"--bands {_spaced(in_order)}" if len(in_order) == channels else "--bands"
    meaning = ", its red, green and blue" if channels == 3 and not raw else ""
    raise ValueError(
        f"{file.name} has {file.count} bands ({told}), but the model takes {channels}: name them{meaning}, as {example}"
    )


def _spaced(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


def _bits(file: Any, bands: tuple[int, ...], types: set[str]) -> int | None:
    if types != {"uint8"}:
        return None
    return max(int(file.tags(band, ns="IMAGE_STRUCTURE").get("NBITS", 8)) for band in bands)


def _palette(file: Any) -> np.ndarray | None:
    try:
        colours = file.colormap(1)
    except ValueError:
        return None
    table = np.zeros((max(colours) + 1, 4), np.uint8)
    table[list(colours)] = list(colours.values())
    return table


def _blended_with(file: Any, names: list[str], given: Sequence[int] | None) -> int | None:
    if given is not None or file.driver != "GTiff" or names != [*_COLOURS, "alpha"]:
        return None
    header = tiff_header(file.name)  # GDAL does not tell
    return 4 if header is not None and header.straight_alpha else None
