"""Polygons of vector files, in the coordinate system of a raster."""

from pathlib import Path
from typing import Any

import numpy as np
import shapely
from shapely.affinity import affine_transform

from ..utils.cli import print_line
from .raster import Raster


def read_polygons(path: str | Path, option: str) -> Any:
    """Read the polygons of a vector file as a GeoDataFrame, in the file's coordinate system.

    Polygons that cross themselves are repaired. Lines say how many are, and how many points, lines
    and empty shapes are left out.

    Args:
        option: Option that the user gave the file by, for messages.

    Raises:
        ValueError: If the file has no polygons.
        RuntimeError: If GDAL cannot read the file.
    """
    table = _read_first_layer(path, option)
    is_empty = table.geometry.isna() | table.geometry.is_empty
    is_polygon = table.geom_type.isin(["Polygon", "MultiPolygon"])
    polygons = table[is_polygon & ~is_empty].copy()
    if polygons.empty:
        raise ValueError(f"{option} {path} has no polygons: give a file with polygons")
    shapes = shapely.force_2d(np.array(polygons.geometry))
    is_invalid = ~shapely.is_valid(shapes)
    shapes[is_invalid] = shapely.make_valid(
        shapes[is_invalid], method="structure", keep_collapsed=False
    )
    for count, problem in (
        (is_empty.sum(), "empty shapes are left out"),
        ((~is_polygon & ~is_empty).sum(), "points or lines are left out"),
        (is_invalid.sum(), "shapes cross themselves and are repaired"),
    ):
        if count:
            print_line(f"{option} {path}: {count} {problem}")
    return polygons.set_geometry(shapes, crs=polygons.crs)[shapely.area(shapes) > 0]


def _read_first_layer(path: str | Path, option: str) -> Any:
    import geopandas
    import pyogrio

    if Path(path).suffix == ".parquet":
        return geopandas.read_parquet(path)
    first, *others = pyogrio.list_layers(path)[:, 0]
    if others:
        print_line(f"{option} {path}: the layer {first} is read, and not {', '.join(others)}")
    return geopandas.read_file(path, layer=first, engine="pyogrio")


def to_crs(polygons: Any, crs: Any, option: str) -> Any:
    """Convert polygons to the coordinate system of a raster. Without one on both sides, they stay.

    Raises:
        ValueError: If only one side has a coordinate system.
    """
    if (polygons.crs is None) != (crs is None):
        which = "the raster" if crs is None else "the file"
        raise ValueError(f"{option}: {which} has no coordinate system: assign one in a GIS")
    if crs is None:
        return polygons
    converted = polygons.to_crs(crs)
    return converted[np.isfinite(converted.bounds).all(axis=1)]


def describe_extent(bounds: Any, crs: Any) -> str:
    """Return an extent, left, bottom, right and top, as text."""
    left, bottom, right, top = bounds
    place = "" if crs is None else f" in {crs.to_string()}"
    return f"x {left:.10g} to {right:.10g}, y {bottom:.10g} to {top:.10g}{place}"


def read_area(path: str | Path, raster: Raster) -> Any:
    """Return the polygons of a vector file in pixels of a raster.

    Raises:
        ValueError: If they cover less than a pixel. The message has both extents.
    """
    polygons = read_polygons(path, "--aoi")
    shape = to_crs(polygons, raster.crs, f"--aoi {path}").union_all()
    area = affine_transform(shape, (~raster.transform).to_shapely())
    area = area.intersection(shapely.box(0, 0, raster.width, raster.height))
    if area.area < 1:
        polygons_extent = describe_extent(polygons.total_bounds, polygons.crs)
        raster_extent = describe_extent(raster.footprint.bounds, raster.crs)
        problem = f"--aoi {path} ({polygons_extent}) covers no pixel of {raster.path}"
        raise ValueError(f"{problem} ({raster_extent}): give polygons on the raster")
    shapely.prepare(area)
    return area
