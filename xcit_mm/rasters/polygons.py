"""Polygons of vector files, in the coordinate system of a raster."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from shapely.affinity import affine_transform
from shapely.errors import GEOSException

from ..utils.cli import print_line
from ..utils.errors import reason

_PARQUET = (".parquet", ".geoparquet")
_POLYGONS = (shapely.GeometryType.POLYGON, shapely.GeometryType.MULTIPOLYGON)


def list_layers(path: str | Path) -> list[str]:
    """List the layers of a vector file, of a Parquet file its name.

    Raises:
        RuntimeError: If GDAL cannot read the file.
    """
    import pyogrio

    if Path(path).suffix.lower() in _PARQUET:
        return [Path(path).stem]
    return pyogrio.list_layers(path)[:, 0].tolist()


def read_layer(path: str | Path, layer: str) -> Any:
    """Read a layer of a vector file as a GeoDataFrame, or as a DataFrame without geometries.

    Raises:
        RuntimeError: If GDAL cannot read the file.
        ValueError: If a shape is a surface, or a text is not UTF-8.
    """
    import geopandas

    if Path(path).suffix.lower() in _PARQUET:
        return geopandas.read_parquet(path)
    try:
        return geopandas.read_file(path, layer=layer, engine="pyogrio")
    except (GEOSException, UnicodeDecodeError) as error:
        fix = "save it with flat polygons and texts in UTF-8"
        raise ValueError(f"{path} cannot be read ({reason(error)}): {fix}") from None


def write_layer(table: Any, path: Path, layer: str, **options: Any) -> None:
    """Write a GeoDataFrame as a layer, without pyogrio's warning if it has no coordinate system."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'crs' was not provided")
        table.to_file(path, layer=layer, engine="pyogrio", **options)


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
        shapes = np.array(getattr(table, "geometry", []), object)
        is_collection = shapely.get_type_id(shapes) == shapely.GeometryType.GEOMETRYCOLLECTION
        shapes[is_collection] = shapely.buffer(repair(shapes[is_collection]), 0)
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
    is_repaired = has_area & ~shapely.is_valid(polygons)
    for count, problem in (
        (is_empty.sum(), "empty shapes are left out"),
        ((~is_empty & ~is_polygon).sum(), "points or lines are left out"),
        (is_repaired.sum(), "shapes cross themselves and are repaired"),
        ((~has_area).sum(), "shapes without an area are left out"),
        (len(further_layers), f"layers are not read: {', '.join(further_layers)}"),
    ):
        if count:
            print_line(f"{option} {path}: {count} {problem}")
    return table[is_polygon].set_geometry(repaired, crs=table.crs)[has_area]


def repair(shapes: Any) -> np.ndarray:
    """Return shapes as polygons that do not cross themselves."""
    return shapely.make_valid(np.array(shapes), method="structure", keep_collapsed=False)


def to_pixels(shape: Any, raster: Any) -> Any:
    """Convert a shape from coordinates to pixels of a raster, ready for many comparisons."""
    converted = affine_transform(shape, (~raster.transform).to_shapely())
    shapely.prepare(converted)
    return converted


def to_crs(polygons: Any, crs: Any, option: str) -> Any:
    """Convert polygons to a coordinate system, and leave out what has no place in it.

    If neither polygons nor raster have a coordinate system, the polygons stay.

    Raises:
        ValueError: If one has a coordinate system and the other has none.
    """
    if polygons.crs is not None and polygons.crs.is_engineering:  # as in `StoredRaster`
        polygons = polygons.set_crs(None, allow_override=True)
    if (polygons.crs is None) != (crs is None):
        lacking = "the raster" if crs is None else "the file"
        raise ValueError(f"{option}: {lacking} has no coordinate system: assign one in a GIS")
    if crs is None:
        return polygons
    converted = polygons.to_crs(crs)
    converted = converted[np.isfinite(converted.bounds).all(axis=1)]
    return converted.set_geometry(repair(converted.geometry), crs=crs)


