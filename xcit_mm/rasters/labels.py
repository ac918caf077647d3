"""A user's labels of a raster: polygons with classes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from ..utils.errors import ArgumentError
from ..utils.output import say
from .gdal import gdal, open_raster
from .polygons import Polygons, box_of, burn, in_pixels, name_of, read_polygons, shared_part

BACKGROUND = "background"
NO_CLASS = ""
"""Class of a polygon that is neither an object nor background."""
UNLABELLED = -1
"""Class number of pixels and polygons that do not count."""


class LabelFile(NamedTuple):
    """A user's labels, in a vector file or in memory.

    Attributes:
        polygons: The path of the file, or a GeoDataFrame.
        class_column: Column of the classes. Default: `class`.
        class_name: Class of all polygons, in place of a column.
        layer: Layer of the polygons. Default: the only one.
    """

    polygons: Polygons
    class_column: str | None = None
    class_name: str | None = None
    layer: str | None = None

    @property
    def name(self) -> str:
        """How messages call the labels."""
        return name_of(self.polygons)

    def check(self, raster: str | Path) -> None:
        """Read the labels of a raster once, so that an error ends a command before its work."""
        with gdal(raster), open_raster(raster) as file:
            self.read(file.crs)

    def read(self, crs: Any) -> Any:
        """Read the polygons as a GeoDataFrame, with a column `class`, in a coordinate system.

        Raises:
            ArgumentError: If there is no polygon, or no column of classes.
            RuntimeError: If GDAL cannot read the file.
        """
        polygons = read_polygons(self.polygons, crs, self.layer)
        if polygons.empty:
            raise ArgumentError("labels", f"{self.name} has no polygons on the map of the raster")
        classes: Any = self.class_name
        if classes is None:
            column = self.class_column or "class"
            columns = polygons.columns.drop(polygons.geometry.name)
            if column not in columns:
                problem = f"{self.name} has no column {column}, only {', '.join(columns) or 'none'}"
                raise ArgumentError("class_column", f"{problem}: choose one, or one class for all")
            # Numbers are floats where one is missing.
            names = polygons[column].convert_dtypes().astype("string")
            classes = names.fillna(NO_CLASS).astype(object)
        return polygons[[polygons.geometry.name]].assign(**{"class": classes})


def note_similar(names: Iterable[str], source: str) -> None:
    """Print a message if names of classes differ only by case or spaces."""
    for name, count in Counter("".join(name.split()).casefold() for name in set(names)).items():
        if count > 1:
            say(f"{source}: {count} classes are all {name!r} without case and spaces")


class Labels:
    """The polygons of `LabelFile.read` on the pixels of a raster, or of an open file of rasterio.

    Attributes:
        names: Names of the classes, in the order of their numbers.
        shapes: The polygons in pixels, from large to small.
        numbers: Their class numbers.
        objects: The polygons that have a class.
        have_masks: Whether some of these are not boxes.
    """

    def __init__(self, polygons: Any, raster: Any, names: Sequence[str]) -> None:
        shapes = in_pixels(polygons.geometry, raster)
        order = np.argsort(-shapely.area(shapes), kind="stable")
        number_of_name = {name: number for number, name in enumerate(names)}
        numbers = polygons["class"].map(number_of_name).fillna(UNLABELLED).to_numpy(int)
        self.names = list(names)
        self.shapes = shapes[order]
        self.numbers = numbers[order]
        self.objects = self.shapes[self.numbers >= 0]
        boxes = shapely.envelope(self.objects)
        self.have_masks = (shapely.area(self.objects) < 0.999 * shapely.area(boxes)).any()
        self._outside_number = number_of_name.get(BACKGROUND, UNLABELLED)
        self._tree = shapely.STRtree(self.shapes)

    def cut(self, area: Any) -> Iterator[tuple[int, Any]]:
        """Cut the polygons to an area in pixels, and leave out parts narrower than a pixel.

        Yields:
            The position of each polygon in the area, and its part there.
        """
        for label in np.sort(self._tree.query(area, predicate="intersects")).tolist():
            part = shared_part(self.shapes[label], area)
            left, top, right, bottom = part.bounds
            if right - left >= 1 and bottom - top >= 1:  # mmdet drops narrower boxes
                yield label, part

    def read(self, rows: slice, columns: slice) -> np.ndarray:
        """Return the class number of each pixel of a window, (h, w).

        The smallest polygon on a pixel counts. Pixels without one are of the class BACKGROUND, or
        UNLABELLED if there is no such class.
        """
        window = box_of(rows, columns)
        selected = np.sort(self._tree.query(window))
        drawn = zip(self.shapes[selected], self.numbers[selected], strict=True)
        return burn([(window, self._outside_number), *drawn], rows, columns)
