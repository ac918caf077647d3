"""Objects of rasters: a file of each row of tiles, and the table of all objects for a GIS."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..prediction.seams import Objects, concatenate, merge_objects
from ..utils.atomic import atomic_path
from .files import MADE_FROM, rows_folder, written_file
from .polygons import rectangle
from .raster import Raster

LAYER = "objects"
"""Name of the layer of a table. A comparison with labels adds the layers `matched`, `missed` and
`false`."""


def encode_objects(tiles: Iterable[Objects]) -> bytes:
    """Return the content of a row's file: the objects of its tiles as JSON."""
    objects = concatenate(tiles)
    plain = objects._replace(shapes=shapely.to_wkb(objects.shapes, hex=True))
    return json.dumps([column.tolist() for column in plain]).encode()


def _read_row(path: Path) -> Objects:
    """Read the objects of a row of tiles that `encode_objects` wrote."""
    shapes, *columns = json.loads(path.read_bytes())
    if not shapes:
        return concatenate([])
    return Objects(shapely.from_wkb(shapes), *map(np.array, columns))


def join_objects(
    path: Path, rows: Sequence[Path], raster: Raster, area: Any, made_from: Mapping[str, Any]
) -> None:
    """Join the files of rows into a GeoPackage, in descending order of scores.

    Args:
        area: Polygon in pixels that holds the centres of the objects.
        made_from: With the names of the `classes`. It goes into the file's metadata, as a JSON.

    Raises:
        RuntimeError: If the disk is full.
    """
    objects = merge_objects(concatenate(map(_read_row, rows)))
    x, y = (objects.boxes[:, :2] + objects.boxes[:, 2:]).T / 2
    objects = objects.select(shapely.contains_xy(area, x, y))
    table = _make_table(objects, raster, made_from["classes"])
    options: Any = dict(driver="GPKG", layer_metadata={MADE_FROM: json.dumps(made_from)})
    options["geometry_type"] = "Polygon" if table.empty else None
    with written_file(path, rows_folder(path)) as unfinished:
        table.to_file(unfinished, layer=LAYER, **options)


def _make_table(objects: Objects, raster: Raster, classes: Sequence[str]) -> Any:
    """Return a GeoDataFrame of objects in the raster's coordinate system, in their order.

    Columns are `class`, `score`, `area` in square metres on the ellipsoid (missing without a
    coordinate system), `cut` (whether the raster's edge cuts the object) and `geometry`. Without a
    transform, coordinates are pixels.
    """
    import geopandas
    import pyproj

    # Tiles may be padded.
    inside = shapely.intersection(objects.shapes, rectangle(raster))
    objects = objects._replace(shapes=inside).select(shapely.area(inside) > 0)
    shapes = geopandas.GeoSeries(objects.shapes).affine_transform(raster.transform.to_shapely())
    size = np.array([raster.width, raster.height])
    is_cut = (objects.boxes[:, :2] < 1) | (objects.boxes[:, 2:] > size - 1)
    columns = {
        "class": np.array(classes, object)[objects.labels.astype(int)],
        "score": objects.scores.round(4),
        "area": np.nan,
        "cut": is_cut.any(axis=1),
    }
    polygons = shapely.orient_polygons(shapes)
    table = geopandas.GeoDataFrame(columns, geometry=polygons, crs=raster.crs)
    if raster.crs is not None:
        measure = pyproj.Geod(ellps="WGS84").geometry_area_perimeter
        areas = [abs(measure(polygon)[0]) for polygon in table.to_crs("EPSG:4326").geometry]
        table["area"] = [float(f"{area:.6g}") for area in areas]
    return table


def add_layers(path: Path, layers: Mapping[str, Any]) -> None:
    """Add GeoDataFrames of polygons, by name, as layers to a GeoPackage. A layer of the same name
    is replaced.
    """
    with atomic_path(path) as unfinished:
        shutil.copyfile(path, unfinished)
        for name, layer in layers.items():
            options = dict(geometry_type="MultiPolygon", promote_to_multi=True)
            layer.to_file(unfinished, layer=name, driver="GPKG", **options)