def place_polygons(polygons: Any, crs: Any, area: Any, option: str, by_centre: Any = None) -> Any:
    """Convert polygons to a coordinate system, and select those in an area. A line counts those
    outside.

    Args:
        area: Polygon in this coordinate system, or None for all polygons.
        option: Option that the user gave the polygons by, for messages.
        by_centre: Series that tells whether the centre of each polygon must lie in the area.
            Default: any part of it.

    Raises:
        ValueError: If no polygon lies in the area. The message has both extents.
    """
    placed = to_crs(polygons, crs, option)
    if area is None:
        return placed
    is_inside = placed.intersects(area)
    if by_centre is not None:
        is_inside &= has_centre_in(area, placed) | ~by_centre[placed.index]
    placed = placed[is_inside]
    outside = len(polygons) - len(placed)
    if placed.empty:
        extent = _describe_extent(polygons.total_bounds, polygons.crs)
        area_extent = _describe_extent(area.bounds, crs)
        raise ValueError(f"{option} ({extent}) has no polygon in the area ({area_extent})")
    if outside:
        print_line(f"{option}: {outside} of {len(polygons)} polygons lie outside of the area")
    return placed


def _describe_extent(bounds: Any, crs: Any) -> str:
    """Describe an extent of left, bottom, right and top for a message."""
    min_x, min_y, max_x, max_y = bounds
    system = "" if crs is None else f" in {crs.to_string()}"
    return f"x {min_x:.10g} to {max_x:.10g}, y {min_y:.10g} to {max_y:.10g}{system}"


def has_centre_in(area: Any, polygons: Any) -> np.ndarray:
    """Return whether the centre of each polygon lies in an area."""
    return shapely.contains(area, shapely.centroid(np.array(polygons.geometry)))


def footprint(raster: Any) -> Any:
    """Return the rectangle of a raster, or of an open file of rasterio, as a GeoDataFrame."""
    import geopandas

    box = shapely.box(0, 0, raster.width, raster.height)
    shape = affine_transform(box, raster.transform.to_shapely())
    return geopandas.GeoDataFrame(geometry=[shape], crs=raster.crs)


def read_area(path: str | Path, crs: Any, extent: Any = None, smallest: float = 0) -> Any:
    """Return the union of the polygons of `--aoi` in a coordinate system.

    Args:
        extent: Footprints of rasters, to which the union is cut. Default: it stays whole.
        smallest: Area that the union must exceed within `extent`.

    Raises:
        ValueError: If the area is smaller. The message has both extents.
    """
    polygons = read_polygons(path, "--aoi")
    area = to_crs(polygons, crs, f"--aoi {path}").union_all()
    if extent is not None:
        area = area.intersection(extent.union_all())
        if area.area <= smallest:
            described = _describe_extent(polygons.total_bounds, polygons.crs)
            raster_extent = _describe_extent(extent.total_bounds, crs)
            problem = f"covers no pixel of the raster ({raster_extent})"
            raise ValueError(f"--aoi {path} ({described}) {problem}")
    shapely.prepare(area)
    return area


def covers(area: Any, rows: slice, columns: slice, all_touched: bool = False) -> np.ndarray:
    """Return whether an area in pixels covers the centre of each pixel of a window, (h, w), or with
    `all_touched` any part of the pixel.
    """
    from rasterio.features import geometry_mask
    from rasterio.transform import Affine

    shape = rows.stop - rows.start, columns.stop - columns.start
    shift = Affine.translation(columns.start, rows.start)
    return geometry_mask([area], shape, shift, all_touched, invert=True)


def check_crs(raster: Any, crs: str | None) -> None:
    """Raise ValueError if a raster has no coordinate system, or `crs` ends within the raster. The
    default, WGS 84 in GeoJSON, may go beyond 180 degrees.
    """
    import geopandas
    import pyproj

    try:
        system = pyproj.CRS("EPSG:4326" if crs is None else crs)
        is_of_places = system.is_projected or system.is_geographic
    except pyproj.exceptions.CRSError:
        is_of_places = False
    if not is_of_places:
        problem = "PROJ knows no such coordinate system of places"
        raise ValueError(f"--crs {crs}: {problem}, give a code such as EPSG:4326")
    if raster.crs is None:
        fix = "write .gpkg or .parquet without --crs"
        raise ValueError(f"{raster.path} has no coordinate system: {fix}")
    if crs is not None:
        rectangle = footprint(raster).union_all()
        shapes = geopandas.GeoSeries([rectangle, rectangle.centroid], crs=raster.crs).to_crs(crs)
        if not shapes[0].contains(shapes[1]):  # the raster crosses 180 degrees
            fix = "write .geojson, or leave --crs out"
            raise ValueError(f"--crs {crs} ends within {raster.path}: {fix}")
