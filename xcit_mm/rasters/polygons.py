"""Polygons of vector files, placed on a raster."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
import shapely

from ..models.windows import Window
from ..utils.errors import ArgumentError
from ..utils.output import say

if TYPE_CHECKING:
    import geopandas

_POLYGONS = (3, 6)  # shapely's numbers of the types Polygon and MultiPolygon
Span = slice | Window
"""Pixels along one axis."""
Polygons: TypeAlias = Union[str, Path, "geopandas.GeoDataFrame"]
"""The path of a vector file, or its content."""


def crs_on_earth(crs: Any) -> Any:
    """Return a coordinate system of rasterio or pyproj, or None if it has no place on the earth."""
    return crs if crs and (crs.is_projected or crs.is_geographic) else None


def read_polygons(source: Polygons, crs: Any, layer: str | None = None) -> Any:
    """Read polygons as a GeoDataFrame in a coordinate system.

    Shapes that are not polygons, or have no place in this system, are left out with a message.
    Systems without a place on the earth, such as local ones, count as none.

    Args:
        crs: The coordinate system, or None if neither the raster nor the polygons have one.
        layer: Name of the layer of a file. Default: the only one that has shapes. A GeoDataFrame
            has no layers.

    Raises:
        ValueError: If the file has several layers or not this one, or the polygons or the raster
            have no coordinate system.
        RuntimeError: If GDAL cannot read the file.
    """
    table = read_layer(source, layer) if isinstance(source, str | Path) else source
    crs = crs_on_earth(crs)
    own_crs = crs_on_earth(table.crs)
    if (own_crs is None) != (crs is None):
        without = name_of(source) if own_crs is None else "the raster"
        raise ValueError(f"{without} has no coordinate system: assign one in a GIS")
    table = table.set_crs(None, allow_override=True) if crs is None else table.to_crs(crs)
    placed = table[np.isfinite(table.bounds).all(axis=1)]
    placed = placed.set_geometry(repair(placed.geometry), crs=crs)
    polygons = placed[~placed.is_empty]
    if len(polygons) < len(table):
        count = f"{len(table) - len(polygons)} of {len(table)} shapes"
        why = "they are no polygons, are empty, or do not fit the raster's coordinate system"
        say(f"{name_of(source)}: {count} are left out, because {why}")
    return polygons


def read_layer(path: str | Path, layer: str | None) -> Any:
    """Read a layer of a vector file, by default the only one that has shapes.

    Raises:
        ValueError: If there is no such layer.
    """
    import geopandas

    layers = geopandas.list_layers(path)
    names = layers["name"][layers["geometry_type"].notna()].tolist()
    chosen = [name for name in names if layer in (None, name)]
    if len(chosen) != 1:
        wanted = f"{path}: expected {layer or 'one layer'} with shapes, found {names}"
        raise ValueError(f"{wanted}: name the layer of the labels, or give a file with one")
    return geopandas.read_file(path, layer=chosen[0])


def name_of(source: Polygons) -> str:
    """Return how messages call polygons: by the path of their file."""
    return str(source) if isinstance(source, str | Path) else "the GeoDataFrame"


def repair(shapes: Any) -> np.ndarray:
    """Return shapes as plane polygons that do not cross themselves.

    Points and lines are left out, such as those where two shapes share only a border. A shape of
    nothing else is empty.
    """
    plane = shapely.force_2d(np.array(shapes, object))
    valid = shapely.make_valid(plane, method="structure", keep_collapsed=False)
    for number in np.flatnonzero(~np.isin(shapely.get_type_id(valid), _POLYGONS)):
        parts = shapely.get_parts(valid[number])
        valid[number] = shapely.union_all(parts[shapely.get_dimensions(parts) == 2])
    return valid


def shared_part(shape: Any, other: Any) -> Any:
    """Return the polygons that two polygons share, or an empty one. A border does not count."""
    (part,) = repair([shape.intersection(other)])
    return part


def share_pixels(area: Any, shapes: np.ndarray) -> np.ndarray:
    """Return whether each polygon has more in common with an area than a border, (n,), bool."""
    return shapely.relate_pattern(area, shapes, "T********")  # their interiors meet


def in_pixels(shapes: Any, raster: Any) -> np.ndarray:
    """Convert a GeoSeries in the coordinate system of a raster to its pixels."""
    return np.array(shapes.affine_transform((~raster.transform).to_shapely()), object)


def to_map(shapes: Any, raster: Any) -> Any:
    """Convert shapes in pixels of a raster to a GeoSeries in its coordinate system."""
    import geopandas

    return geopandas.GeoSeries(shapes, crs=raster.crs).affine_transform(
        raster.transform.to_shapely()
    )


def area_in_pixels(aoi: Polygons | None, raster: Any) -> Any:
    """Return the union of polygons within a raster, or an open file of rasterio, in pixels.

    Without polygons it is all of the raster.

    Raises:
        ArgumentError: If the area covers no pixel.
    """
    whole = shapely.box(0, 0, raster.width, raster.height)
    if aoi is None:
        return whole
    polygons = read_polygons(aoi, raster.crs)
    area = shared_part(shapely.union_all(in_pixels(polygons.geometry, raster)), whole)
    if area.area < 1:
        fix = "compare both in a GIS, and cut what is much larger than the raster"
        raise ArgumentError("aoi", f"{name_of(aoi)} covers no pixel of the raster: {fix}")
    return area


def box_of(rows: Span, columns: Span) -> Any:
    """Return a window as a polygon in pixels."""
    return shapely.box(columns.start, rows.start, columns.stop, rows.stop)


def burn(shapes: Iterable[tuple[Any, int]], rows: Span, columns: Span) -> np.ndarray:
    """Return the number of the shape on each pixel of a window, (h, w), int32, or 0 without one.

    A shape, in pixels, covers the pixels with their centre in it. The last shape counts.
    """
    from rasterio.features import rasterize
    from rasterio.transform import Affine

    size = rows.stop - rows.start, columns.stop - columns.start
    shift = Affine.translation(columns.start, rows.start)
    return rasterize(shapes, size, transform=shift, dtype="int32")


def covers(area: Any, rows: Span, columns: Span) -> np.ndarray:
    """Return whether an area in pixels covers the centre of each pixel of a window, (h, w)."""
    return burn([(area, 1)], rows, columns) > 0
