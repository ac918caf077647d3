"""A user's labels of a raster: polygons with classes, or a raster of classes."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from ..datasets import IGNORED
from ..utils.cli import print_line
from ..utils.errors import preview
from .gdal import open_raster
from .polygons import list_layers, place_polygons, read_polygons, repair
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
_FEW_CLASSES = 5  # above which a column that is almost unique holds names of objects


class PlacedLabels(NamedTuple):
    """Polygons with the column `class`, in the coordinate system of a raster.

    Attributes:
        tally: How many of the file's count.
        are_boxes: Whether those with a class were drawn as boxes.
    """

    polygons: Any
    tally: Tally
    are_boxes: bool


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

    def is_raster(self, is_detector: bool) -> bool:
        """Return whether the labels are a raster of classes, and not polygons.

        Args:
            is_detector: Whether the labels are for objects, which need polygons.

        Raises:
            OSError: If they are neither.
            ValueError: If they are a raster, and polygons, a column or a layer are needed.
        """
        from pyogrio.errors import DataSourceError

        with suppress(DataSourceError):
            if list_layers(self.path):
                return False
        open_raster(self.path).close()
        if is_detector:
            raise ValueError(f"{self.option} has no polygons: a detector needs some")
        options = {"--class-column": self.class_column, "--layer": self.layer}
        for name, value in options.items():
            if value is not None:
                problem = f"{self.option} is a raster, which has neither columns nor layers"
                raise ValueError(f"{name} {value}: {problem}, leave it out")
        return True

    def place(
        self, crs: Any, area: Any, by_centre: bool = False, prefix: str = "the score counts"
    ) -> PlacedLabels:
        """Read the polygons in an area of a coordinate system, each once.

        Lines name the column, and count the classes and the polygons of NO_CLASS.

        Args:
            area: Polygon in this coordinate system, or None for all polygons.
            by_centre: Whether the centre of a polygon must lie in the area, not any part.
            prefix: What counts the labels, as the start of a line.

        Raises:
            ValueError: If the area has no polygon, the file no polygons with a class or no column
                of this name, or the column does not look like classes and was not given.
        """
        labels = self._read()
        tally = Tally("labels", len(labels), prefix)
        copies = labels.assign(shape=labels.normalize().to_wkb()).duplicated(["shape", "class"])
        labels = tally.keep(labels, ~copies, "drawn twice")
        placed = place_polygons(labels, crs, area, self.option, by_centre)
        tally.left_out["outside of the area"] = len(labels) - len(placed)
        tally.left_out["without a class"] = int((placed["class"] == NO_CLASS).sum())
        return PlacedLabels(placed, tally, are_boxes(labels.geometry[labels["class"] != NO_CLASS]))

    def _read(self) -> Any:
        """Return the file's polygons as a GeoDataFrame of the columns `class` and `geometry`."""
        import geopandas

        polygons = read_polygons(self.path, "--labels", self.layer)
        table = polygons.drop(columns=polygons.geometry.name)
        by_name = {column.lower(): column for column in reversed(table.columns)}
        candidates = [by_name[name] for name in CLASS_COLUMNS if name in by_name]
        column = self.class_column or next(iter(candidates), None)
        if column is None:
            columns = f"; columns: {preview(table.columns)}" if len(table.columns) else ""
            print_line(f"{self.option}: no column of classes, all are `{ONE_CLASS}`{columns}")
            names: Any = [ONE_CLASS] * len(polygons)
        elif column not in table:
            fix = f"give one of {', '.join(table)}"
            raise ValueError(f"--class-column {column}: {self.path} has no such column, {fix}")
        else:
            names = _to_names(table[column])
            self._check_classes(column, names, list(table))
        classes = {"class": np.array(names, object)}
        return geopandas.GeoDataFrame(
            classes, geometry=np.array(polygons.geometry), crs=polygons.crs
        )

    def _check_classes(self, column: str, names: Any, columns: Sequence[str]) -> None:
        """Print the classes of a column with their counts. Raise ValueError if there are none, or
        the column was not given and is almost unique or mostly empty.
        """
        named = names[names != NO_CLASS]
        empty = len(names) - len(named)
        problem = ""
        if named.empty:
            problem = f"no polygon has a {column}"
        elif self.class_column is None and len(named) < empty:
            problem = f"{empty} of {len(names)} polygons have no {column}, which are not classes"
        elif self.class_column is None and named.nunique() > max(_FEW_CLASSES, len(named) / 2):
            different = f"{named.nunique()} values of {column}"
            problem = f"{len(named)} polygons have {different}, which are not classes"
        if problem:
            fix = f"give --class-column, one of {', '.join(columns)}"
            raise ValueError(f"{self.option}: {problem}: {fix}")
        counts = named.value_counts().sort_index()
        described = [f"{name} {count}" for name, count in counts.items()]
        if len(described) > _MAX_LISTED:
            described[_MAX_LISTED:] = [f"and {len(described) - _MAX_LISTED} more"]
        print_line(f"{self.option}: classes by {column}: {', '.join(described)}")
        if empty:
            effect = "they are neither objects nor background"
            print_line(f"{self.option}: {empty} polygons have no {column}: {effect}")

    def are_known(self, labels: Any, classes: Sequence[str]) -> np.ndarray:
        """Return whether the class of each label is a model's. A line names the other classes.

        Raises:
            ValueError: If no label has one of the classes.
        """
        is_known = labels["class"].isin(classes)
        unknown = sorted(set(labels["class"][~is_known]))
        if unknown:
            problem = f"the model does not know {preview(unknown)}, but {preview(classes)}"
            if not is_known.any():
                raise ValueError(f"{self.option}: {problem}: rename them, or give --class-column")
            print_line(f"{self.option}: {problem}: these labels do not count")
        return is_known.to_numpy()


