"""The bands of a raster that a model gets, and the scale that turns values of any range into
bytes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

_COLORS = ("red", "green", "blue")
_MAX_LISTED = 8  # bands in an error message


def check_bands(bands: Sequence[int] | None) -> None:
    """Raise ValueError if the bands of a loading step are not a list of numbers from 1 on."""
    if bands is None:
        return
    is_list = isinstance(bands, list | tuple) and len(bands) > 0
    if not is_list or not all(type(band) is int and band > 0 for band in bands):
        raise ValueError(
            f"{bands=}: give a list of band numbers, counted from 1, such as [3, 2, 1]"
        )


def select_bands(
    file: Any, bands: Sequence[int] | None, channels: int, raw: bool
) -> tuple[int, ...]:
    """Return the numbers of the bands for a model of `channels` channels; see `Raster`.

    Raises:
        ValueError: If the bands do not match the model, hold complex numbers or number the colors
            of a palette.
    """
    names = [color.name for color in file.colorinterp]
    selected = tuple(bands or _default_bands(names, channels, raw))
    for band in selected:
        if not 1 <= band <= file.count:
            raise ValueError(f"{file.name} has no band {band}, but {file.count} bands, from 1 on")
    is_color = channels == 3 and not raw
    is_gray = is_color and len(selected) == 1
    if len(selected) != channels and not is_gray:
        option = f"--bands {_join(bands)}: " if bands else ""
        available = f"{file.count} bands ({_describe_bands(file, names)})"
        meaning = "its red, green and blue, or one for all," if is_color else "as many"
        fix = f"give {meaning} as --bands {_join(range(1, channels + 1))}"
        raise ValueError(
            f"{option}{file.name} has {available}, but the model takes {channels}: {fix}"
        )
    if any(file.dtypes[band - 1].startswith("complex") for band in selected):
        raise ValueError(f"{file.name} holds complex numbers: give a file of their magnitudes")
    if not raw and names[selected[0] - 1] == "palette":
        command = f"gdal_translate -expand rgb {file.name} OUT.tif"
        raise ValueError(f"{file.name} has a palette: convert it by `{command}`")
    return selected


def _default_bands(names: Sequence[str], channels: int, raw: bool) -> list[int]:
    """Return all bands but alpha, in the order of their colors. Raw bands are all, as stored."""
    if raw:
        return list(range(1, len(names) + 1))
    opaque = [name for name in names if name != "alpha"]
    if channels == 3 and sorted(opaque) == sorted(_COLORS):
        return [names.index(color) + 1 for color in _COLORS]
    return [number for number, name in enumerate(names, 1) if name != "alpha"]


def _describe_bands(file: Any, names: Sequence[str]) -> str:
    """Return the first bands with their names, and the first file in a container."""
    described = [f"{number} {name}" for number, name in enumerate(names, 1)]
    if len(described) > _MAX_LISTED:
        described[_MAX_LISTED:] = ["..."]
    return ", ".join([*described, *file.subdatasets[:1]])


def _join(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def parse_bounds(bounds: Sequence[float], bands: int) -> np.ndarray:
    """Return the values of each band that become 0 and 255, (bands, 2), from one pair for all or
    one for each.

    Raises:
        ValueError: If the number of values is wrong, or a pair is not finite or not in ascending
            order.
    """
    pairs = np.array(bounds, np.float64).ravel()
    if len(pairs) not in (2, 2 * bands):
        pair = f"one pair, LOW HIGH, or one for each of the {bands} bands, LOW HIGH LOW HIGH ..."
        raise ValueError(f"--bounds {_join(bounds)}: give {pair}")
    pairs = np.broadcast_to(pairs.reshape(-1, 2), (bands, 2))
    if not (np.isfinite(pairs).all() and (pairs[:, 0] < pairs[:, 1]).all()):
        raise ValueError(
            f"--bounds {_join(bounds)}: the lower value must come first, and both must be finite"
        )
    return pairs


def estimate_bounds(
    pixels: np.ndarray, valid: np.ndarray, percentiles: Sequence[float], path: str
) -> np.ndarray:
    """Compute percentiles, (n, 2), of the valid pixels of each band.

    Args:
        pixels, valid: Values and their validity, (n, h, w).
        path: Path of the raster, for messages.

    Raises:
        ValueError: If a band has no valid pixel.
    """
    bounds = []
    for number, (band, is_valid) in enumerate(zip(pixels, valid, strict=True), 1):
        sample = band[is_valid].astype(np.float64)
        if not len(sample):
            raise ValueError(
                f"{path}: a sample of its band {number} has no valid pixel, give --bounds LOW HIGH"
            )
        low, high = np.percentile(sample, percentiles)
        if low == high:  # most values are equal
            low = sample.min()
            high = sample.max()
        if low == high:
            high = low + max(1.0, np.spacing(abs(low)))
        bounds.append((low, high))
    return np.array(bounds)


def to_bytes(pixels: np.ndarray, valid: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Scale pixels (n, h, w) to uint8 by the bounds (n, 2) of their bands.

    Values up to the lower bound become 0, those from the upper bound on 255, and pixels that are
    not valid 0.
    """
    low, high = bounds.T[..., None, None]
    floats = np.where(valid, pixels, low)  # float64, as the bounds are
    return np.rint((floats - low) / (high - low) * 255).clip(0, 255).astype(np.uint8)
