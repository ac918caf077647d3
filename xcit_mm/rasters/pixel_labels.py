"""Labels on the pixels of a raster: drawn as polygons, or stored as a raster of classes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from ..datasets import IGNORED
from .gdal import gdal, open_raster
from .polygons import footprint, in_pixels, repair

BACKGROUND = "background"
UNLABELLED = -1
"""Class number of pixels and polygons without one of the classes."""


class CutObject(NamedTuple):
    """A labelled polygon, cut to an area.

    Attributes:
        label: Position of the polygon in the labels.
        number: Number of its class, or UNLABELLED.
        shape: Its part in the area, in pixels.
        share: Share of the polygon in the area.
    """

    label: int
    number: int
    shape: Any
    share: float


class DrawnClasses:
    """Polygons on the pixels of a raster. Where they overlap, the smallest one counts.

    Pixels without a polygon have the class `background`, or UNLABELLED if there is no such class.

    Args:
        labels: Polygons with the column `class`, in the raster's coordinate system.
        raster: Raster or open file of rasterio.
        names: Names of the classes, in the order of their numbers.

    Attributes:
        names: Names of the classes.
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
        """Cut the polygons to an area in pixels. Parts below a pixel are left out, whole polygons
        are not.
        """
        selected = np.sort(self._tree.query(area, predicate="intersects"))
        parts = repair(shapely.intersection(self.shapes[selected], area))
        shares = shapely.area(parts) / shapely.area(self.shapes[selected])
        is_kept = (shapely.area(parts) >= 1) | (shares >= 1)
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
    """A raster of class numbers on the pixels of another raster.

    Its nodata, negative numbers and, of 8 bits, 255 are UNLABELLED.

    Args:
        raster: Raster or open file of rasterio, whose pixels it shares.

    Attributes:
        names: Names of the classes, if the raster is a map of `predict_raster`.

    Raises:
        ValueError: If the file has several bands or other pixels, or holds no whole numbers.
    """

    def __init__(self, path: str | Path, raster: Any) -> None:
        file = open_raster(path)
        if file.count != 1 or not np.issubdtype(file.dtypes[0], np.integer):
            fix = f"convert it by `gdal_translate -b 1 -ot Byte {path} classes.tif`"
            raise ValueError(f"{path} is not one band of whole numbers: {fix}")
        size = raster.width, raster.height
        corners = [(0, 0), size]
        placed = [~raster.transform * (file.transform * corner) for corner in corners]
        has_size = (file.width, file.height) == size and file.crs == raster.crs
        if not has_size or not np.allclose(placed, corners, rtol=0, atol=0.01):
            extent = " ".join(f"{number:.17g}" for number in footprint(raster).total_bounds)
            grid = f"-t_srs {raster.crs} -te {extent} -ts {raster.width} {raster.height}"
            fix = f"gdalwarp -r near {grid} {path} classes.tif"
            raise ValueError(f"{path} has other pixels than the raster: align it by `{fix}`")
        self.names: list[str] = json.loads(file.tags().get("CLASSES", "[]"))
        self._file = file

    def read(self, rows: slice, columns: slice) -> np.ndarray:
        """Return the class numbers of a window, (h, w), int32."""
        window = (rows.start, rows.stop), (columns.start, columns.stop)
        with gdal(self._file.name):
            stored = self._file.read(1, window=window, masked=True)
        numbers = stored.data.astype(np.int32)
        is_ignored = np.ma.getmaskarray(stored) | (numbers < 0)
        if stored.dtype == np.uint8:
            is_ignored |= numbers == IGNORED
        numbers[is_ignored] = UNLABELLED
        return numbers