def _to_names(column: Any) -> Any:
    """Return the values of a column as names. Numbers are floats where one is missing."""
    names = column.convert_dtypes().astype("string").str.normalize("NFC")
    return names.str.strip().fillna(NO_CLASS)


def are_boxes(shapes: Any) -> bool:
    """Return whether all polygons are boxes along the axes of their coordinate system."""
    shapes = np.array(shapes)
    return bool((shapely.area(shapes) > 0.999 * shapely.area(shapely.envelope(shapes))).all())


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
        labels: Polygons with the column `class`, in the grid's coordinate system or another.
        grid: Raster or open file of rasterio that has the grid.
        names: Names of the classes, in the order of their numbers.

    Attributes:
        shapes: The polygons with a class in pixels, from large to small.
    """

    def __init__(self, labels: Any, grid: Any, names: Sequence[str]) -> None:
        if grid.crs is not None:
            labels = labels.to_crs(grid.crs)
        # From large to small. The order of the features in the file makes no difference.
        bounds = labels.bounds.to_numpy().T
        keys = labels["class"].to_numpy(str), *bounds, -shapely.area(np.array(labels.geometry))
        labels = labels.iloc[np.lexsort(keys)]
        numbers = {name: number for number, name in enumerate(names)} | {NO_CLASS: WITHOUT_CLASS}
        to_pixels = (~grid.transform).to_shapely()
        self._shapes = np.array(labels.geometry.affine_transform(to_pixels))
        self._indices = labels.index.to_numpy()
        self._class_numbers = labels["class"].map(numbers).fillna(UNKNOWN_CLASS).to_numpy(int)
        self.shapes = self._shapes[self._class_numbers >= 0]
        self._outside_number = numbers.get(BACKGROUND, UNLABELLED)  # of pixels without a polygon
        self._tree = shapely.STRtree(self._shapes)

    def cut(self, area: Any) -> list[CutObject]:
        """Cut the polygons to an area in pixels. Parts below a pixel are left out, whole polygons
        are not.
        """
        selected = np.sort(self._tree.query(area, predicate="intersects"))
        parts = repair(shapely.intersection(self._shapes[selected], area))
        shares = shapely.area(parts) / shapely.area(self._shapes[selected])
        is_kept = (shapely.area(parts) >= 1) | (shares >= 1)
        kept = selected[is_kept]
        columns = self._indices[kept], self._class_numbers[kept], parts[is_kept], shares[is_kept]
        return [CutObject(*fields) for fields in zip(*columns, strict=True)]

    def read(self, rows: slice, columns: slice) -> np.ndarray:
        """Return the class numbers of a window, (h, w), int32."""
        from rasterio.features import rasterize
        from rasterio.transform import Affine

        shape = rows.stop - rows.start, columns.stop - columns.start
        window = shapely.box(columns.start, rows.start, columns.stop, rows.stop)
        selected = np.sort(self._tree.query(window))  # the smallest is drawn last
        if not len(selected):
            return np.full(shape, self._outside_number, np.int32)
        drawn = zip(self._shapes[selected], self._class_numbers[selected], strict=True)
        shift = Affine.translation(columns.start, rows.start)
        return rasterize(drawn, shape, self._outside_number, transform=shift, dtype="int32")


class StoredClasses:
    """A raster of class numbers on a grid of pixels, by the nearest pixel.

    Its nodata, 255 and negative numbers are UNLABELLED.

    Args:
        grid: Raster or open file of rasterio that has the grid.

    Attributes:
        names: Names of the classes, if the raster is a map of `predict_raster`.

    Raises:
        ValueError: If the raster has several bands; or if one of both has no place, and their sizes
            differ.
    """

    def __init__(self, path: str | Path, grid: Any) -> None:
        from rasterio.vrt import WarpedVRT

        self._path = path
        self._file = open_raster(path)
        self.names: list[str] = json.loads(self._file.tags().get("CLASSES", "[]"))
        colors = [color.name for color in self._file.colorinterp]
        if len(colors) - colors.count("alpha") != 1:
            fix = "give a raster of one band, whose values are the numbers of the classes"
            raise ValueError(f"--labels {path} has {len(colors)} bands: {fix}")
        if self._file.crs is None or grid.crs is None:
            if self._file.shape != (grid.height, grid.width):
                raise ValueError(f"--labels {path} has no place on the raster, and another size")
            return
        pixels = dict(crs=grid.crs, transform=grid.transform, width=grid.width, height=grid.height)
        add_alpha = self._file.nodata is None and "alpha" not in colors
        self._file = WarpedVRT(self._file, add_alpha=add_alpha, **pixels)

    def cut(self, area: Any) -> list[CutObject]:
        """Return no polygons, as a raster has none."""
        return []

    def read(self, rows: slice, columns: slice) -> np.ndarray:
        """Return the class numbers of a window, (h, w), int32.

        Raises:
            ValueError: If a value is not a whole number.
        """
        window = (rows.start, rows.stop), (columns.start, columns.stop)
        stored = self._file.read(1, window=window, masked=True, out_dtype="float64")
        stored = stored.filled(IGNORED)
        stored[~np.isfinite(stored) | (stored == IGNORED) | (stored < 0)] = UNLABELLED
        numbers = stored.astype(np.int32)
        is_fraction = numbers != stored
        if is_fraction.any():
            problem = f"has a value {stored[is_fraction][0]:g}, which is not the number of a class"
            raise ValueError(f"--labels {self._path} {problem}: round the values first")
        return numbers
