"""Polygons of instances along the edges of pixels, in the coordinates of a raster."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..utils.run_lengths import MaskCrop

__all__ = ["box_rings", "geometry", "mask_rings"]

Rings = list[np.ndarray]
"""A polygon: its outline, then its holes, each (k, 2) of x and y, closed."""


def mask_rings(crop: MaskCrop) -> list[Rings]:
    """Return the polygons of a mask in pixels of the image. Holes run in the opposite direction of outlines.

    The polygons follow the edges of pixels, so areas are exact. `cv2.findContours` would connect the centres of border
    pixels, and so lose half a pixel on all sides and the space between a hole and its surroundings. Pixels that only
    touch at a corner belong to separate polygons, since a ring must not cross itself.
    """
    from rasterio.features import shapes

    corner = np.array([crop.left, crop.top], np.float64)
    polygons = shapes(crop.mask.astype(np.uint8), mask=crop.mask, connectivity=4)
    return [[np.array(ring) + corner for ring in polygon["coordinates"]] for polygon, _ in polygons]


def box_rings(box: Sequence[float]) -> list[Rings]:
    """Return a box (left, top, right, bottom) as a polygon, or an empty list for a box without an area."""
    left, top, right, bottom = box
    if not (left < right and top < bottom):
        return []
    return [[np.array([(left, top), (left, bottom), (right, bottom), (right, top), (left, top)], np.float64)]]


def geometry(polygons: list[Rings], transform: Any) -> dict[str, Any] | None:
    """Return polygons in pixels as a GeoJSON geometry in the coordinates of an affine transform, or None if empty.

    Outlines are counterclockwise and holes clockwise, also if the transform mirrors.
    """
    coordinates = [
        [_transform_ring(ring, transform, clockwise=number > 0) for number, ring in enumerate(rings)]
        for rings in polygons
    ]
    if not coordinates:
        return None
    if len(coordinates) == 1:
        return dict(type="Polygon", coordinates=coordinates[0])
    return dict(type="MultiPolygon", coordinates=coordinates)


def _transform_ring(ring: np.ndarray, transform: Any, clockwise: bool) -> list[list[float]]:
    x, y = ring.T
    # The area is exact in pixels. Far from the origin, products of coordinates are not.
    area = (x[:-1] * y[1:] - x[1:] * y[:-1]).sum() * transform.determinant
    a, b, c, d, e, f = transform[:6]
    points = np.stack([a * x + b * y + c, d * x + e * y + f], axis=1)
    return (points if (area < 0) == clockwise else points[::-1]).tolist()
