"""Areas of interest: polygons of a GeoJSON, in any coordinate system, as pixels of a raster."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .gdal import gdal

_POLYGONS = ("Polygon", "MultiPolygon")


def read_area(path: str) -> str:
    """Read the polygons of a GeoJSON and its coordinate system as a text, which a manifest can hold.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is not a GeoJSON with polygons.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"--aoi {path} does not exist")
    try:
        content = json.loads(Path(path).read_bytes())
        features = content["features"] if content["type"] == "FeatureCollection" else [content]
        geometries = [feature["geometry"] if feature["type"] == "Feature" else feature for feature in features]
        crs = content["crs"]["properties"]["name"] if content.get("crs") else "OGC:CRS84"
        polygons = [geometry for geometry in geometries if geometry and geometry["type"] in _POLYGONS]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--aoi {path} is not a GeoJSON: {error!r}") from None
    if not polygons:
        raise ValueError(f"--aoi {path} has no polygons: give a GeoJSON with them")
    return json.dumps(dict(crs=crs, polygons=polygons))


def area_in_pixels(area: str, path: str, crs: Any, transform: Any) -> list[dict[str, Any]]:
    """Convert an area to polygons in the pixels of a raster.

    Raises:
        ValueError: If the raster has no coordinate system.
    """
    from rasterio.warp import transform_geom

    if crs is None or transform.is_identity:
        raise ValueError(f"{path} has no coordinate system to place the --aoi in: leave it out")
    content = json.loads(area)
    with gdal("--aoi"):
        polygons = transform_geom(content["crs"], crs, content["polygons"])
    return [polygon | dict(coordinates=_map_points(polygon["coordinates"], ~transform)) for polygon in polygons]


def _map_points(coordinates: Any, transform: Any) -> Any:
    if isinstance(coordinates[0], float | int):
        a, b, c, d, e, f = transform[:6]
        x, y = coordinates[:2]
        return a * x + b * y + c, d * x + e * y + f
    return [_map_points(part, transform) for part in coordinates]


def pixels_within(polygons: list[dict[str, Any]], rows: slice, columns: slice) -> np.ndarray:
    """Return which pixels of a window have their centre in polygons of pixels, (h, w), bool."""
    from rasterio.features import geometry_mask
    from rasterio.transform import Affine

    shape = rows.stop - rows.start, columns.stop - columns.start
    return geometry_mask(polygons, shape, Affine.translation(columns.start, rows.start), invert=True)


def points_within(polygons: list[dict[str, Any]], points: np.ndarray) -> np.ndarray:
    """Return which points (n, 2), x and y, lie in polygons, (n,), bool."""
    x, y = points.T
    inside = np.zeros(len(points), bool)
    for polygon in polygons:
        coordinates = polygon["coordinates"]
        for rings in coordinates if polygon["type"] == "MultiPolygon" else [coordinates]:
            is_odd = np.zeros(len(points), bool)  # number of edges to the right of the point
            for ring in rings:
                for (x1, y1), (x2, y2) in pairwise(ring):
                    crosses = (y1 > y) != (y2 > y)
                    is_odd ^= crosses & (x < x1 + (x2 - x1) * (y - y1) / ((y2 - y1) or 1))
            inside |= is_odd
    return inside
