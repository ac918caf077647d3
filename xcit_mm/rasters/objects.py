"""Objects of rasters: a file of each row of tiles, and the table of all objects for a GIS."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..prediction.seams import Objects, concatenate, merge_objects
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


def join_objects(
    path: Path, rows: Sequence[Path], raster: Raster, made_from: Mapping[str, Any], area: Any
) -> None:
    """Join the files of rows into a GeoPackage, in descending order of scores.

    Its columns are `class`, `score` and the geometry in the raster's coordinate system, or in
    pixels without a transform.

    Args:
        made_from: With the names of the `classes`. It goes into the file's metadata, as a JSON.
        area: Polygon in pixels that holds the centres of the objects.

    Raises:
        RuntimeError: If the disk is full.
    """
    import geopandas

    objects = merge_objects(concatenate(map(_read_row, rows)))
    x, y = (objects.boxes[:, :2] + objects.boxes[:, 2:]).T / 2
    # Small rasters are padded.
    inside = shapely.intersection(objects.shapes, shapely.box(0, 0, raster.width, raster.height))
    is_kept = shapely.contains_xy(area, x, y) & (shapely.area(inside) > 0)
    objects = objects._replace(shapes=inside).select(is_kept)
    columns = {
        "class": np.array(made_from["classes"], object)[objects.labels.astype(int)],
        "score": objects.scores.round(4),
    }
    table = geopandas.GeoDataFrame(columns, geometry=to_map(objects.shapes, raster))
    metadata = {MADE_FROM: json.dumps(made_from)}
    shape = "Polygon" if table.empty else None
    with atomic_path(path) as unfinished:
        table.to_file(unfinished, layer=LAYER, geometry_type=shape, layer_metadata=metadata)
