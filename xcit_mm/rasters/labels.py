"""A user's file of labels: polygons with classes, or a raster of classes."""

from pathlib import Path
from typing import Any, NamedTuple

from .gdal import open_raster
from .polygons import read_polygons

NO_CLASS = ""
"""Class of a polygon that is neither an object nor background."""


class LabelFile(NamedTuple):
    """A user's file of labels.

    Attributes:
        class_column: Column of the classes. Default: `class`.
        class_name: The class of all polygons, in place of a column.
        layer: Layer of the polygons. Default: the only one.
    """

    path: str | Path
    class_column: str | None = None
    class_name: str | None = None
    layer: str | None = None

    def is_raster(self) -> bool:
        """Return whether GDAL reads the file as a raster."""
        try:
            open_raster(self.path).close()
        except OSError:
            return False
        return True

    def check(self, raster: str | Path, is_detector: bool) -> None:
        """Read the labels of a raster once, so that an error ends a command before its work."""
        if is_detector or not self.is_raster():
            with open_raster(raster) as file:
                self.read(file.crs)

    def read(self, crs: Any) -> Any:
        """Read the polygons as a GeoDataFrame of `class` and `geometry` in a coordinate system.

        Raises:
            ValueError: If the file has no polygon, or no column of classes.
            RuntimeError: If GDAL cannot read the file.
        """
        polygons = read_polygons(self.path, crs, self.layer)
        classes: Any = self.class_name
        if classes is None:
            column = self.class_column or "class"
            columns = polygons.columns.drop("geometry")
            if column not in columns:
                problem = f"{self.path} has no column {column}, but {', '.join(columns) or 'none'}"
                raise ValueError(f"{problem}: give --class-column, or --class NAME for all")
            # Numbers are floats where one is missing.
            names = polygons[column].convert_dtypes().astype("string")
            classes = names.fillna(NO_CLASS).astype(object)
        return polygons[["geometry"]].assign(**{"class": classes})
