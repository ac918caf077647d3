"""Labels of a raster on its grid of pixels: drawn as polygons, or stored as a raster of classes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from ..datasets import IGNORED
from .gdal import open_raster
from .labels import NO_CLASS
from .polygons import repair

BACKGROUND = "background"
UNLABELLED = -1
WITHOUT_CLASS = -2
UNKNOWN_CLASS = -3
"""Class numbers of pixels that do not count: without a label, in a label without a class, and in a
label of a class that has no number.
"""


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

    Its nodata, negative numbers and, of at most 255 classes, 255 are UNLABELLED.

    Args:
        grid: Raster or open file of rasterio that has the grid.

    Attributes:
        names: Names of the classes, if the raster is a map of `predict_raster`.

    Raises:
        ValueError: If the raster has several bands; or if one of both has no coordinate system, and
            their sizes or transforms differ.
    """

    def __init__(self, path: str | Path, grid: Any) -> None:
        from rasterio.vrt import WarpedVRT

        self._path = path
        self._file = open_raster(path)
        self._nodata = self._file.nodata  # which a VRT of 64 bits does not mask
        self.names: list[str] = json.loads(self._file.tags().get("CLASSES", "[]"))
        colors = [color.name for color in self._file.colorinterp]
        if len(colors) - colors.count("alpha") != 1:
            fix = "give a raster of one band, whose values are the numbers of the classes"
            raise ValueError(f"--labels {path} has {len(colors)} bands: {fix}")
        self._alpha = colors.index("alpha") + 1 if "alpha" in colors else None
        if self._file.crs is None or grid.crs is None:
            if self._file.shape != (grid.height, grid.width):
                raise ValueError(f"--labels {path} has no place on the raster, and another size")
            if _lie_apart(self._file, grid):
                fix = "assign the coordinate system of the raster to both in a GIS"
                raise ValueError(f"--labels {path} lies elsewhere than the raster: {fix}")
            return
        pixels = dict(crs=grid.crs, transform=grid.transform, width=grid.width, height=grid.height)
        add_alpha = self._file.nodata is None and self._alpha is None
        self._file = WarpedVRT(self._file, add_alpha=add_alpha, **pixels)
        if add_alpha:
            self._alpha = 2

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
        stored = stored.filled(np.nan)
        if self._alpha is not None:  # which GDAL takes as a mask in files of 8 bits alone
            stored[self._file.read(self._alpha, window=window) == 0] = np.nan
        is_ignored = (stored == IGNORED) & (len(self.names) <= IGNORED)
        is_ignored |= (stored == self._nodata) | (stored < 0) | ~np.isfinite(stored)
        stored[is_ignored] = UNLABELLED
        numbers = stored.astype(np.int32)
        is_fraction = numbers != stored
        if is_fraction.any():
            problem = f"has a value {stored[is_fraction][0]:g}, which is not the number of a class"
            raise ValueError(f"--labels {self._path} {problem}: round the values first")
        return numbers


def _lie_apart(file: Any, grid: Any) -> bool:
    """Return whether two grids of one size have transforms that place them otherwise."""
    if file.transform.is_identity or grid.transform.is_identity:
        return False
    corners = [(0, 0), (grid.width, grid.height)]
    placed = [~file.transform * (grid.transform * corner) for corner in corners]
    return not np.allclose(placed, corners, rtol=0, atol=0.5)  # pixels
