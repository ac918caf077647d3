"""Parts of labelled rasters that are trained on or held out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from .labels import DrawnClasses
from .scenes import Scene

HELD_OUT = "held_out.gpkg"
"""Name of the file with the held-out areas."""
_TRAINED = 0.8  # share of the labels
_MANY = 5  # rasters, of which whole ones are held out


class Part(NamedTuple):
    """A part of a raster.

    Attributes:
        split: `train` or `val`.
        area: Where the labels are complete, in pixels of the raster.
        rows, columns: Pixels of the part.
    """

    scene: Scene
    split: str
    area: Any
    rows: range
    columns: range


def divide(scenes: Sequence[Scene], hold_out: bool) -> list[Part]:
    """Divide rasters into parts to train on and parts to hold out, the same in every run."""
    labelled = [scene for scene in scenes if not scene.area.is_empty]
    parts = []
    for number, scene in enumerate(labelled):
        rows = range(scene.grid.height)
        columns = range(scene.grid.width)
        if not hold_out or len(labelled) >= _MANY:
            is_held_out = hold_out and number % _MANY == _MANY - 1
            parts.append(_part(scene, "val" if is_held_out else "train", rows, columns))
        elif len(columns) > len(rows):
            border = _find_border(scene, axis=0)
            parts.append(_part(scene, "train", rows, columns[:border]))
            parts.append(_part(scene, "val", rows, columns[border:]))
        else:
            border = _find_border(scene, axis=1)
            parts.append(_part(scene, "train", rows[:border], columns))
            parts.append(_part(scene, "val", rows[border:], columns))
    held_out = [part for part in parts if part.split == "val"]
    return [_without_held_out(part, held_out) for part in parts if not part.area.is_empty]


def _part(scene: Scene, split: str, rows: range, columns: range) -> Part:
    box = shapely.box(columns.start, rows.start, columns.stop, rows.stop)
    return Part(scene, split, scene.area.intersection(box), rows, columns)


def _find_border(scene: Scene, axis: int) -> int:
    """Return the pixel along an axis before which most of the labels lie."""
    start, stop = np.reshape(scene.area.bounds, (2, 2))[:, axis]
    border = start + _TRAINED * (stop - start)
    if isinstance(scene.labels, DrawnClasses):
        is_inside = shapely.intersects(scene.area, scene.labels.shapes)
        centres = shapely.centroid(scene.labels.shapes[is_inside])
        if len(centres) > 1:
            border = np.quantile(shapely.get_coordinates(centres)[:, axis], _TRAINED)
    return round(border)


def _without_held_out(part: Part, held_out: Sequence[Part]) -> Part:
    """Remove what is held out of other rasters at the same place from a part to train on."""
    if part.split != "train":
        return part
    area = part.area
    for val in held_out:
        if val.scene is not part.scene:
            held_out_area = val.scene.grid.to_map(val.area, part.scene.grid.crs)
            area = area.difference(part.scene.grid.to_pixels(held_out_area))
    return part._replace(area=area)


def write_held_out(folder: Path, parts: Sequence[Part]) -> None:
    """Write the held-out areas, if there are any, into a folder for `--aoi`."""
    import geopandas
    import pandas

    held_out = [part for part in parts if part.split == "val"]
    if not held_out:
        return
    crs = parts[0].scene.grid.crs
    places = [part.scene.grid.to_map(part.area, crs) for part in held_out]
    options: Any = dict(engine="pyogrio", geometry_type="MultiPolygon", promote_to_multi=True)
    geopandas.GeoDataFrame(geometry=pandas.concat(places)).to_file(folder / HELD_OUT, **options)
