"""The tiles of a raster, row by row: each row is predicted into a file of its own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from ..prediction.cluster import rank_and_size
from ..prediction.prediction import Prediction
from ..prediction.predictor import Predictor
from ..prediction.tiles import Window, interior, reported_objects, to_image, windows
from ..prediction.whole import WholeImage, check_whole
from ..utils.cli import progress_bar
from . import maps, objects
from .files import rows_folder, written_file
from .polygons import area_in_pixels, covers
from .raster import Raster, pad
from .settings import resolve_settings


class _Tile(NamedTuple):
    """A tile as the model sees it, and which of its pixels have data, also in the area, (h, w)."""

    column: Window
    image: np.ndarray
    valid: np.ndarray
    in_area: np.ndarray


class Rows:
    """The rows of tiles of a raster, by the arguments of `predict_raster`. `settings` are what they
    are made from, as in a JSON.
    """

    def __init__(
        self,
        path: str | Path,
        predictor: Predictor,
        out: Path,
        aoi: str | Path | None,
        whole: bool,
        options: Mapping[str, Any],
    ) -> None:
        tile, overlap, reading = resolve_settings(predictor.cfg, options)
        classes = list(predictor.metainfo["classes"])
        if not predictor.is_detector and len(classes) > maps.NO_CLASS:
            raise ValueError(f"{len(classes)} classes: a map has at most {maps.NO_CLASS}")
        raster = Raster(path, **reading)
        self._raster = raster
        self._area = area_in_pixels(aoi, raster)
        self._whole: WholeImage | None = None
        self._rows = windows(raster.height, tile, overlap)
        self._columns = windows(raster.width, tile, overlap)
        self._scale = (1.0, 1.0)  # factors of height and width from the raster to the tiles
        # Pipelines enlarge images smaller than a tile, and the model would see another scale.
        self._min_side = tile
        if whole:
            check_whole(predictor.model)
            self._whole = WholeImage(predictor, raster.height, raster.width, tile, overlap)
            self._rows = self._whole.rows
            self._columns = self._whole.columns
            self._scale = self._whole.scale
            self._min_side = 0
            raster.resample(*self._whole.size)
        factors = self._scale[::-1]  # of x and y
        self._seen_area = shapely.transform(self._area, lambda points: points * factors)
        shapely.prepare(self._seen_area)
        self._row_files = [rows_folder(out) / f"row-{row.start:07}" for row in self._rows]
        self._predictor = predictor
        self._out = out
        settings = dict(reading, tile=tile, overlap=overlap, whole=whole, aoi=aoi and str(aoi))
        settings |= dict(raster=Path(path).name, size=[raster.height, raster.width])
        self.settings = predictor.settings | settings | dict(classes=classes)

    def predict(self) -> None:
        """Predict this process's rows that are not done."""
        rank, size = rank_and_size()
        if self._whole is not None and not all(path.exists() for path in self._row_files):
            self._run_trunk(self._whole)
        rows = self._rows[rank::size]
        tiles = [self._list_columns(row) for row in rows]
        with progress_bar(sum(map(len, tiles)), "tile", disable=rank > 0) as bar:
            for path, row, columns in zip(self._row_files[rank::size], rows, tiles, strict=True):
                if not path.exists():
                    content = self._predict_row(row, columns)
                    with written_file(path, path.parent) as unfinished:
                        unfinished.write_bytes(content)
                bar.update(len(columns))

    def _run_trunk(self, whole: WholeImage) -> None:
        """Compute the taps of a whole raster, from the last that was finished."""

        def read(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
            return self._raster.read(slice(first, last), slice(0, whole.size[1]))

        def progress(done: int, passes: int) -> None:
            bar.total = passes
            bar.update(done - bar.n)

        with progress_bar(None, "pass") as bar:
            whole.run_trunk(read, rows_folder(self._out), progress)

    def _list_columns(self, row: Window) -> list[Window]:
        """List the tiles of a row that the file stores and that touch the area of interest."""
        columns = []
        for column in self._columns:
            box = shapely.box(column.start, row.start, column.stop, row.stop)
            if self._seen_area.intersects(box) and self._raster.stores(row, column):
                columns.append(column)
        return columns

    def _predict_row(self, row: Window, columns: Sequence[Window]) -> bytes:
        """Predict a row of tiles, and return the content of its file: objects or classes."""
        tiles = self._predict_tiles(row, columns)
        if self._predictor.is_detector:
            reported = []
            for tile, prediction in tiles:
                instances = _cut_to_valid(prediction, tile.valid)
                of_tile = reported_objects(instances, row, tile.column)
                reported.append(to_image(of_tile, self._scale))
            return objects.encode_objects(reported)
        interiors = {}
        for tile, prediction in tiles:
            labels = np.where(tile.in_area, prediction.segmentation, maps.NO_CLASS)
            corner, inside = interior(labels, row, tile.column, self._scale)
            interiors[corner] = inside.astype(np.uint8)
        return maps.encode_labels(interiors)

    def _predict_tiles(self, row: Window, columns: Sequence[Window]) -> Iterator[tuple[_Tile, Any]]:
        """Yield the tiles with data in the area of interest, and their predictions."""
        tiles = (self._read_tile(row, column) for column in columns)
        wanted = (tile for tile in tiles if tile.in_area.any())
        if self._whole is not None:
            for tile in wanted:
                yield tile, self._whole.predict(row, tile.column)
            return
        while batch := list(islice(wanted, self._predictor.batch_size)):
            images = [tile.image for tile in batch]
            predictions = self._predictor(images, [tile.valid for tile in batch])
            yield from zip(batch, predictions, strict=True)

    def _read_tile(self, row: Window, column: Window) -> _Tile:
        image, valid = self._raster.read(row, column)
        in_area = valid & covers(self._seen_area, row, column)
        return _Tile(column, *(pad(array, self._min_side) for array in (image, valid, in_area)))

    def join(self) -> None:
        """Join the files of all rows to the result, a map or a table of objects."""
        predictor = self._predictor
        checkpoint = (predictor.arguments or {}).get("checkpoint")
        made_from = dict(self.settings, date=f"{date.today()}", checkpoint=checkpoint)
        if predictor.is_detector:
            objects.join_objects(self._out, self._row_files, self._raster, self._area, made_from)
        else:
            palette = predictor.metainfo.get("palette")
            maps.join_maps(self._out, self._row_files, self._raster, palette, made_from)


def _cut_to_valid(prediction: Prediction, valid: np.ndarray) -> Prediction:
    """Drop objects whose centre has no data, and cut masks to pixels with data."""
    instances: Any = prediction.instances
    if prediction.masks is not None:
        instances = replace(instances, mask=prediction.masks & valid)
    x, y = ((prediction.boxes[:, :2] + prediction.boxes[:, 2:]) / 2).astype(int).T
    height, width = valid.shape
    is_valid = valid[y.clip(0, height - 1), x.clip(0, width - 1)]
    return replace(prediction, instances=instances[is_valid])
