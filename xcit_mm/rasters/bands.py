"""The bands of a raster that a model gets, and the scale that turns values of any range into
bytes.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

_COLORS = ["red", "green", "blue"]
_SORTED = sorted(_COLORS)


def select_bands(
    file: Any, bands: Sequence[int] | None, channels: int, raw: bool
) -> tuple[int, ...]:
    """Return the numbers of the bands for a model of `channels` channels; see `Raster`.

    Raises:
        ValueError: If the bands do not match the model, hold complex numbers or number the colors
            of a palette.
    """
    names = [color.name for color in file.colorinterp]
    is_color = channels == 3 and not raw
    selected = bands or [number for number, name in enumerate(names, 1) if raw or name != "alpha"]
    if bands is None and is_color and sorted(names[band - 1] for band in selected) == _SORTED:
        selected = [names.index(color) + 1 for color in _COLORS]
    for band in selected:
        if not 1 <= band <= file.count:
            raise ValueError(f"{file.name} has no band {band}, but {file.count} bands, from 1 on")
    if len(selected) != channels and not (len(selected) == 1 and is_color):
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
    return tuple(selected)


def _describe_bands(file: Any, names: Sequence[str]) -> str:
    """Return the first bands with their names, and the first file in a container."""
    described = [f"{number} {name}" for number, name in enumerate(names[:8], 1)]
    return ", ".join([*described, *(["..."] if len(names) > 8 else []), *file.subdatasets[:1]])


def _join(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def parse_bounds(values: Sequence[float], bands: int) -> np.ndarray:
    """Return the values of each band that become 0 and 255, (bands, 2), from one pair for all or
    one for each.

    Raises:
        ValueError: If the number of values is wrong, or a pair is not finite or not in ascending
            order.
    """
    pairs = np.array(values, np.float64).ravel()
    if len(pairs) not in (2, 2 * bands):
        pair = f"one pair, LOW HIGH, or one for each of the {bands} bands, LOW HIGH LOW HIGH ..."
        raise ValueError(f"--bounds {_join(values)}: give {pair}")
    pairs = np.broadcast_to(pairs.reshape(-1, 2), (bands, 2))
    if not (np.isfinite(pairs).all() and (pairs[:, 0] < pairs[:, 1]).all()):
        raise ValueError(
            f"--bounds {_join(values)}: the lower value must come first, and both must be finite"
        )
    return pairs


def estimate_bounds(
    samples: Iterable[tuple[np.ndarray, np.ndarray]], percentiles: Sequence[float], path: str
) -> np.ndarray:
    """Compute percentiles of each band, (n, 2), over pairs of values (n, h, w) and their validity
    (n, h, w), bool.
    """
    valid = [[band[mask] for band, mask in zip(*sample, strict=True)] for sample in samples]
    bounds = []
    for number, parts in enumerate(zip(*valid, strict=True), 1):
        values = np.concatenate(parts).astype(np.float64)
        if not len(values):
            raise ValueError(
                f"{path}: a sample of its band {number} has no valid pixel, give --bounds LOW HIGH"
            )
        low, high = np.percentile(values, percentiles)
        if low == high:  # most values are equal
            low = values.min()
            high = values.max()
        bounds.append((low, high if low < high else low + max(1.0, np.spacing(abs(low)))))
    return np.array(bounds)


def to_bytes(values: np.ndarray, valid: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Scale values (n, h, w) to uint8: the lower bound and below to 0, the upper and above to 255,
    invalid to 0.
    """
    low, high = bounds.T[..., None, None]
    # The file's own type may overflow in a difference.
    scaled = np.where(valid, values, low).astype(np.float64)
    return np.rint((scaled - low) / (high - low) * 255).clip(0, 255).astype(np.uint8)
