"""Polygons of vector files, in the coordinate system of a raster."""

from pathlib import Path
from typing import Any

import numpy as np
import shapely
from shapely.affinity import affine_transform

from ..utils.cli import print_line

_POLYGONS = (shapely.GeometryType.POLYGON, shapely.GeometryType.MULTIPOLYGON)


def list_layers(path: str | Path) -> list[str]:
    """List the layers of a vector file, of a Parquet file its name.

    Raises:
        RuntimeError: If GDAL cannot read the file.
    """
    import pyogrio

    if Path(path).suffix == ".parquet":
        return [Path(path).stem]
    return pyogrio.list_layers(path)[:, 0].tolist()


def read_layer(path: str | Path, layer: str) -> Any:
    """Read a layer of a vector file as a GeoDataFrame, or as a DataFrame without geometries.

    Raises:
        RuntimeError: If GDAL cannot read the file.
    """
    import geopandas

    if Path(path).suffix == ".parquet":
        return geopandas.read_parquet(path)
    return geopandas.read_file(path, layer=layer, engine="pyogrio")


def read_polygons(path: str | Path, option: str, layer: str | None = None) -> Any:
    """Read the polygons of a vector file as a GeoDataFrame, in the file's coordinate system.

    Collections become their polygons, and polygons that cross themselves are repaired. Lines count
    these, and what is left out.

    Args:
        option: Option that the user gave the file by, for messages.
        layer: Name of the layer to read. Default: the first that has polygons.

    Raises:
        ValueError: If the file has no polygons, or no such layer.
        RuntimeError: If GDAL cannot read the file.
    """
    layers = list_layers(path)
    if layer is not None and layer not in layers:
        raise ValueError(f"--layer {layer}: {path} has no such layer, give one of {layers}")
    for name in layers if layer is None else [layer]:
        table = read_layer(path, name)
        shapes = _without_collections(np.array(getattr(table, "geometry", []), object))
        is_empty = shapely.is_missing(shapes) | shapely.is_empty(shapes)
        is_polygon = np.isin(shapely.get_type_id(shapes), _POLYGONS) & ~is_empty
        if is_polygon.any():
            break
    else:
        raise ValueError(f"{option} {path} has no polygons: give a file with polygons")
    further_layers = [other for other in layers if layer is None and other != name]
    polygons = shapely.force_2d(shapes[is_polygon])
    repaired = repair(polygons)
    has_area = shapely.area(repaired) > 0
    for count, problem in (
        (np.sum(is_empty), "empty shapes are left out"),
        (np.sum(~is_empty & ~is_polygon), "points or lines are left out"),
        (
            np.sum(has_area & ~shapely.is_valid(polygons)),
            "shapes cross themselves and are repaired",
        ),
        (np.sum(~has_area), "shapes without an area are left out"),
        (len(further_layers), f"layers are not read: {', '.join(further_layers)}"),
    ):
        if count:
            print_line(f"{option} {path}: {count} {problem}")
    return table[is_polygon].set_geometry(repaired, crs=table.crs)[has_area]


def _without_collections(shapes: np.ndarray) -> np.ndarray:
    """Replace collections of geometries by their polygons."""
    for number in np.flatnonzero(
        shapely.get_type_id(shapes) == shapely.GeometryType.GEOMETRYCOLLECTION
    ):
        parts = shapely.get_parts(shapely.get_parts(shapes[number]))
        polygons = parts[shapely.get_type_id(parts) == shapely.GeometryType.POLYGON]
        shapes[number] = shapely.multipolygons(polygons)
    return shapes


def to_pixels(shape: Any, raster: Any) -> Any:
    """Convert a shape from coordinates to pixels of a raster."""
    return affine_transform(shape, (~raster.transform).to_shapely())


def repair(shapes: np.ndarray) -> np.ndarray:
    """Return shapes as polygons that do not cross themselves."""
    return shapely.make_valid(shapes, method="structure", keep_collapsed=False)


def to_crs(polygons: Any, crs: Any, option: str) -> Any:
    """Convert polygons to a coordinate system, and leave out what has no place in it.

    If neither polygons nor raster have a coordinate system, the polygons stay.

    Raises:
        ValueError: If one has a coordinate system and the other has none.
    """
    if (polygons.crs is None) != (crs is None):
        lacking = "the raster" if crs is None else "the file"
        raise ValueError(f"{option}: {lacking} has no coordinate system: assign one in a GIS")
    if crs is None:
        return polygons
    converted = polygons.to_crs(crs)
    converted = converted[np.isfinite(converted.bounds).all(axis=1)]
    return converted.set_geometry(repair(np.array(converted.geometry)), crs=crs)


