"""A user's labels of a raster: polygons with classes, or a raster of classes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from .gdal import gdal, open_raster
from .polygons import footprint, in_pixels, read_polygons, repair

BACKGROUND = "background"
NO_CLASS = ""
"""Class of a polygon that is neither an object nor background."""
UNLABELLED = -1
"""Class number of pixels and polygons that do not count."""


class LabelFile(NamedTuple):
    """A user's file of labels.

    Attributes:
        class_column: Column of the classes. Default: `class`.
        class_name: Class of all polygons, in place of a column.
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
        with open_raster(raster) as file:
            if is_detector or not self.is_raster():
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


class CutObject(NamedTuple):
    """The part of a labelled polygon in an area, in pixels: position of the polygon in the labels,
    number of its class, or UNLABELLED, shape, and share of the polygon.
    """

    label: int
    number: int
    shape: Any
    share: float


class DrawnClasses:
    """Polygons on the pixels of a raster. Where they overlap, the smallest one counts. Pixels
    without a polygon are BACKGROUND, or UNLABELLED if there is no such class.

    Args:
        labels: Polygons with the column `class`, in the raster's coordinate system.
        raster: Raster or open file of rasterio.
        names: Names of the classes, in the order of their numbers.

    Attributes:
        shapes: The polygons (n,) in pixels, from large to small.
        numbers: Their class numbers (n,).
    """

    def __init__(self, labels: Any, raster: Any, names: Sequence[str]) -> None:
        shapes = in_pixels(labels.geometry, raster)
        order = np.argsort(-shapely.area(shapes), kind="stable")
        number_of_name = {name: number for number, name in enumerate(names)}
        numbers = labels["class"].map(number_of_name).fillna(UNLABELLED).to_numpy(int)
        self.names = list(names)
        self.shapes = shapes[order]
        self.numbers = numbers[order]
        self._outside_number = number_of_name.get(BACKGROUND, UNLABELLED)
        self._tree = shapely.STRtree(self.shapes)

    def cut(self, area: Any) -> list[CutObject]:
        """Cut the polygons to an area in pixels. Parts narrower than a pixel are left out."""
        selected = np.sort(self._tree.query(area, predicate="intersects"))
        parts = repair(shapely.intersection(self.shapes[selected], area))
        shares = shapely.area(parts) / shapely.area(self.shapes[selected])
        left, top, right, bottom = shapely.bounds(parts).T
        is_kept = (right - left >= 1) & (bottom - top >= 1)  # mmdet drops narrower boxes
        kept = selected[is_kept]
        columns = kept, self.numbers[kept].tolist(), parts[is_kept], shares[is_kept]
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
        drawn = zip(self.shapes[selected], self.numbers[selected], strict=True)
        shift = Affine.translation(columns.start, rows.start)
        return rasterize(drawn, shape, self._outside_number, transform=shift, dtype="int32")


class StoredClasses:
    """A raster of class numbers on the pixels of another raster. Its nodata, negative numbers and,
    of 8 bits, 255 are UNLABELLED.

    Args:
        raster: Raster or open file of rasterio, whose pixels it shares.

    Attributes:
        names: Names of the classes, if the raster is a map of `predict_raster`.

    Raises:
        ValueError: If the file has several bands, other pixels, or numbers with fractions.
    """

    def __init__(self, path: str | Path, raster: Any) -> None:
        file = open_raster(path)
        if file.count != 1 or not np.issubdtype(file.dtypes[0], np.integer):
            fix = f"convert it by `gdal_translate -b 1 -ot Byte {path} classes.tif`"
            raise ValueError(f"{path} is not one band of whole numbers: {fix}")
        corners = (0, 0), (raster.width, raster.height)
        placed = [~raster.transform * (file.transform * corner) for corner in corners]
        is_alike = file.crs == raster.crs and file.shape == (raster.height, raster.width)
        if not is_alike or not np.allclose(placed, corners, rtol=0, atol=0.01):
            extent = " ".join(f"{number:.17g}" for number in footprint(raster).total_bounds)
            grid = f"-t_srs {raster.crs} -te {extent} -ts {raster.width} {raster.height}"
            fix = f"align it by `gdalwarp -r near {grid} {path} classes.tif`"
            raise ValueError(f"{path} has other pixels than the raster: {fix}")
        self.names: list[str] = json.loads(file.tags().get("CLASSES", "[]"))
        self._file = file

    def cut(self, area: Any) -> list[CutObject]:
        """Return no polygons, as a raster has none."""
        return []

    def read(self, rows: slice, columns: slice) -> np.ndarray:
        """Return the class numbers of a window, (h, w), int32."""
        window = (rows.start, rows.stop), (columns.start, columns.stop)
        with gdal(self._file.name):
            stored = self._file.read(1, window=window, masked=True)
        numbers = stored.data.astype(np.int32)
        is_ignored = np.ma.getmaskarray(stored) | (numbers < 0)
        if stored.dtype == np.uint8:
            is_ignored |= numbers == 255
        numbers[is_ignored] = UNLABELLED
        return numbers
