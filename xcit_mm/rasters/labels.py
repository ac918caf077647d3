"""A user's file of labels: polygons with classes, or a raster of classes."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from ..utils.cli import print_line
from ..utils.errors import preview
from .gdal import SUFFIXES, local_files, open_raster
from .polygons import list_layers, place_polygons, read_polygons
from .tally import Tally

CLASS_COLUMNS = ("class", "label", "name", "category", "type")
ONE_CLASS = "object"
NO_CLASS = ""
"""Class of a polygon that is neither an object nor background."""
_PARTS = (".shp", ".shx", ".dbf", ".prj", ".cpg", ".tab", ".dat", ".map", ".id", ".mif", ".mid")
_MANY_PARTS = 3  # of a polygon that is hardly one object
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

    @property
    def files(self) -> list[Path]:
        """The local files that hold the labels, such as the parts of a Shapefile."""
        path = Path(self.path)
        if path.suffix.lower() in SUFFIXES:
            with open_raster(path) as file:
                return local_files(file)
        if path.is_dir():
            return sorted(file for file in path.iterdir() if file.is_file())
        parts = [path.with_suffix(suffix) for suffix in _PARTS if path.suffix.lower() in _PARTS]
        return [file for file in dict.fromkeys([path, *parts]) if file.is_file()]

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
            by_centre: Whether the centre of a polygon with a class must lie in the area, not any
                part.
            prefix: What counts the labels, as the start of a line.

        Raises:
            ValueError: If the area has no polygon, the file no polygons with a class or no column
                of this name, or the column does not look like classes and was not given.
        """
        labels = self._read()
        tally = Tally("labels", len(labels), prefix)
        copies = labels.assign(shape=labels.normalize().to_wkb()).duplicated(["shape", "class"])
        labels = tally.keep(labels, ~copies, "drawn twice")
        has_class = labels["class"] != NO_CLASS
        placed = place_polygons(labels, crs, area, self.option, has_class if by_centre else None)
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

    def note_parts(self, labels: Any) -> None:
        """Print a line if labels have many parts, as those that a GIS has dissolved by class."""
        counts = shapely.get_num_geometries(np.array(labels.geometry))
        divided = counts >= _MANY_PARTS
        if divided.any():
            problem = f"{divided.sum()} labels have up to {counts.max()} parts"
            fix = "divide them in a GIS (Multipart to singleparts) if these are several"
            print_line(f"{self.option}: {problem}, and count as one object each: {fix}")

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