def describe_extent(bounds: Any, crs: Any) -> str:
    """Describe an extent of left, bottom, right and top for a message."""
    left, bottom, right, top = bounds
    place = "" if crs is None else f" in {crs.to_string()}"
    return f"x {left:.10g} to {right:.10g}, y {bottom:.10g} to {top:.10g}{place}"


def place_polygons(polygons: Any, crs: Any, area: Any, option: str, by_centre: bool = False) -> Any:
    """Convert polygons to a coordinate system, and select those in an area. A line counts those
    outside.

    Args:
        area: Polygon in this coordinate system, or None for all polygons.
        option: Option that the user gave the polygons by, for messages.
        by_centre: Whether the centre of a polygon must lie in the area. Default: any part of it.

    Raises:
        ValueError: If no polygon lies in the area. The message has both extents.
    """
    placed = to_crs(polygons, crs, option)
    if area is None:
        return placed
    is_inside = has_centre_in(area, placed) if by_centre else placed.intersects(area)
    outside = len(polygons) - int(np.sum(is_inside))
    if outside == len(polygons):
        extent = describe_extent(polygons.total_bounds, polygons.crs)
        area_extent = describe_extent(area.bounds, crs)
        raise ValueError(f"{option} ({extent}) has no polygon in the area ({area_extent})")
    if outside:
        print_line(f"{option}: {outside} of {len(polygons)} polygons lie outside of the area")
    return placed[is_inside]


def has_centre_in(area: Any, polygons: Any) -> np.ndarray:
    """Return whether the centre of each polygon lies in an area."""
    return shapely.contains(area, shapely.centroid(np.array(polygons.geometry)))


def footprint(raster: Any) -> Any:
    """Return the rectangle of a raster, or of an open file of rasterio, as a GeoDataFrame."""
    import geopandas

    box = shapely.box(0, 0, raster.width, raster.height)
    shape = affine_transform(box, raster.transform.to_shapely())
    return geopandas.GeoDataFrame(geometry=[shape], crs=raster.crs)


def read_area(path: str | Path, crs: Any, place: Any = None, smallest: float = 0) -> Any:
    """Return the union of the polygons of `--aoi` in a coordinate system.

    Args:
        place: Footprints of rasters, to which the union is cut. Default: it stays whole.
        smallest: Smallest area that the union must have within `place`.

    Raises:
        ValueError: If the area is smaller. The message has both extents.
    """
    polygons = read_polygons(path, "--aoi")
    area = to_crs(polygons, crs, f"--aoi {path}").union_all()
    if place is not None:
        area = area.intersection(place.union_all())
        if area.is_empty or area.area < smallest:
            aoi_extent = describe_extent(polygons.total_bounds, polygons.crs)
            raster_extent = describe_extent(place.total_bounds, crs)
            problem = f"covers no pixel of the raster ({raster_extent})"
            raise ValueError(f"--aoi {path} ({aoi_extent}) {problem}")
    shapely.prepare(area)
    return area


def covers(area: Any, rows: slice, columns: slice) -> np.ndarray:
    """Return whether an area in pixels covers the centre of each pixel of a window, (h, w)."""
    from rasterio.features import geometry_mask
    from rasterio.transform import Affine

    shape = rows.stop - rows.start, columns.stop - columns.start
    shift = Affine.translation(columns.start, rows.start)
    return geometry_mask([area], shape, shift, invert=True)


def read_pixel_area(path: str | Path, raster: Any) -> Any:
    """Return the union of the polygons of `--aoi` within a raster, in its pixels."""
    pixel_area = abs(raster.transform.determinant)
    area = read_area(path, raster.crs, footprint(raster), smallest=pixel_area)
    area = to_pixels(area, raster)
    shapely.prepare(area)
    return area


def check_crs(raster: Any, crs: str | None) -> None:
    """Raise ValueError if a raster cannot be converted to a coordinate system, by default WGS 84 in
    GeoJSON, which may go beyond 180 degrees.
    """
    import geopandas

    if raster.crs is None:
        fix = "write .gpkg or .parquet without --crs"
        raise ValueError(f"{raster.path} has no coordinate system: {fix}")
    if crs is not None:
        rectangle = footprint(raster).union_all()
        shapes = geopandas.GeoSeries([rectangle, rectangle.centroid], crs=raster.crs).to_crs(crs)
        if not shapes[0].contains(shapes[1]):  # the raster crosses 180 degrees
            fix = "write .geojson, or leave --crs out"
            raise ValueError(f"--crs {crs} ends within {raster.path}: {fix}")
