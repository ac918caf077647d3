"""Polygons of vector files, placed on a raster."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..prediction.windows import Window
from ..utils.output import say

Span = slice | Window
"""Pixels along one axis."""


def read_polygons(path: str | Path, crs: Any, layer: str | None = None) -> Any:
    """Read the polygons of a vector file as a GeoDataFrame in a coordinate system.

    Shapes that are no polygons, or have no place in this system, are left out, as a line says.

    Args:
        crs: The coordinate system, or None if neither the raster nor the file has one.
        layer: Name of the layer. Default: the only one that has shapes.

    Raises:
        ValueError: If the file has several layers, or no coordinate system.
        RuntimeError: If GDAL cannot read the file.
    """
    import geopandas

    layers = geopandas.list_layers(path)
    names = layers["name"][layers["geometry_type"].notna()].tolist()
    if layer is None and len(names) != 1:
        shown = ", ".join(names) or "no shapes"
        raise ValueError(f"{path} has the layers {shown}: give a file of one, or --layer")
    table = geopandas.read_file(path, layer=layer or names[0])
    if (table.crs is None) != (crs is None):
        lacking = path if table.crs is None else "the raster"
        raise ValueError(f"{lacking} has no coordinate system: assign it in a GIS")
    if crs is not None:
        table = table.to_crs(crs)
    placed = table[np.isfinite(table.bounds).all(axis=1)]
    placed = placed.set_geometry(repair(placed.geometry), crs=crs)
    polygons = placed[placed.geom_type.isin(["Polygon", "MultiPolygon"])]
    if len(polygons) < len(table):
        count = f"{len(table) - len(polygons)} of {len(table)} shapes"
        say(f"{path}: {count} are left out: no polygons, or not on the raster's map")
    return polygons


def repair(shapes: Any) -> np.ndarray:
    """Return shapes as plane polygons that do not cross themselves."""
    plane = shapely.force_2d(np.array(shapes, object))
    return shapely.make_valid(plane, method="structure", keep_collapsed=False)


def in_pixels(shapes: Any, raster: Any) -> np.ndarray:
    """Convert a GeoSeries in the coordinate system of a raster to its pixels."""
    return np.array(shapes.affine_transform((~raster.transform).to_shapely()), object)


def to_map(shapes: Any, raster: Any) -> Any:
    """Convert shapes in pixels of a raster to a GeoSeries in its coordinate system."""
    import geopandas

    return geopandas.GeoSeries(shapes, crs=raster.crs).affine_transform(
        raster.transform.to_shapely()
    )


def area_in_pixels(path: str | Path | None, raster: Any) -> Any:
    """Return the union of the polygons of `--aoi` within a raster, or an open file of rasterio, in
    pixels, or all of the raster.

    Raises:
        ValueError: If the area covers no pixel.
    """
    whole = shapely.box(0, 0, raster.width, raster.height)
    if path is None:
        return whole
    polygons = read_polygons(path, raster.crs)
    area = shapely.union_all(in_pixels(polygons.geometry, raster)).intersection(whole)
    if area.area < 1:
        fix = "compare both in a GIS, and cut what is much larger than the raster"
        raise ValueError(f"{path} covers no pixel of the raster: {fix}")
    return area


def box_of(rows: Span, columns: Span) -> Any:
    """Return a window as a polygon in pixels."""
    return shapely.box(columns.start, rows.start, columns.stop, rows.stop)


def burn(shapes: Iterable[tuple[Any, int]], rows: Span, columns: Span) -> np.ndarray:
    """Return the number of the last shape in pixels that covers the centre of each pixel of a
    window, (h, w), int32, 0 without a shape.
    """
    from rasterio.features import rasterize
    from rasterio.transform import Affine

    size = rows.stop - rows.start, columns.stop - columns.start
    shift = Affine.translation(columns.start, rows.start)
    return rasterize(shapes, size, transform=shift, dtype="int32")


def covers(area: Any, rows: Span, columns: Span) -> np.ndarray:
    """Return whether an area in pixels covers the centre of each pixel of a window, (h, w)."""
    return burn([(area, 1)], rows, columns) > 0
