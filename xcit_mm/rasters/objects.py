"""Objects of rasters: a file of each row of windows, and the table of all objects for a GIS."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..prediction.joining import join_objects
from ..prediction.seams import Objects, concatenate
from ..utils.atomic import atomic_path
from .finished import LAYER, MADE_FROM
from .polygons import to_map
from .raster import Raster


def encode_objects(objects: Objects) -> bytes:
    """Return the content of a row's file: its objects as JSON."""
    plain = objects._replace(shapes=shapely.to_wkb(objects.shapes, hex=True))
    return json.dumps([column.tolist() for column in plain]).encode()


def _read_row(path: Path) -> Objects:
    shapes, *columns = json.loads(path.read_bytes())
    if not shapes:
        return concatenate([])
    return Objects(shapely.from_wkb(shapes), *map(np.array, columns))


def write_table(
    path: Path,
    rows: Sequence[Path],
    raster: Raster,
    area: Any,
    classes: Sequence[str],
    made_from: Mapping[str, Any],
) -> None:
    """Write the objects in the files of rows as a GeoPackage, in descending order of scores.

    Its columns are `class`, `score` and the geometry in the raster's coordinate system, or in
    pixels without a transform.

    Args:
        area: Polygon in pixels that holds the centres of the objects.
        classes: Names of the classes.
        made_from: Goes into the file's metadata, as a JSON.

    Raises:
        RuntimeError: If the disk is full.
    """
    import geopandas

    everywhere = slice(0, raster.height), slice(0, raster.width)
    objects = join_objects(concatenate(map(_read_row, rows)), *everywhere)
    x, y = (objects.boxes[:, :2] + objects.boxes[:, 2:]).T / 2
    objects = objects.select(shapely.contains_xy(area, x, y))
    columns = {
        "class": np.array(classes, object)[objects.labels.astype(int)],
        "score": objects.scores.round(4),
    }
    table = geopandas.GeoDataFrame(columns, geometry=to_map(objects.shapes, raster))
    metadata = {MADE_FROM: json.dumps(made_from)}
    shape = "Polygon" if table.empty else None
    with atomic_path(path) as unfinished:
        table.to_file(unfinished, layer=LAYER, geometry_type=shape, layer_metadata=metadata)
