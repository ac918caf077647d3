"""The bands of a raster that a model gets, and the scale that makes them bytes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

_COLORS = ("red", "green", "blue")
_MAX_LISTED = 8  # bands in an error message


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
        described = [f"{number} {name}" for number, name in enumerate(names, 1)]
        if len(described) > _MAX_LISTED:
            described[_MAX_LISTED:] = ["..."]
        # Of a container, the first file shows how to name one.
        available = f"{file.count} bands ({', '.join([*described, *file.subdatasets[:1]])})"
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
    opaque = [number for number, name in enumerate(names, 1) if raw or name != "alpha"]
    if not raw and channels == 3 and sorted(names[n - 1] for n in opaque) == sorted(_COLORS):
        return [names.index(color) + 1 for color in _COLORS]
    return opaque


def _join(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def parse_bounds(bounds: Sequence[float], bands: int) -> np.ndarray:
    """Return the values of each band that become 0 and 255, (bands, 2), from one pair for all or
    one for each.

    Raises:
        ValueError: If they are not such pairs of finite values in ascending order.
    """
    pairs = np.array(bounds, np.float64).ravel()
    if len(pairs) not in (2, 2 * bands):
        fix = f"give one pair, LOW HIGH, or one for each of the {bands} bands, LOW HIGH LOW HIGH"
        raise ValueError(f"--bounds {_join(bounds)}: {fix}")
    pairs = np.broadcast_to(pairs.reshape(-1, 2), (bands, 2))
    if not (np.isfinite(pairs).all() and (pairs[:, 0] < pairs[:, 1]).all()):
        fix = "the lower value must come first, and both must be finite"
        raise ValueError(f"--bounds {_join(bounds)}: {fix}")
    return pairs


def check_percentiles(percentiles: Sequence[float], bounds: Sequence[float] | None) -> None:
    """Raise ValueError if percentiles are not a scale, or not the only one."""
    low, high = percentiles
    if not 0 <= low < high <= 100:
        fix = "give two from 0 to 100, the lower one first"
        raise ValueError(f"--percentiles {low} {high}: {fix}")
    if bounds is not None:
        raise ValueError(f"--percentiles {low} {high}: leave them out, or leave out --bounds")


def estimate_bounds(
    pixels: np.ndarray, valid: np.ndarray, percentiles: Sequence[float], path: str
) -> np.ndarray:
    """Compute percentiles, (n, 2), of the valid pixels of each band, (n, h, w).

    Raises:
        ValueError: If a band of the raster `path` has no valid pixel.
    """
    bounds = []
    for number, (band, is_valid) in enumerate(zip(pixels, valid, strict=True), 1):
        sample = band[is_valid].astype(np.float64)
        if not len(sample):
            problem = f"a sample of its band {number} has no valid pixel"
            raise ValueError(f"{path}: {problem}, give --bounds LOW HIGH")
        low, high = np.percentile(sample, percentiles)
        if low == high:  # most values are equal
            low = sample.min()
            high = sample.max()
        if low == high:
            high = low + max(1.0, np.spacing(abs(low)))
        bounds.append((low, high))
    return np.array(bounds)


def to_bytes(pixels: np.ndarray, valid: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Scale pixels (n, h, w) to uint8 by the bounds (n, 2) of their bands. Invalid pixels are 0."""
    low, high = bounds.T[..., None, None]
    floats = np.where(valid, pixels, low)  # float64, as the bounds are
    return np.rint((floats - low) / (high - low) * 255).clip(0, 255).astype(np.uint8)
