"""Scale pixels of any range to bytes, between given bounds or bounds estimated from a sample."""

from collections.abc import Iterable, Sequence

import numpy as np

Bounds = list[tuple[float, float]]
"""Values of each band that become 0 and 255."""

Scale = Sequence[float] | Sequence[Sequence[float]]
"""Bounds from a user or a JSON file: one pair for all bands, or one for each, also as a flat sequence."""

PERCENTILES = (2.0, 98.0)


def parse_bounds(scale: Scale, bands: int) -> Bounds:
    """Return one pair of bounds for each band."""
    try:
        pairs = np.array(scale, np.float64)
    except (TypeError, ValueError):
        pairs = np.empty(0)
    if pairs.ndim == 1 and len(pairs) in (2, 2 * bands):
        pairs = np.broadcast_to(pairs.reshape(-1, 2), (bands, 2))
    if pairs.shape != (bands, 2):
        raise ValueError(
            f"--bounds {scale}: give one pair, LOW HIGH, or one for each of the {bands} bands, LOW HIGH LOW HIGH ..."
        )
    with np.errstate(invalid="ignore", over="ignore"):
        width = pairs[:, 1] - pairs[:, 0]
    if not (np.isfinite(width) & (width > 0)).all():
        raise ValueError(f"--bounds {scale}: the lower value must come first, and both must be finite")
    return [(low, high) for low, high in pairs.tolist()]


def estimate_bounds(
    samples: Iterable[tuple[np.ndarray, np.ndarray]], percentiles: Sequence[float] = PERCENTILES
) -> Bounds:
    """Compute percentiles of each band over samples, pairs of values (n, h, w) and their validity (n, h, w), bool."""
    valid = [[band[mask] for band, mask in zip(*sample, strict=True)] for sample in samples]
    bounds = []
    for number, parts in enumerate(zip(*valid, strict=True)):
        values = np.concatenate(parts).astype(np.float64)
        if not len(values):
            raise ValueError(
                f"a sample of its band {number + 1} has no valid pixel to scale by: give --bounds LOW HIGH"
            )
        low, high = np.percentile(values, percentiles).tolist()
        if low == high:  # most values are equal
            low, high = values.min().item(), values.max().item()
        bounds.append((low, high if low < high else low + max(1.0, np.spacing(abs(low)).item())))
    return bounds


def to_bytes(values: np.ndarray, valid: np.ndarray, bounds: Bounds) -> np.ndarray:
    """Scale values (n, h, w) to uint8: the lower bound and below to 0, the upper and above to 255, invalid to 0."""
    scaled = np.zeros(values.shape, np.uint8)
    for target, band, mask, (low, high) in zip(scaled, values, valid, bounds, strict=True):
        # The file's own type may not hold the bounds, or overflow in a difference.
        where = ... if mask.all() else mask
        fractions = band[where].astype(np.float64)
        fractions.clip(min(low, high), max(low, high), out=fractions)  # a negative scale swaps them
        fractions -= low
        fractions /= high - low
        fractions *= 255
        np.rint(fractions, out=fractions)
        target[where] = fractions
    return scaled


def spread_patches(length: int, count: int = 16) -> list[slice]:
    """Spread up to `count` patches of up to 128 pixels evenly over an axis."""
    size = min(128, length)
    count = min(count, -(-length // size))
    starts = [number * (length - size) // max(count - 1, 1) for number in range(count)]
    return [slice(start, start + size) for start in starts]
