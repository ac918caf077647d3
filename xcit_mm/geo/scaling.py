"""Pixels of any range as bytes: between bounds that are given, or estimated from a sample of the scene."""

from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["PERCENTILES", "Bounds", "Scale", "check_percentiles", "checked_bounds", "estimated_bounds", "to_bytes"]

Bounds = list[tuple[float, float]]
"""What becomes 0 and what 255, of each band."""

Scale = Sequence[float] | Sequence[Sequence[float]]
"""Bounds as a user or a JSON file gives them: a pair for all bands, or one for each."""

PERCENTILES = (2.0, 98.0)


def checked_bounds(scale: Scale, bands: int) -> Bounds:
    """A scale as one pair of bounds a band.

    Raises:
        ValueError: If these are not finite pairs, the lower value first, one or as many as bands.
    """
    try:
        pairs = np.array(scale, np.float64)
    except (TypeError, ValueError):
        pairs = np.empty(0)
    if pairs.shape == (2,):
        pairs = np.tile(pairs, (bands, 1))
    if pairs.shape != (bands, 2):
        raise ValueError(f"--bounds {scale}: give one pair, LOW HIGH, or one for each of the {bands} bands")
    with np.errstate(invalid="ignore", over="ignore"):
        wide = pairs[:, 1] - pairs[:, 0]
    if not (np.isfinite(wide) & (wide > 0)).all():
        raise ValueError(f"--bounds {scale}: the lower value has to stand first, and both have to be finite")
    return [(low, high) for low, high in pairs.tolist()]


def check_percentiles(percentiles: Sequence[float]) -> None:
    """Raise ValueError if these are not two, the lower first, from 0 to 100."""
    if len(percentiles) != 2 or not 0 <= percentiles[0] < percentiles[1] <= 100:
        raise ValueError(f"--percentiles {percentiles}: give two from 0 to 100, the lower one first")


def estimated_bounds(
    samples: Iterable[tuple[np.ndarray, np.ndarray]], percentiles: Sequence[float] = PERCENTILES
) -> Bounds:
    """Percentiles of each band over samples of a scene.

    Args:
        samples: Values (n, h, w), and which of them are valid, (n, h, w).
        percentiles: The lower and the upper one.

    Raises:
        ValueError: If a band has no valid value.
    """
    valid = [[band[there] for band, there in zip(*sample, strict=True)] for sample in samples]
    bounds = []
    for number, pieces in enumerate(zip(*valid, strict=True)):
        values = np.concatenate(pieces).astype(np.float64)
        if not len(values):
            raise ValueError(
                f"a sample of its band {number + 1} has no valid pixel to scale by: give --bounds LOW HIGH"
            )
        low, high = np.percentile(values, percentiles).tolist()
        if low == high:  # most of it is of one value
            low, high = values.min().item(), values.max().item()
        bounds.append((low, high if low < high else low + max(1.0, np.spacing(abs(low)).item())))
    return bounds


def to_bytes(values: np.ndarray, valid: np.ndarray, bounds: Bounds) -> np.ndarray:
    """Values (n, h, w) as uint8: 0 at or below a band's lower bound and where not valid, 255 at or above its upper."""
    scaled = np.zeros(values.shape, np.uint8)
    for target, band, there, (low, high) in zip(scaled, values, valid, bounds, strict=True):
        # Not in the file's own type, in which low may not exist, or a difference overflow.
        whole = there.all()
        fractions = (band if whole else band[there]).astype(np.float64)
        fractions.clip(low, high, out=fractions)
        fractions -= low
        fractions /= high - low
        fractions *= 255
        np.rint(fractions, out=fractions)
        if whole:
            target[:] = fractions
        else:
            target[there] = fractions
    return scaled
