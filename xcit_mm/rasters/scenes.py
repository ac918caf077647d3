"""Labelled rasters: read by the same options, with the areas in which labels are complete."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely
from shapely.affinity import affine_transform

from ..utils.cli import print_line
from .gdal import pixel_size
from .labels import (
    BACKGROUND,
    NO_CLASS,
    DrawnClasses,
    LabelFile,
    StoredClasses,
    are_copies,
    is_raster,
    read_labels,
)
from .polygons import place_polygons, read_area, to_pixels
from .raster import Raster


class Grid(NamedTuple):
    """The pixels of a raster and their place, without an open file."""

    path: Path
    height: int
    width: int
    transform: Any
    crs: Any

    @property
    def box(self) -> Any:
        """The rectangle of the raster in pixels."""
        return shapely.box(0, 0, self.width, self.height)

    def to_pixels(self, shapes: Any) -> Any:
        """Return the union of a GeoSeries in pixels, cut to the raster."""
        return to_pixels(_to_crs(shapes, self.crs).union_all(), self).intersection(self.box)

    def to_map(self, shape: Any, crs: Any) -> Any:
        """Return a shape in pixels as a GeoSeries in a coordinate system."""
        import geopandas

        placed = affine_transform(shape, self.transform.to_shapely())
        return _to_crs(geopandas.GeoSeries([placed], crs=self.crs), crs)


class Scene(NamedTuple):
    """A raster and its labels.

    Attributes:
        area: Where the labels are complete, in pixels.
        labels: The labels in pixels.
    """

    grid: Grid
    area: Any
    labels: DrawnClasses | StoredClasses


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
        grids.append(Grid(path, raster.height, raster.width, raster.transform, raster.crs))
        bounds[path] = raster.bounds
    if len(grids) > 1 and any(grid.transform.is_identity for grid in grids):
        raise ValueError(f"{paths[0].parent} has rasters without a place: cut each by itself")
    common = {name: option for name, option in options.items() if name != "percentiles"}
    if any(pairs is not None for pairs in bounds.values()):
        common["bounds"] = _common_bounds(bounds)
    return grids, common


def _common_bounds(bounds: dict[Path, np.ndarray | None]) -> list[float]:
    """Return the lowest and the highest bounds of all rasters, a pair for each band."""
    unscaled = [path for path, pairs in bounds.items() if pairs is None]
    if unscaled:
        problem = f"{unscaled[0]} has 8 bits, and other rasters have more"
        raise ValueError(f"{problem}: give --bounds for all, or train each kind by itself")
    pairs = np.array(list(bounds.values()))
    lowest = pairs[:, :, 0].min(axis=0)
    highest = pairs[:, :, 1].max(axis=0)
    return [float(f"{bound:.6g}") for bound in np.stack([lowest, highest], axis=1).ravel()]


def find_areas(grids: Sequence[Grid], aoi: str | Path | None) -> list[Any]:
    """Return the area of each raster in which the labels are complete, in its pixels."""
    import geopandas
    import pandas

    if aoi is None:
        print_line("without --aoi, labels count as complete on all of the rasters")
        return [grid.box for grid in grids]
    crs = grids[0].crs
    places = pandas.concat([grid.to_map(grid.box, crs) for grid in grids])
    area = geopandas.GeoSeries([read_area(aoi, crs, places)], crs=crs)
    return [grid.to_pixels(area) for grid in grids]


def label_scenes(
    grids: Sequence[Grid],
    areas: Sequence[Any],
    source: LabelFile,
    is_detector: bool,
    known: Sequence[str] = (),
) -> tuple[list[Scene], list[str], bool]:
    """Place the labels of a file on rasters. Lines tell which labels are left out.

    Args:
        known: Names of the classes of a model, whose order counts if the labels have the same.

    Returns:
        The rasters with their labels; the names of the classes in the order of their numbers, none
        of a raster of classes; and whether a label is more than a box.

    Raises:
        ValueError: If no label lies in the areas, or a detector has a raster of classes.
    """
    import pandas

    places = list(zip(grids, areas, strict=True))
    if is_raster(source.path, source.class_column):
        if is_detector:
            raise ValueError(f"{source.option} has no polygons: a detector needs some")
        scenes = [Scene(grid, area, StoredClasses(source.path, grid)) for grid, area in places]
        return scenes, [], True
    polygons = read_labels(source)
    polygons = polygons[~are_copies(polygons, source)]
    crs = grids[0].crs
    labelled = pandas.concat([grid.to_map(area, crs) for grid, area in places]).union_all()
    placed = place_polygons(polygons, crs, labelled, source.option)
    classes = sorted(set(placed["class"]) - {NO_CLASS})
    if not classes:
        raise ValueError(f"{source.option}: no polygon in the area has a class")
    if not is_detector:
        classes = [BACKGROUND, *(name for name in classes if name != BACKGROUND)]
    if set(classes) == set(known):
        classes = list(known)
    scenes = []
    has_boxes = True
    for grid, area in places:
        labels = DrawnClasses(_to_crs(placed, grid.crs), grid.transform, classes)
        has_boxes &= _are_boxes(labels.shapes)
        scenes.append(Scene(grid, area, labels))
    drawn = polygons.geometry[polygons["class"] != NO_CLASS]
    # Boxes are drawn along the axes of the raster, or of their own coordinate system.
    return scenes, classes, not (has_boxes or _are_boxes(drawn))


def _to_crs(shapes: Any, crs: Any) -> Any:
    """Convert shapes. Without a coordinate system, they stay."""
    return shapes if crs is None else shapes.to_crs(crs)


def _are_boxes(shapes: Any) -> bool:
    """Return whether all polygons are boxes along the axes of their coordinate system."""
    shapes = np.array(shapes)
    return bool((shapely.area(shapes) > 0.999 * shapely.area(shapely.envelope(shapes))).all())
