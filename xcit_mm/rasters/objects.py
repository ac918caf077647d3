"""Objects of rasters: those of a row of tiles in a file of its own, and the table of all for a GIS."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..prediction.seams import Objects, concatenate
from ..utils.atomic import atomic_path, atomic_write
from .raster import Raster

FORMATS = (".gpkg", ".geojson", ".parquet")


def write_row(path: Path, found: Objects) -> None:
    """Write the objects of a row of tiles as JSON, atomically."""
    content = found._replace(shapes=shapely.to_wkb(found.shapes, hex=True))
    with atomic_write(path) as file:
        file.write(json.dumps([values.tolist() for values in content]).encode())


def read_row(path: Path) -> Objects:
    """Read what `write_row` wrote."""
    shapes, *columns = json.loads(path.read_bytes())
    if not shapes:
        return concatenate([])
    return Objects(shapely.from_wkb(shapes), *map(np.array, columns))


def make_table(found: Objects, raster: Raster, classes: Sequence[str]) -> Any:
    """Return a GeoDataFrame of objects in the raster's coordinate system, in their order.

    Columns are `class`, `score`, `area` in square metres on the ellipsoid (missing without a
    coordinate system), `cut` (whether the raster's edge cuts the object) and `geometry`. Without a
    transform, coordinates are pixels.
    """
    import geopandas
    import pyproj

    inside = shapely.intersection(
        found.shapes, shapely.box(0, 0, raster.width, raster.height)
    )  # tiles may be padded
    found = found._replace(shapes=inside).select(shapely.area(inside) > 0)
    shapes = geopandas.GeoSeries(found.shapes).affine_transform(raster.transform.to_shapely())
    limits = np.array([raster.width, raster.height])
    cut = (found.boxes[:, :2] < 1).any(axis=1) | (found.boxes[:, 2:] > limits - 1).any(axis=1)
    names = np.array(classes, object)[found.labels.astype(int)]
    columns = {"class": names, "score": found.scores.round(4), "area": np.nan, "cut": cut}
    table = geopandas.GeoDataFrame(
        columns, geometry=shapely.orient_polygons(shapes), crs=raster.crs
    )
    if raster.crs is not None:
        measure = pyproj.Geod(ellps="WGS84").geometry_area_perimeter
        table["area"] = [
            float(f"{abs(measure(shape)[0]):.6g}") for shape in table.to_crs("EPSG:4326").geometry
        ]
    return table


def write_table(path: Path, table: Any, crs: str | None) -> None:
    """Write a table atomically, in the format of the suffix, and convert it to another coordinate
    system if given.
    """
    options = dict(driver="GPKG")
    if path.suffix == ".geojson":
        crs, options = "EPSG:4326", dict(driver="GeoJSON", RFC7946="YES", COORDINATE_PRECISION="9")
    table = table if crs is None else table.to_crs(crs)
    kind = "Polygon" if table.empty else None
    with atomic_path(path) as unfinished:
        if path.suffix == ".parquet":
            table.to_parquet(unfinished)
        else:
            table.to_file(
                unfinished, layer=path.stem, engine="pyogrio", geometry_type=kind, **options
            )
