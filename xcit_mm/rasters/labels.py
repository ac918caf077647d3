"""A user's labels of a raster: polygons with classes, or a raster of classes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..utils.cli import print_line
from .gdal import open_raster
from .polygons import describe_extent, read_polygons, repair, to_crs

CLASS_COLUMNS = ("class", "label", "name", "category", "type")
ONE_CLASS = "object"
BACKGROUND = "background"
UNLABELLED = -1
_IGNORED = 255  # in rasters of classes, as in mmseg


def read_labels(path: str | Path, class_column: str | None) -> Any:
    """Read polygons with their classes, as a GeoDataFrame of the columns `class` and `geometry`.

    A line says how many polygons without a class are left out.

    Args:
        class_column: Column of the classes. Default: the first of CLASS_COLUMNS in the file, in
            small or capital letters. Without one, each class is `object`.

    Raises:
        ValueError: If the file has no polygons with a class, or no such column.
    """
    import geopandas

    polygons = read_polygons(path, "--labels")
    names = polygons.columns.drop(polygons.geometry.name)
    if class_column is not None and class_column not in names:
        fix = f"give one of {', '.join(names)}"
        raise ValueError(f"--class-column {class_column}: {path} has no such column, {fix}")
    if class_column is None:
        columns = [name for known in CLASS_COLUMNS for name in names if name.lower() == known]
        class_column = columns[0] if columns else None
    if class_column is None:
        classes = np.full(len(polygons), ONE_CLASS, object)
    else:
        classes = np.array([_class_name(value) for value in polygons[class_column]], object)
    has_class = classes != ""
    if not has_class.all():
        count = np.sum(~has_class)
        print_line(f"--labels {path}: {count} polygons have no {class_column} and are left out")
    if not has_class.any():
        raise ValueError(f"--labels {path}: no polygon has a {class_column}: give --class-column")
    shapes = np.array(polygons.geometry)[has_class]
    return geopandas.GeoDataFrame({"class": classes[has_class]}, geometry=shapes, crs=polygons.crs)


def place_labels(polygons: Any, crs: Any, area: Any, option: str, by_centre: bool = False) -> Any:
    """Convert labels to the coordinate system of an area, and select those in it. A line counts the
    others.

    Args:
        area: Polygon, or None for all labels.
        option: Option that the user gave the labels by, for messages.
        by_centre: Whether their centres must lie in the area, or any part of them.

    Raises:
        ValueError: If there are none. The message has both extents.
    """
    placed = to_crs(polygons, crs, option)
    if area is None:
        return placed
    is_inside = has_centre_in(area, placed) if by_centre else placed.intersects(area)
    outside = len(polygons) - int(np.sum(is_inside))
    if outside == len(polygons):
        here = describe_extent(polygons.total_bounds, polygons.crs)
        there = describe_extent(area.bounds, crs)
        raise ValueError(f"{option} ({here}) has no polygon in the area ({there})")
    if outside:
        print_line(f"{option}: {outside} of {len(polygons)} polygons lie outside of the area")
    return placed[is_inside]


def has_centre_in(area: Any, polygons: Any) -> np.ndarray:
    """Return whether the centre of each polygon lies in an area."""
    return shapely.contains(area, shapely.centroid(np.array(polygons.geometry)))


def are_boxes(shapes: Any) -> bool:
    """Return whether all polygons are boxes along the axes of their coordinate system."""
    shapes = np.array(shapes)
    return bool((shapely.area(shapes) > 0.999 * shapely.area(shapely.envelope(shapes))).all())


def _class_name(value: Any) -> str:
    """Return the name of a class, or nothing if it is missing, which makes numbers floats."""
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


class DrawnClasses:
    """Class numbers of the pixels of a grid, from polygons, the smaller ones above the larger.

    Pixels without a polygon are of the class `background`, or without such a class UNLABELLED.

    Attributes:
        shapes: The polygons in pixels, from large to small.
        numbers: Class numbers of the polygons.
        index: Their index in `labels`.

    Args:
        labels: Polygons in the grid's coordinate system, with the column `class`.
        names: Names of the classes, in the order of their numbers.
    """

    def __init__(self, labels: Any, transform: Any, names: Sequence[str]) -> None:
        labels = labels.iloc[np.argsort(-shapely.area(np.array(labels.geometry)), kind="stable")]
        numbers = {name: number for number, name in enumerate(names)}
        self.index = labels.index.to_numpy()
        self.numbers = labels["class"].map(numbers).to_numpy()
        self._rest = numbers.get(BACKGROUND, UNLABELLED)
        self.shapes = np.array(labels.geometry.affine_transform((~transform).to_shapely()))
        self._tree = shapely.STRtree(self.shapes)
        self._shift = type(transform).translation

    def cut(self, area: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the positions of the polygons in an area in pixels, their parts in it, and the
        shares of these parts.
        """
        which = np.sort(self._tree.query(area, predicate="intersects"))
        parts = repair(shapely.intersection(self.shapes[which], area))
        areas = shapely.area(parts)
        shares = areas / shapely.area(self.shapes[which])
        is_visible = (areas >= 1) | (shares >= 1)
        return which[is_visible], parts[is_visible], shares[is_visible]

    def read(self, rows: slice, columns: slice) -> np.ndarray:
        """Return the class numbers of a window, (h, w), int32."""
        from rasterio.features import rasterize

        shape = rows.stop - rows.start, columns.stop - columns.start
        window = shapely.box(columns.start, rows.start, columns.stop, rows.stop)
        which = np.sort(self._tree.query(window))
        if not len(which):
            return np.full(shape, self._rest, np.int32)
        drawn = zip(self.shapes[which], self.numbers[which], strict=True)
        shift = self._shift(columns.start, rows.start)
        return rasterize(drawn, shape, self._rest, transform=shift, dtype="int32")


class StoredClasses:
    """Class numbers of the pixels of a grid, from a raster of classes, by the nearest pixel.

    Its nodata and 255 are UNLABELLED.

    Args:
        grid: Open file of rasterio, or `Raster`, with the grid.

    Raises:
        ValueError: If the raster has no place, and not the size of the grid.
    """

    def __init__(self, path: str | Path, grid: Any) -> None:
        from rasterio.vrt import WarpedVRT

        self._file = open_raster(path)
        if self._file.crs is None or grid.crs is None:
            if self._file.shape != (grid.height, grid.width):
                raise ValueError(f"--labels {path} has no place on the raster, and another size")
            return
        nodata = _IGNORED if self._file.nodata is None else self._file.nodata
        place = dict(crs=grid.crs, transform=grid.transform, width=grid.width, height=grid.height)
        self._file = WarpedVRT(self._file, nodata=nodata, **place)

    def cut(self, area: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return no polygons, as a raster has none."""
        return np.zeros(0, int), np.zeros(0, object), np.zeros(0)

    def read(self, rows: slice, columns: slice) -> np.ndarray:
        """Return the class numbers of a window, (h, w), int32."""
        span = (rows.start, rows.stop), (columns.start, columns.stop)
        values = self._file.read(1, window=span, masked=True)
        numbers = values.filled(_IGNORED).astype(np.int32)
        numbers[numbers == _IGNORED] = UNLABELLED
        return numbers


def is_raster(path: str | Path) -> bool:
    """Return whether labels are a raster of classes, and not polygons.

    Raises:
        OSError: If they are neither.
    """
    import pyogrio

    try:
        return Path(path).suffix != ".parquet" and not len(pyogrio.list_layers(path))
    except pyogrio.errors.DataSourceError:
        open_raster(path).close()
        return True
