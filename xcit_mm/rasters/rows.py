"""The tiles of a raster, row by row: each row is predicted into a file of its own."""

import zlib
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from ..prediction.cluster import rank_and_size
from ..prediction.prediction import Prediction
from ..prediction.predictor import Predictor
from ..prediction.seams import Objects, concatenate, merge_objects
from ..prediction.tiles import Window, reported_objects, windows
from ..utils.cli import print_line, progress_bar
from ..utils.configs import ModelInput
from . import maps, objects
from .files import UNFINISHED, checksum, rows_folder, write_bytes
from .polygons import covers
from .raster import Raster
from .settings import RasterSettings


def list_rows(out: Path) -> list[Path]:
    """List the files of rows and the unfinished files of a result."""
    folder = rows_folder(out)
    return [*folder.glob("row-*"), *folder.glob(f"{UNFINISHED}*")]


class _Tile(NamedTuple):
    """A tile of a row.

    Attributes:
        image: (h, w, bands), padded to the size of a tile where the raster is smaller.
        valid: Whether each pixel has data, (h, w), bool.
        in_area: Whether each pixel has data and lies in the area of interest, (h, w), bool.
    """

    column: Window
    image: np.ndarray
    valid: np.ndarray
    in_area: np.ndarray


class Rows:
    """The rows of tiles of a raster, and the result that they are joined to.

    Args:
        out: The result. The folder of the rows is beside it.
        area: Area of interest, as polygons of shapely in pixels, or None for the whole raster.
    """

    def __init__(
        self, raster: Raster, predictor: Predictor, out: Path, settings: RasterSettings, area: Any
    ) -> None:
        self.raster = raster
        self.predictor = _without_tiles(predictor)
        self.out = out
        self.area = area
        self.tile = settings.tile
        self.overlap = settings.overlap
        self.windows = windows(raster.height, self.tile, self.overlap)
        self.columns = windows(raster.width, self.tile, self.overlap)
        self.notes = [*settings.notes, *(f"{raster.path}: {note}" for note in raster.notes)]
        self.classes = predictor.metainfo["classes"]
        self.folder = rows_folder(out)
        suffix = "json" if predictor.is_detector else "npz"
        numbers = range(len(self.windows))
        self.files = [self.folder / f"row-{number:05}.{suffix}" for number in numbers]
        test_cfg = predictor.cfg.model.get("test_cfg") or {}
        self._cap: int | None = (test_cfg.get("rcnn") or test_cfg).get("max_per_img")
        self._capped = 0  # tiles with as many objects as the config allows
        # A pipeline that resizes would enlarge a raster smaller than a tile, and the model would
        # see another scale than elsewhere.
        is_small = min(raster.height, raster.width) < self.tile
        self._is_padded = is_small and ModelInput(predictor.cfg).is_resized

    def describe(self, crs: str | None) -> dict[str, Any]:
        """Return what a result is made from, as plain values: model, raster, settings, versions.

        Args:
            crs: Coordinate system of a table. Default: the raster's.
        """
        import rasterio

        bounds = self.raster.bounds
        return self.predictor.settings | dict(
            classes=list(self.classes),
            tile=self.tile,
            overlap=self.overlap,
            gsd=self.raster.gsd,
            nodata=self.raster.nodata,
            bands=list(self.raster.bands),
            bounds=None if bounds is None else bounds.tolist(),
            raster=Path(self.raster.path).name,
            content=checksum(self.raster.files),
            size=[self.raster.height, self.raster.width],
            transform=list(self.raster.transform[:6]),
            aoi=None if self.area is None else f"{zlib.crc32(self.area.wkb):08x}",
            crs=crs,
            gdal=rasterio.__gdal_version__,
        )

    def predict(self) -> None:
        """Predict this process's rows that are not done."""
        rank, size = rank_and_size()
        numbers = range(rank, len(self.windows), size)
        counts = {number: self._count_in_area(self.windows[number]) for number in numbers}
        with progress_bar(sum(counts.values()), "tile", disable=rank > 0) as bar:
            for number in numbers:
                if not self.files[number].exists():
                    row = self._predict_row(self.windows[number])
                    write_bytes(self.files[number], self.folder, row)
                bar.update(counts[number])
        if self._capped:
            problem = f"{self._capped} tiles have {self._cap} objects, the most of the config"
            print_line(f"{self.raster.path}: {problem}: a smaller --tile may find more")

    def _count_in_area(self, row: Window) -> int:
        """Count the tiles of a row that touch the area of interest."""
        if self.area is None:
            return len(self.columns)
        starts = [column.start for column in self.columns]
        stops = [column.stop for column in self.columns]
        boxes = shapely.box(starts, row.start, stops, row.stop)
        return int(shapely.intersects(self.area, boxes).sum())

    def join(self, origin: Mapping[str, Any]) -> None:
        """Join the files of all rows to the result, a map or a table of objects.

        Args:
            origin: From `describe`.
        """
        if self.predictor.is_detector:
            table = objects.make_table(self._merge_objects(), self.raster, self.classes)
            objects.write_table(self.out, self.folder, table, origin)
            return
        tops = [window.inside.start for window in self.windows]
        files = dict(zip(tops, self.files, strict=True))
        palette = self.predictor.metainfo.get("palette")
        maps.join_maps(self.out, files, self.raster, palette, origin)

    def _merge_objects(self) -> Objects:
        """Return the objects of all rows, each once, whose boxes have their centre in the area."""
        merged = merge_objects(concatenate(map(objects.read_objects, self.files)))
        if self.area is None:
            return merged
        centres = (merged.boxes[:, :2] + merged.boxes[:, 2:]) / 2
        return merged.select(shapely.contains_xy(self.area, centres))

    def _predict_row(self, row: Window) -> bytes:
        """Return the content of a row's file."""
        if not self.predictor.is_detector:
            return maps.encode_labels(self._predict_labels(row))
        reported = []
        for tile, prediction in self._predict_tiles(row):
            if self._cap is not None and len(prediction) >= self._cap:
                self._capped += 1
            prediction = _cut_to_valid(prediction, tile.valid)
            reported.append(reported_objects(prediction, row, tile.column))
        return objects.encode_objects(concatenate(reported))

    def _predict_labels(self, row: Window) -> Iterator[tuple[int, np.ndarray]]:
        """Yield first column and classes of the interior of each tile."""
        nodata = maps.no_class(self.classes)
        for tile, prediction in self._predict_tiles(row):
            labels = np.where(tile.in_area, prediction.segmentation, nodata)
            labels = labels.astype(np.uint8 if nodata == 255 else np.uint16)
            yield tile.column.inside.start, labels[row.crop, tile.column.crop]

    def _predict_tiles(self, row: Window) -> Iterator[tuple[_Tile, Any]]:
        """Yield the tiles with data in the area of interest, and their predictions."""
        tiles = self._read_tiles(row)
        while batch := list(islice(tiles, self.predictor.batch_size)):
            predictions = self.predictor([tile.image for tile in batch])
            yield from zip(batch, predictions, strict=True)

    def _read_tiles(self, row: Window) -> Iterator[_Tile]:
        """Yield the tiles with data in the area of interest."""
        rows = slice(row.start, row.stop)
        if not self.raster.stores(rows, slice(0, self.raster.width)):
            return
        for column in self.columns:
            box = shapely.box(column.start, row.start, column.stop, row.stop)
            if self.area is not None and not self.area.intersects(box):
                continue
            if self.raster.stores(rows, slice(column.start, column.stop)):
                tile = self._read(row, column)
                if tile.in_area.any():
                    yield tile

    def _read(self, row: Window, column: Window) -> _Tile:
        rows = slice(row.start, row.stop)
        columns = slice(column.start, column.stop)
        image, valid = self.raster.read(rows, columns)
        in_area = valid
        if self.area is not None:
            in_area = valid & covers(self.area, rows, columns)
        if self._is_padded:
            below, right = (max(self.tile - length, 0) for length in valid.shape)
            image = np.pad(image, [(0, below), (0, right), (0, 0)])
            valid = np.pad(valid, [(0, below), (0, right)])
            in_area = np.pad(in_area, [(0, below), (0, right)])
        return _Tile(column, image, valid, in_area)


def _without_tiles(predictor: Predictor) -> Predictor:
    """Return a predictor that does not divide the tiles into tiles of its own."""
    if predictor.tile is None:
        return predictor
    predictor = copy(predictor)
    predictor.tile = None
    return predictor


def _cut_to_valid(prediction: Prediction, valid: np.ndarray) -> Prediction:
    """Drop objects whose centre has no data, and cut masks to the pixels that have data."""
    instances: Any = prediction.instances
    x, y = ((prediction.boxes[:, :2] + prediction.boxes[:, 2:]) / 2).astype(int).T
    height, width = valid.shape
    is_valid = valid[y.clip(0, height - 1), x.clip(0, width - 1)]
    masks = prediction.masks
    if masks is not None:
        masks = masks & valid
        instances = replace(instances, mask=masks)
        is_valid &= masks.any(axis=(1, 2))
    return replace(prediction, instances=instances[is_valid])
