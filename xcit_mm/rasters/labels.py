"""A user's labels of a raster: polygons with classes, or a raster of classes."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from ..datasets import IGNORED
from ..utils.cli import print_line
from ..utils.errors import preview
from .gdal import open_raster
from .polygons import describe_extent, read_polygons, repair, to_crs
from .tally import Tally

CLASS_COLUMNS = ("class", "label", "name", "category", "type")
ONE_CLASS = "object"
BACKGROUND = "background"
NO_CLASS = ""
"""Class of a polygon that is neither an object nor background."""
UNLABELLED = -1
WITHOUT_CLASS = -2
UNKNOWN_CLASS = -3
"""Class numbers of pixels that do not count: without a label, in a label without a class, and in a
label of a class that has no number.
"""
_MAX_LISTED = 9  # classes in a line
_MANY = 5  # classes, above which a column that is almost unique holds names of objects


class LabelFile(NamedTuple):
    """A user's file of labels.

    Attributes:
        class_column: Column of the classes. Default: the first of CLASS_COLUMNS in the file, in
            small or capital letters. Without such a column, all classes are ONE_CLASS.
        layer: Layer of the polygons. Default: the first that has some.
    """

    path: str | Path
    class_column: str | None = None
    layer: str | None = None

    @property
    def option(self) -> str:
        """How a user gave the file, for messages."""
        return f"--labels {self.path}"


def read_labels(source: LabelFile) -> Any:
    """Read polygons with their classes, as a GeoDataFrame of the columns `class` and `geometry`.

    Lines name the column, and count the classes and the polygons of NO_CLASS.

    Raises:
        ValueError: If the file has no polygons with a class, no column of this name, or a column
            that does not look like classes and was not given.
    """
    import geopandas

    polygons = read_polygons(source.path, "--labels", source.layer)
    table = polygons.drop(columns=polygons.geometry.name)
    column = source.class_column or _find_class_column(table.columns)
    if column is None:
        print_line(f"{source.option}: no column of classes, all are `{ONE_CLASS}`{_hint(table)}")
        names = [ONE_CLASS] * len(polygons)
    elif column not in table:
        fix = f"give one of {', '.join(table)}"
        raise ValueError(f"--class-column {column}: {source.path} has no such column, {fix}")
    else:
        names = [_class_name(value) for value in table[column]]
        _check_classes(source, column, names, table)
    return geopandas.GeoDataFrame(
        {"class": names}, geometry=np.array(polygons.geometry), crs=polygons.crs
    )


def _check_classes(source: LabelFile, column: str, names: Sequence[str], table: Any) -> None:
    """Print the classes of a column with their counts.

    Raises:
        ValueError: If no polygon has a class, or the column was not given and is almost unique or
            mostly empty.
    """
    counts = Counter(name for name in names if name != NO_CLASS)
    empty = len(names) - counts.total()
    fix = f"give --class-column{_hint(table.drop(columns=column))}"
    if not counts:
        raise ValueError(f"{source.option}: no polygon has a {column}: {fix}")
    if source.class_column is None:
        problem = ""
        if 2 * empty > len(names):
            problem = f"{empty} of {len(names)} polygons have no {column}"
        elif _is_almost_unique(counts):
            problem = f"{counts.total()} polygons have {len(counts)} values of {column}"
        if problem:
            raise ValueError(f"{source.option}: {problem}, which are no classes: {fix}")
    described = [f"{name} {count}" for name, count in sorted(counts.items())]
    if len(described) > _MAX_LISTED:
        described[_MAX_LISTED:] = [f"and {len(described) - _MAX_LISTED} more"]
    print_line(f"{source.option}: classes by {column}: {', '.join(described)}")
    if empty:
        effect = "they are neither objects nor background"
        print_line(f"{source.option}: {empty} polygons have no {column}: {effect}")


def _is_almost_unique(counts: Counter[str]) -> bool:
    return len(counts) > max(_MANY, counts.total() / 2)


def _hint(table: Any) -> str:
    """Describe the columns that might have the classes, for the end of a line."""
    columns = []
    for column in table:
        counts = Counter(_class_name(value) for value in table[column])
        del counts[NO_CLASS]
        if counts and not _is_almost_unique(counts):
            columns.append(f"{column} ({preview(counts)})")
    return f"; columns: {', '.join(columns)}" if columns else ""


def _find_class_column(columns: Sequence[str]) -> str | None:
    """Return the column that CLASS_COLUMNS names first, in small or capital letters, or None."""
    by_name = {column.lower(): column for column in reversed(columns)}
    known = [by_name[name] for name in CLASS_COLUMNS if name in by_name]
    return known[0] if known else None


def select_known(polygons: Any, classes: Sequence[str], source: LabelFile, tally: Tally) -> Any:
    """Select the polygons of a model's classes. A line names the other classes.

    Raises:
        ValueError: If no polygon has one of the classes.
    """
    is_known = polygons["class"].isin(classes)
    unknown = sorted(set(polygons["class"][~is_known]))
    if unknown:
        problem = f"the model does not know {preview(unknown)}, but {preview(classes)}"
        if not is_known.any():
            raise ValueError(f"{source.option}: {problem}: give --class-column")
        print_line(f"{source.option}: {problem}: these labels do not count")
    tally.leave_out("of a class that the model does not know", int((~is_known).sum()))
    return polygons[is_known]


def place_labels(polygons: Any, crs: Any, area: Any, option: str, by_centre: bool = False) -> Any:
    """Convert labels to a coordinate system, and select those in an area. A line counts the labels
    outside.

    Args:
        area: Polygon in this coordinate system, or None for all labels.
        option: Option that the user gave the labels by, for messages.
        by_centre: Whether the centre of a label must lie in the area. Default: any part of it.

    Raises:
        ValueError: If no label lies in the area. The message has both extents.
    """
    placed = to_crs(polygons, crs, option)
    if area is None:
        return placed
    is_inside = has_centre_in(area, placed) if by_centre else placed.intersects(area)
    outside = len(polygons) - int(np.sum(is_inside))
    if outside == len(polygons):
        labels_extent = describe_extent(polygons.total_bounds, polygons.crs)
        area_extent = describe_extent(area.bounds, crs)
        raise ValueError(f"{option} ({labels_extent}) has no polygon in the area ({area_extent})")
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
    """Return the name of a class, NO_CLASS if it is missing."""
    if value is None or value != value:  # NaN
        return NO_CLASS
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas makes numbers floats where one is missing
    return str(value).strip()


class CutObject(NamedTuple):
    """A labelled polygon, cut to an area.

    Attributes:
        label: Index of the polygon in the labels.
        number: Number of its class, negative without one.
        shape: Its part in the area, in pixels.
        share: Share of the polygon in the area.
    """

    label: int
    number: int
    shape: Any
    share: float


class DrawnClasses:
    """Polygons on a grid of pixels. Where polygons overlap, the smallest one counts.

    Pixels without a polygon have the class `background`, or UNLABELLED if there is no such class.
    Those in polygons without a class are WITHOUT_CLASS or UNKNOWN_CLASS.

    Args:
        labels: Polygons in the grid's coordinate system, with the column `class`.
        transform: affine.Affine of the grid.
        names: Names of the classes, in the order of their numbers.

    Attributes:
        shapes: The polygons with a class in pixels, from large to small.
    """

    def __init__(self, labels: Any, transform: Any, names: Sequence[str]) -> None:
        shapes = np.array(labels.geometry)
        # The order of the features in the file makes no difference.
        keys = labels["class"].to_numpy(str), *shapely.bounds(shapes).T, -shapely.area(shapes)
        labels = labels.iloc[np.lexsort(keys)]
        numbers = {name: number for number, name in enumerate(names)} | {NO_CLASS: WITHOUT_CLASS}
        self._shapes = np.array(labels.geometry.affine_transform((~transform).to_shapely()))
        self._index = labels.index.to_numpy()
        self._numbers = labels["class"].map(numbers).fillna(UNKNOWN_CLASS).to_numpy(int)
        self.shapes = self._shapes[self._numbers >= 0]
        self._rest = numbers.get(BACKGROUND, UNLABELLED)
        self._tree = shapely.STRtree(self._shapes)
        self._shift = type(transform).translation

    def cut(self, area: Any) -> list[CutObject]:
        """Cut the polygons to an area in pixels. Parts below a pixel are left out, whole polygons
        are not.
        """
        selected = np.sort(self._tree.query(area, predicate="intersects"))
        parts = repair(shapely.intersection(self._shapes[selected], area))
        shares = shapely.area(parts) / shapely.area(self._shapes[selected])
        objects = []
        for position, part, share in zip(selected, parts, shares, strict=True):
            if part.area >= 1 or share >= 1:
                label = self._index[position]
                objects.append(CutObject(label, self._numbers[position], part, share))
        return objects

    def read(self, rows: slice, columns: slice) -> np.ndarray:
        """Return the class numbers of a window, (h, w), int32."""
        from rasterio.features import rasterize

        shape = rows.stop - rows.start, columns.stop - columns.start
        window = shapely.box(columns.start, rows.start, columns.stop, rows.stop)
        selected = np.sort(self._tree.query(window))
        if not len(selected):
            return np.full(shape, self._rest, np.int32)
        drawn = zip(self._shapes[selected], self._numbers[selected], strict=True)
        shift = self._shift(columns.start, rows.start)
        return rasterize(drawn, shape, self._rest, transform=shift, dtype="int32")


class StoredClasses:
    """A raster of class numbers on a grid of pixels, by the nearest pixel.

    Its nodata and 255 are UNLABELLED.

    Args:
        grid: Raster or open file of rasterio that has the grid.

    Raises:
        ValueError: If one of both has no place, and their sizes differ.
    """

    def __init__(self, path: str | Path, grid: Any) -> None:
        from rasterio.vrt import WarpedVRT

        self._file = open_raster(path)
        if self._file.crs is None or grid.crs is None:
            if self._file.shape != (grid.height, grid.width):
                raise ValueError(f"--labels {path} has no place on the raster, and another size")
            return
        nodata = IGNORED if self._file.nodata is None else self._file.nodata
        place = dict(crs=grid.crs, transform=grid.transform, width=grid.width, height=grid.height)
        self._file = WarpedVRT(self._file, nodata=nodata, **place)

    def cut(self, area: Any) -> list[CutObject]:
        """Return no polygons, as a raster has none."""
        return []

    def read(self, rows: slice, columns: slice) -> np.ndarray:
        """Return the class numbers of a window, (h, w), int32."""
        window = (rows.start, rows.stop), (columns.start, columns.stop)
        stored = self._file.read(1, window=window, masked=True)
        numbers = stored.filled(IGNORED).astype(np.int32)
        numbers[numbers == IGNORED] = UNLABELLED
        return numbers


def is_raster(path: str | Path, class_column: str | None) -> bool:
    """Return whether labels are a raster of classes, and not polygons.

    Raises:
        OSError: If they are neither.
        ValueError: If they are a raster, and a column is to give the classes.
    """
    import pyogrio

    try:
        if Path(path).suffix == ".parquet" or len(pyogrio.list_layers(path)):
            return False
    except pyogrio.errors.DataSourceError:
        open_raster(path).close()
    if class_column is not None:
        problem = f"--labels {path} is a raster, which has no columns"
        raise ValueError(f"--class-column {class_column}: {problem}, leave it out")
    return True
