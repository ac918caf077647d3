"""Objects of rasters: a file of each row of tiles, and the table of all objects for a GIS."""

import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..prediction.seams import Objects, concatenate, merge_objects
from .files import ORIGIN, rows_folder, written_file
from .old_raster import Raster
from .polygons import list_layers, read_layer, write_layer

SUFFIXES = (".gpkg", ".geojson", ".parquet")
ERROR_LAYERS = ("matched", "missed", "false")
"""Names of the layers that a comparison with labels adds."""
_COLUMNS = ("class", "score", "area", "cut")


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
    path: Path, rows: Sequence[Path], raster: Raster, area: Any, origin: Mapping[str, Any]
) -> None:
    """Join the files of rows into a table, in descending order of scores.

    Args:
        area: Polygon in pixels that holds the centres of the objects, or None.
        origin: What the table was made from, which goes into the file's metadata. The table has
            its `classes`, and is converted to its `crs`. GeoJSON is always in WGS 84.

    Raises:
        WriteError: If the disk is full.
    """
    objects = merge_objects(concatenate(map(_read_row, rows)))
    if area is not None:
        x, y = (objects.boxes[:, :2] + objects.boxes[:, 2:]).T / 2
        objects = objects.select(shapely.contains_xy(area, x, y))
    _write_table(path, _make_table(objects, raster, origin["classes"]), origin)


def _make_table(objects: Objects, raster: Raster, classes: Sequence[str]) -> Any:
    """Return a GeoDataFrame of objects in the raster's coordinate system, in their order.

    Columns are `class`, `score`, `area` in square metres on the ellipsoid (missing without a
    coordinate system), `cut` (whether the raster's edge cuts the object) and `geometry`. Without a
    transform, coordinates are pixels.
    """
    import geopandas
    import pyproj

    size = np.array([raster.width, raster.height])
    # Tiles may be padded.
    inside = shapely.intersection(objects.shapes, shapely.box(0, 0, *size))
    objects = objects._replace(shapes=inside).select(shapely.area(inside) > 0)
    shapes = geopandas.GeoSeries(objects.shapes).affine_transform(raster.transform.to_shapely())
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


def _write_table(path: Path, table: Any, origin: Mapping[str, Any]) -> None:
    """Write a table in the format of the suffix."""
    crs = "EPSG:4326" if path.suffix == ".geojson" else origin["crs"]
    made_from = json.dumps(origin)
    if crs != table.crs:
        table = table.to_crs(crs)
    options: dict[str, Any] = dict(driver="GPKG", layer_metadata={ORIGIN: made_from})
    if path.suffix == ".geojson":
        options = dict(driver="GeoJSON", RFC7946="YES", COORDINATE_PRECISION="9")
        options["DESCRIPTION"] = made_from
    with written_file(path, rows_folder(path)) as unfinished:
        if path.suffix == ".parquet":
            table.attrs[ORIGIN] = made_from
            table.to_parquet(unfinished)
        else:
            options["geometry_type"] = "Polygon" if table.empty else None
            write_layer(table, unfinished, _layer_name(path), **options)
        count = len(read_layer(unfinished, list_layers(unfinished)[0]))
        if count != len(table):
            raise OSError(f"{count} of {len(table)} objects were read back")


def _layer_name(path: Path) -> str:
    """Return the name of a file as that of a layer that a GeoPackage may have."""
    name = re.sub(r"[^\w-]", "_", path.stem).strip("_-")
    is_other = name in ERROR_LAYERS or name.lower().startswith(("gpkg", "sqlite"))
    return f"objects_{name}" if is_other or not name else name


def read_table(path: Path) -> tuple[Any, list[str]]:
    """Read a table that `join_objects` wrote, and the names of the layers added to its file.

    Raises:
        ValueError: If the file is not such a table.
    """
    first, *added_layers = list_layers(path)
    table = read_layer(path, first)
    if table.empty:  # without objects, GeoJSON has no columns
        return table.reindex(columns=[*_COLUMNS, "geometry"]), added_layers
    if not set(_COLUMNS) <= set(table.columns):
        raise ValueError(f"{path} is not a table of objects: it lacks {', '.join(_COLUMNS)}")
    incomplete = int(table[["class", "score"]].isna().any(axis=1).sum())
    if incomplete:
        raise ValueError(f"{path} has {incomplete} objects without class or score: remove them")
    return table, added_layers


def read_origin(path: Path) -> dict[str, Any]:
    """Return what a table was made from, or {} if another program wrote it."""
    import geopandas
    import pyogrio

    if path.suffix == ".parquet":
        metadata = geopandas.read_parquet(path).attrs
    else:
        metadata = pyogrio.read_info(path, layer=0)["layer_metadata"] or {}
    origin = None
    with suppress(ValueError, TypeError):  # a description by another program
        origin = json.loads(metadata.get(ORIGIN) or metadata.get("DESCRIPTION", "{}"))
    return origin if isinstance(origin, dict) and "content" in origin else {}


def add_layers(path: Path, layers: dict[str, Any]) -> None:
    """Add GeoDataFrames of polygons, by name, as layers to a GeoPackage. A layer of the same name
    is replaced.

    Raises:
        WriteError: If the disk is full.
    """
    folder = rows_folder(path)
    folder.mkdir(exist_ok=True)
    with written_file(path, folder) as unfinished:
        shutil.copyfile(path, unfinished)
        for name, layer in layers.items():
            options = dict(geometry_type="MultiPolygon", promote_to_multi=True)
            write_layer(layer, unfinished, name, driver="GPKG", **options)
    with suppress(OSError):  # it may hold rows of a run that was stopped
        folder.rmdir()
