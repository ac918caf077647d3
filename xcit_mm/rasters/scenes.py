"""Labelled rasters, read by the same options, with the parts in which labels are complete."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely
from shapely.affinity import affine_transform

from ..utils.cli import print_line
from .gdal import pixel_size
from .labels import NO_CLASS, LabelFile, are_boxes
from .old_raster import Raster
from .pixel_labels import BACKGROUND, DrawnClasses, StoredClasses
from .polygons import footprint, read_area, to_pixels
from .tally import Tally

HELD_OUT = "held_out.gpkg"
"""Name of the file with the held-out areas."""
_TRAINED_SHARE = 0.8  # of the labels
_MANY_RASTERS = 5  # of which whole ones are held out


class Grid(NamedTuple):
    """The pixels of a raster and their place, without an open file."""

    path: Path
    height: int
    width: int
    transform: Any
    crs: Any
    files: Sequence[Path]

    def to_pixels(self, shapes: Any) -> Any:
        """Return the union of a GeoSeries in pixels."""
        return to_pixels(_to_crs(shapes, self.crs).union_all(), self)

    def to_map(self, shape: Any, crs: Any) -> Any:
        """Return a shape in pixels as a GeoSeries in a coordinate system."""
        import geopandas

        placed = affine_transform(shape, self.transform.to_shapely())
        return _to_crs(geopandas.GeoSeries([placed], crs=self.crs), crs)


def _to_crs(shapes: Any, crs: Any) -> Any:
    """Convert shapes. Without a coordinate system, they stay."""
    return shapes if crs is None else shapes.to_crs(crs)


class Scene(NamedTuple):
    """A labelled raster, or the part of it that is trained on or held out.

    Attributes:
        area: Where the labels are complete, in pixels of the raster.
        rows, columns: Pixels of the part.
        split: `train` or `val`.
    """

    grid: Grid
    labels: DrawnClasses | StoredClasses
    area: Any
    rows: range
    columns: range
    split: str = "train"

    def part(self, split: str, rows: range, columns: range) -> "Scene":
        """Return the part of this scene in rows and columns, for a split."""
        box = shapely.box(columns.start, rows.start, columns.stop, rows.stop)
        area = self.area.intersection(box)
        return self._replace(area=area, rows=rows, columns=columns, split=split)


class LabelledRasters(NamedTuple):
    """Rasters with the labels of a file.

    Attributes:
        classes: Names of the classes in the order of their numbers, none of a raster of classes.
        has_masks: Whether a label is more than a box.
        tally: The labels that count so far.
        used: The indices of these labels.
    """

    scenes: list[Scene]
    classes: list[str]
    has_masks: bool
    tally: Tally
    used: set[int]


def open_alike(paths: Sequence[Path], options: dict[str, Any]) -> tuple[list[Grid], dict[str, Any]]:
    """Return the grids of rasters, and the options by which all are read alike: one size of the
    pixels and one scale. Lines tell what a user should know of the files.

    Args:
        options: Options of `Raster`.

    Raises:
        ValueError: If the rasters cannot be read alike.
    """
    first = Raster(paths[0], **options)
    if first.crs is not None and "gsd" not in options:
        options = options | dict(gsd=float(f"{np.mean(pixel_size(first)):.4g}"))
    grids = []
    bounds = {}
    for path in paths:
        raster = Raster(path, **options)
        for note in raster.notes:
            print_line(f"{path}: {note}")
        pixels = raster.height, raster.width, raster.transform, raster.crs
        grids.append(Grid(path, *pixels, raster.files))
        bounds[path] = raster.bounds
    if len(grids) > 1 and any(grid.transform.is_identity for grid in grids):
        raise ValueError(f"{paths[0].parent} has rasters without a place: cut each by itself")
    common = {name: option for name, option in options.items() if name != "percentiles"}
    unscaled = [path for path, pairs in bounds.items() if pairs is None]
    if len(unscaled) == len(paths):
        return grids, common
    if unscaled:
        problem = f"{unscaled[0]} has 8 bits, and other rasters have more"
        raise ValueError(f"{problem}: give --bounds for all, or train each kind by itself")
    pairs = np.array(list(bounds.values()))
    extremes = np.stack([pairs[:, :, 0].min(axis=0), pairs[:, :, 1].max(axis=0)], axis=1)
    common["bounds"] = [float(f"{bound:.6g}") for bound in extremes.ravel()]
    return grids, common


def label_rasters(
    grids: Sequence[Grid],
    source: LabelFile,
    is_detector: bool,
    aoi: str | Path | None = None,
    model_classes: Sequence[str] = (),
) -> LabelledRasters:
    """Place the labels of a file on rasters. Lines tell which labels are left out.

    Args:
        aoi: Vector file of the area in which the labels are complete. Default: the rasters.
        model_classes: Classes of a model, whose order the labels take if they have the same.

    Raises:
        ValueError: If no label lies in the areas, or a detector has a raster of classes.
    """
    import geopandas
    import pandas

    crs = grids[0].crs
    areas = [shapely.box(0, 0, grid.width, grid.height) for grid in grids]
    if aoi is None:
        print_line("without --aoi, labels count as complete on all of the rasters")
    else:
        extents = pandas.concat([_to_crs(footprint(grid), crs) for grid in grids])
        area = geopandas.GeoSeries([read_area(aoi, crs, extents)], crs=crs)
        boxes = zip(areas, grids, strict=True)
        areas = [grid.to_pixels(area).intersection(box) for box, grid in boxes]
    labels: Any
    if source.is_raster(is_detector):
        tally = Tally("labels", 0)
        labels = [StoredClasses(source.path, grid) for grid in grids]
        # Their classes are known once tiles are read.
        return LabelledRasters(_make_scenes(grids, labels, areas), [], True, tally, set())
    labelled = [grid.to_map(area, crs) for grid, area in zip(grids, areas, strict=True)]
    prefix = f"{source.option}: the tiles show"
    placed = source.place(crs, pandas.concat(labelled).union_all(), prefix=prefix)
    named = placed.polygons[placed.polygons["class"] != NO_CLASS]
    classes = sorted(set(named["class"]))
    if not classes:
        raise ValueError(f"{source.option}: no polygon in the area has a class")
    if is_detector:
        source.note_parts(named)
    else:
        classes = [BACKGROUND, *(name for name in classes if name != BACKGROUND)]
    if set(classes) == set(model_classes):
        classes = list(model_classes)
    labels = [DrawnClasses(placed.polygons, grid, classes) for grid in grids]
    # Boxes are drawn along the axes of the raster, or of their own coordinate system.
    has_masks = not (placed.are_boxes or all(are_boxes(drawn.shapes) for drawn in labels))
    scenes = _make_scenes(grids, labels, areas)
    return LabelledRasters(scenes, classes, has_masks, placed.tally, set(named.index))


def _make_scenes(grids: Sequence[Grid], labels: Sequence[Any], areas: Sequence[Any]) -> list[Scene]:
    """Return the scenes whose area is not empty."""
    return [
        Scene(grid, drawn, area, range(grid.height), range(grid.width))
        for grid, drawn, area in zip(grids, labels, areas, strict=True)
        if not area.is_empty
    ]


def divide(scenes: Sequence[Scene], hold_out: bool) -> list[Scene]:
    """Divide rasters into parts to train on and parts to hold out, the same in every run: every
    fifth of many rasters, or the end of the longer side of each.
    """
    parts = []
    for number, scene in enumerate(scenes):
        rows = scene.rows
        columns = scene.columns
        if not hold_out or len(scenes) >= _MANY_RASTERS:
            is_held_out = hold_out and number % _MANY_RASTERS == _MANY_RASTERS - 1
            parts.append(scene._replace(split="val" if is_held_out else "train"))
        elif len(columns) > len(rows):
            border = _find_border(scene, axis=0)
            parts.append(scene.part("train", rows, columns[:border]))
            parts.append(scene.part("val", rows, columns[border:]))
        else:
            border = _find_border(scene, axis=1)
            parts.append(scene.part("train", rows[:border], columns))
            parts.append(scene.part("val", rows[border:], columns))
    held_out = [part for part in parts if part.split == "val"]
    return [_without_held_out(part, held_out) for part in parts if not part.area.is_empty]


def _find_border(scene: Scene, axis: int) -> int:
    """Return the column (axis 0) or row (axis 1) before which most centres of polygons lie, or most
    of the area if there are no two polygons.
    """
    start, stop = np.reshape(scene.area.bounds, (2, 2))[:, axis]
    border = start + _TRAINED_SHARE * (stop - start)
    if isinstance(scene.labels, DrawnClasses):
        is_inside = shapely.intersects(scene.area, scene.labels.shapes)
        centres = shapely.centroid(scene.labels.shapes[is_inside])
        if len(centres) > 1:
            border = np.quantile(shapely.get_coordinates(centres)[:, axis], _TRAINED_SHARE)
    return round(border)


def _without_held_out(part: Scene, held_out: Sequence[Scene]) -> Scene:
    """Remove what is held out of other rasters at the same place from a part to train on."""
    if part.split != "train":
        return part
    area = part.area
    for val in held_out:
        if val.grid is not part.grid:
            held_out_area = val.grid.to_map(val.area, part.grid.crs)
            area = area.difference(part.grid.to_pixels(held_out_area))
    return part._replace(area=area)


def write_held_out(folder: Path, parts: Sequence[Scene]) -> None:
    """Write the held-out areas, if there are any, into a folder for `--aoi`."""
    import geopandas
    import pandas

    crs = parts[0].grid.crs
    areas = [part.grid.to_map(part.area, crs) for part in parts if part.split == "val"]
    if areas:
        options: Any = dict(engine="pyogrio", geometry_type="MultiPolygon", promote_to_multi=True)
        table = geopandas.GeoDataFrame(geometry=pandas.concat(areas))
        table.to_file(folder / HELD_OUT, **options)
