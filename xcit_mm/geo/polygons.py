"""Instance masks as polygons along the edges of their pixels, without ever laying out the whole image."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["BoxedMask", "box_rings", "boxed_mask", "geometry", "mask_rings", "run_lengths"]

Rings = list[np.ndarray]
"""Of a polygon: its outline and then its holes, (k, 2) of x and y each, closed."""


class BoxedMask(NamedTuple):
    """A mask within an image.

    Attributes:
        mask: (h, w), bool; no row or column at its edges is empty.
        top: Its first row in the image.
        left: Its first column.
    """

    mask: np.ndarray
    top: int
    left: int


def run_lengths(counts: str | bytes | Sequence[int]) -> np.ndarray:
    """Lengths of COCO's run-length code, of what is outside and inside by turns, int64.

    pycocotools counts pixels in 32 bits, of which an image of 2^32 has too many, so the code is read here.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(counts, (str, bytes)):
        return np.asarray(counts, np.int64)
    code = np.frombuffer(counts.encode("ascii", "replace") if isinstance(counts, str) else counts, np.uint8)
    digits = code.astype(np.int64) - 48
    if not len(digits):
        return np.zeros(0, np.int64)
    # Numbers are of five bits a letter, lowest first; the sixth tells that more follow, the fifth of the last the sign.
    last = (digits & 32) == 0
    if ((digits < 0) | (digits > 63)).any() or not last[-1]:
        raise ValueError(f"not a run-length code: {str(counts)[:40]}")
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    places = np.arange(len(digits)) - np.repeat(starts, ends - starts + 1)
    if places.max() > 11:
        raise ValueError(f"not a run-length code: {str(counts)[:40]}")
    lengths = np.add.reduceat((digits & 31) << (5 * places), starts)
    lengths -= ((digits[ends] & 16) > 0) * (np.int64(1) << (5 * (places[ends] + 1)))
    # From the fourth on they are differences to the last but one.
    for first in (1, 2):
        lengths[first::2] = lengths[first::2].cumsum()
    return lengths


def boxed_mask(lengths: np.ndarray, height: int, width: int) -> BoxedMask | None:
    """A mask from the lengths of its runs, down the columns of an image, in memory of its box; None if it is empty.

    Raises:
        ValueError: If they are not of an image of this size.
    """
    if lengths.sum() != height * width or (lengths < 0).any():
        raise ValueError(f"a run-length code of {lengths.sum()} pixels for an image of {height} x {width}")
    edges = lengths.cumsum()
    starts, stops = edges[0:-1:2], edges[1::2]
    starts, stops = starts[stops > starts], stops[stops > starts]
    if not len(starts):
        return None
    # A run is cut where a column ends.
    first, last = starts // height, (stops - 1) // height
    pieces = last - first + 1
    number = np.arange(pieces.sum()) - np.repeat(pieces.cumsum() - pieces, pieces)
    columns = np.repeat(first, pieces) + number
    tops = np.where(number == 0, np.repeat(starts % height, pieces), 0)
    bottoms = np.where(columns == np.repeat(last, pieces), np.repeat((stops - 1) % height + 1, pieces), height)
    top, left = tops.min(), columns.min()
    changes = np.zeros((columns.max() - left + 1, bottoms.max() - top + 1), np.int8)
    np.add.at(changes, (columns - left, tops - top), 1)
    np.add.at(changes, (columns - left, bottoms - top), -1)
    return BoxedMask(changes.cumsum(axis=1, dtype=np.int8)[:, :-1].T.astype(bool), int(top), int(left))


def mask_rings(boxed: BoxedMask) -> list[Rings]:
    """The polygons of a mask in the image's pixels: outlines and holes, which go the other way round.

    They lie on the edges of pixels, so that areas are exact; cv2.findContours joins the centres of pixels at the
    border, which leaves half a pixel out on all sides and no room between a hole and what is around it. Pixels that
    touch at a corner only are apart, or rings would cross themselves.
    """
    from rasterio.features import shapes

    corner = np.array([boxed.left, boxed.top], np.float64)
    found = shapes(boxed.mask.astype(np.uint8), mask=boxed.mask, connectivity=4)
    return [[np.array(ring) + corner for ring in polygon["coordinates"]] for polygon, _ in found]


def box_rings(box: Sequence[float]) -> list[Rings]:
    """A box (left, top, right, bottom) as a polygon; none of one without an area."""
    left, top, right, bottom = box
    if not (left < right and top < bottom):
        return []
    return [[np.array([(left, top), (left, bottom), (right, bottom), (right, top), (left, top)], np.float64)]]


def geometry(polygons: list[Rings], transform: Any) -> dict[str, Any] | None:
    """Polygons in pixels as GeoJSON in the coordinates of an affine transform; None of none.

    Outlines go counterclockwise there and holes clockwise, also where the transform mirrors.
    """
    placed = [
        [_placed(ring, transform, clockwise=number > 0) for number, ring in enumerate(rings)] for rings in polygons
    ]
    if not placed:
        return None
    if len(placed) == 1:
        return dict(type="Polygon", coordinates=placed[0])
    return dict(type="MultiPolygon", coordinates=placed)


def _placed(ring: np.ndarray, transform: Any, clockwise: bool) -> list[list[float]]:
    x, y = ring.T
    # In pixels, where it is exact; far from the origin the products of coordinates are not.
    area = (x[:-1] * y[1:] - x[1:] * y[:-1]).sum() * transform.determinant
    a, b, c, d, e, f = transform[:6]
    points = np.stack([a * x + b * y + c, d * x + e * y + f], axis=1)
    return (points if (area < 0) == clockwise else points[::-1]).tolist()
