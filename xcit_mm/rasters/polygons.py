"""Polygons of vector files, placed on a raster."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from shapely.affinity import affine_transform

from ..utils.cli import print_line


def read_polygons(path: str | Path, crs: Any, layer: str | None = None) -> Any:
    """Read the polygons of a vector file as a GeoDataFrame in a coordinate system. A line counts
    the shapes that are not polygons, or have no place in this system.

    Args:
        crs: The coordinate system, or None if neither the raster nor the file has one.
        layer: Name of the layer. Default: the only one that has shapes.

    Raises:
        ValueError: If the file has several layers, no polygon, or no coordinate system.
        RuntimeError: If GDAL cannot read the file.
    """
    import geopandas

    layers = geopandas.list_layers(path)
    names = layers["name"][layers["geometry_type"].notna()].tolist()
    if layer is None and len(names) > 1:
        raise ValueError(f"{path} has the layers {', '.join(names)}: give one, as by --layer")
    if layer is None and not names:
        raise ValueError(f"{path} has no polygons: give a file with polygons")
    table = geopandas.read_file(path, layer=layer or names[0])
    placed = to_crs(table, crs, path)
    shapes = shapely.force_2d(np.array(placed.geometry, object))
    is_placed = np.isfinite(shapely.bounds(shapes)).all(axis=1)
    shapes[is_placed] = repair(shapes[is_placed])
    types = shapely.GeometryType.POLYGON, shapely.GeometryType.MULTIPOLYGON
    is_polygon = is_placed & np.isin(shapely.get_type_id(shapes), types)
    if not is_polygon.any():
        raise ValueError(f"{path} has no polygons that lie on the map of the raster")
    if not is_polygon.all():
        problem = f"{(~is_polygon).sum()} of {len(shapes)} shapes are left out"
        print_line(f"{path}: {problem}, which are not polygons, or not on the raster's map")
    return placed.set_geometry(shapes, crs=crs)[is_polygon]


def to_crs(table: Any, crs: Any, path: str | Path) -> Any:
    """Convert shapes of a file to a coordinate system.

    Raises:
        ValueError: If either the shapes or the raster have no coordinate system.
    """
    if (table.crs is None) != (crs is None):
        lacking = path if table.crs is None else "the raster"
        fix = "assign the coordinate system in a GIS, or by gdal_edit -a_srs"
        raise ValueError(f"{path}: {lacking} has no coordinate system: {fix}")
    return table if crs is None else table.to_crs(crs)


def repair(shapes: Any) -> np.ndarray:
    """Return shapes as polygons that do not cross themselves."""
    return shapely.make_valid(np.array(shapes), method="structure", keep_collapsed=False)


def in_pixels(shapes: Any, raster: Any) -> np.ndarray:
    """Convert a GeoSeries in the coordinate system of a raster to its pixels."""
    return np.array(shapes.affine_transform((~raster.transform).to_shapely()), object)


def footprint(raster: Any) -> Any:
    """Return the rectangle of a raster, or of an open file of rasterio, as a GeoSeries."""
    return to_map(shapely.box(0, 0, raster.width, raster.height), raster)


def to_map(shape: Any, raster: Any) -> Any:
    """Convert a shape in pixels of a raster to a GeoSeries in its coordinate system."""
    import geopandas

    placed = affine_transform(shape, raster.transform.to_shapely())
    return geopandas.GeoSeries([placed], crs=raster.crs)


def area_in_pixels(path: str | Path, raster: Any) -> Any:
    """Return the union of the polygons of `--aoi` within a raster, in pixels.

    Raises:
        ValueError: If the area covers no pixel. The message has both extents.
    """
    polygons = read_polygons(path, raster.crs)
    area = shapely.union_all(in_pixels(polygons.geometry, raster))
    inside = area.intersection(shapely.box(0, 0, raster.width, raster.height))
    if inside.area < 1:
        extents = describe_extents(polygons.total_bounds, footprint(raster).total_bounds)
        raise ValueError(f"{path} covers no pixel of the raster: {extents}")
    shapely.prepare(inside)
    return inside


def describe_extents(shapes: Any, area: Any) -> str:
    """Describe the bounds of shapes and of an area in which none of them lies."""
    described = [
        f"x {min_x:.10g} to {max_x:.10g}, y {min_y:.10g} to {max_y:.10g}"
        for min_x, min_y, max_x, max_y in (shapes, area)
    ]
    return f"it has {described[0]}, the area {described[1]}"


def covers(area: Any, rows: slice, columns: slice, all_touched: bool = False) -> np.ndarray:
    """Return whether an area in pixels covers the centre of each pixel of a window, (h, w), or with
    `all_touched` any part of the pixel.
    """
    from rasterio.features import geometry_mask
    from rasterio.transform import Affine

    shape = rows.stop - rows.start, columns.stop - columns.start
    shift = Affine.translation(columns.start, rows.start)
    return geometry_mask([area], shape, shift, all_touched, invert=True)


def write_layer(table: Any, path: Path, layer: str, **options: Any) -> None:
    """Write a GeoDataFrame as a layer, without pyogrio's warning if it has no coordinate system."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'crs' was not provided")
        table.to_file(path, layer=layer, engine="pyogrio", **options)
