"""One raster in, one map or one table of objects out: each row of tiles is predicted into a file of
its own.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import shapely
from shapely.affinity import scale

from ..prediction.cluster import rank_and_size, wait_for_ranks
from ..prediction.prediction import Prediction
from ..prediction.predictor import Predictor
from ..prediction.seams import concatenate
from ..prediction.tiles import Window, interior, reported_objects, to_image, windows
from ..prediction.whole import WholeImage, check_whole, is_exact_whole
from ..utils.cli import print_line, progress_bar
from ..utils.folders import check_output, open_folder
from . import maps, objects
from .files import check_finished, rows_folder, written_file
from .polygons import area_in_pixels, box_of, covers
from .raster import Raster
from .settings import READING, SCALING, resolve_settings


def predict_raster(
    raster: str | Path,
    predictor: Predictor,
    out: str | Path,
    *,
    aoi: str | Path | None = None,
    whole: bool | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Path:
    """Predict a raster, and write a segmentor's map or a detector's table of objects.

    The folder `OUT.parts` holds the rows of tiles that are done, until all are: the same call
    resumes. Processes of torchrun share the rows, and the first writes the result.

    Args:
        raster: Path or URL of a file that GDAL reads.
        out: `.tif` or `.tiff` for a segmentor, `.gpkg` for a detector. A finished result of the
            same raster, model and options stays, as a line says.
        aoi: Vector file, whose polygons limit the prediction.
        whole: Whether the trunk sees the raster whole, and only neck and heads see tiles. Default:
            for a segmentor that is exact so, without `aoi`, in one process.
        overwrite: Whether to replace the result of an earlier call, which stays until the new one
            is written.
        options: `tile` and `overlap` in pixels, and `bands`, `bounds` and `nodata` of `Raster`.
            Default: those of `raster = dict(...)` in the config.

    Returns:
        The path of the result, which exists when all processes have ended.

    Raises:
        ValueError: If an option does not match the raster or the model, or if there is a result of
            another raster, model or option, or rows of such a result. The message names it.
        OSError, RuntimeError: If a file cannot be read or written, or another process writes the
            same result.
    """
    out = Path(out)
    check_output(out, filter(None, (raster, aoi)))
    if predictor.tile is not None:
        raise ValueError(f"a Predictor with tile={predictor.tile}: give tile to predict_raster")
    suffixes = [".gpkg"] if predictor.is_detector else [".tif", ".tiff"]
    if out.suffix.lower() not in suffixes:
        raise ValueError(f"--out {out}: the result of this model is a {suffixes[0]}")
    rank, size = rank_and_size()
    if whole and size > 1:
        raise ValueError("--whole runs in one process: start it without torchrun")
    if whole is None:
        # Measured in docs/benchmark.md, "Whole images".
        is_single = size == 1 and aoi is None and not predictor.is_detector
        whole = is_single and is_exact_whole(predictor.model)
    rows = _Rows(raster, predictor, out, aoi, whole, options)
    parts = rows_folder(out)
    folder = open_folder(parts, rows.settings, overwrite, lambda: parts.glob("[!.]*"))
    is_finished = out.exists() and not overwrite
    if is_finished:
        check_finished(out, rows.settings)
        if rank == 0:
            print_line(f"{out} exists: --overwrite predicts it again")
        if not parts.exists():  # which a kill may have left
            return out
    elif whole:
        unused = "batch_size and an overlap below 256 pixels change nothing"
        print_line(f"the backbone sees the raster whole: {unused}; --no-whole predicts it in tiles")
    with nullcontext() if rank else folder:
        wait_for_ranks()
        if not is_finished:
            rows.predict()
            wait_for_ranks()
            if rank == 0:
                rows.join()
    if rank == 0:
        shutil.rmtree(parts)
    return out


class _Tile(NamedTuple):
    """A tile as the model sees it, and which of its pixels have data, also in the area, (h, w)."""

    column: Window
    image: np.ndarray
    valid: np.ndarray
    in_area: np.ndarray


class _Rows:
    """The rows of tiles of a raster, with the arguments of `predict_raster`.

    Attributes:
        settings: What determines the rows, as plain values.
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
        reading = resolve_settings(predictor.cfg, options)
        settings = dict.fromkeys(READING) | reading
        tile = reading.pop("tile")
        overlap = reading.pop("overlap")
        classes = list(predictor.metainfo["classes"])
        if not predictor.is_detector and len(classes) > maps.NODATA:
            raise ValueError(f"{len(classes)} classes: a map has at most {maps.NODATA}")
        raster = Raster(path, **reading)
        self._raster = raster
        self._area = area_in_pixels(aoi, raster)
        settings |= dict(bands=raster.bands, whole=whole, classes=classes)
        settings["aoi_polygons"] = crc32(shapely.to_wkb(self._area))
        self.settings = predictor.settings | settings | raster.fingerprint()
        self._made_from = self.settings | dict(
            raster=str(path).partition("?")[0],  # the rest of a URL may be a password
            aoi=aoi and str(aoi),
            checkpoint=(predictor.arguments or {}).get("checkpoint"),
            date=f"{date.today()}",
        )
        trained = predictor.cfg.get("raster")
        if trained and trained.get(SCALING) != raster.scaling:
            change = f"{trained.get(SCALING)} in the training, and are {raster.scaling} here"
            print_line(f"{path}: scale and offset are not applied: they were {change}")
        self._whole: WholeImage | None = None
        # A small raster is one tile: pipelines would enlarge it, and the model see another scale.
        self._rows = windows(max(raster.height, tile), tile, overlap)
        self._columns = windows(max(raster.width, tile), tile, overlap)
        self._scale = (1.0, 1.0)  # factors of height and width from the raster to the tiles
        if whole:
            check_whole(predictor.model)
            self._whole = WholeImage(predictor, raster.height, raster.width, tile, overlap)
            self._rows = self._whole.rows
            self._columns = self._whole.columns
            self._scale = self._whole.scale
            raster.resample(*self._whole.size)
        self._seen_area = scale(self._area, *self._scale[::-1], origin=(0, 0))
        shapely.prepare(self._seen_area)
        self._row_files = [rows_folder(out) / f"row-{row.start:07}" for row in self._rows]
        self._predictor = predictor
        self._out = out

    def predict(self) -> None:
        """Predict the rows of this process that are not done, where they touch the area."""
        rank, size = rank_and_size()
        if self._whole is not None and not all(path.exists() for path in self._row_files):
            self._run_trunk(self._whole)
        rows = self._rows[rank::size]
        area = self._seen_area
        tiles = [
            [column for column in self._columns if area.intersects(box_of(row, column))]
            for row in rows
        ]
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

    def _predict_row(self, row: Window, columns: Sequence[Window]) -> bytes:
        """Return the content of a row's file: objects or classes."""
        tiles = self._predict_tiles(row, columns)
        if self._predictor.is_detector:
            reported = [
                reported_objects(_cut_to_valid(prediction, tile.valid), row, tile.column)
                for tile, prediction in tiles
            ]
            return objects.encode_objects(to_image(concatenate(reported), self._scale))
        interiors = {}
        for tile, prediction in tiles:
            labels = np.where(tile.in_area, prediction.segmentation, maps.NODATA)
            (top, left), inside = interior(labels, row, tile.column, self._scale)
            inside = inside[: self._raster.height - top, : self._raster.width - left]
            interiors[top, left] = inside.astype(np.uint8)
        return maps.encode_labels(interiors)

    def _predict_tiles(self, row: Window, columns: Sequence[Window]) -> Iterator[tuple[_Tile, Any]]:
        """Yield the tiles with data in the area of interest, and their predictions."""
        tiles = (self._read(row, column) for column in columns)
        wanted = (tile for tile in tiles if tile.in_area.any())
        if self._whole is not None:
            for tile in wanted:
                yield tile, self._whole.predict(row, tile.column)
            return
        while batch := list(islice(wanted, self._predictor.batch_size)):
            images = [tile.image for tile in batch]
            predictions = self._predictor(images, [tile.valid for tile in batch])
            yield from zip(batch, predictions, strict=True)

    def _read(self, row: Window, column: Window) -> _Tile:
        image, valid = self._raster.read(row, column)
        return _Tile(column, image, valid, valid & covers(self._seen_area, row, column))

    def join(self) -> None:
        """Join the files of all rows to the result, a map or a table of objects."""
        result = self._out, self._row_files, self._raster, self._made_from
        if self._predictor.is_detector:
            objects.join_objects(*result, self._area)
        else:
            maps.join_maps(*result, self._predictor.metainfo.get("palette"))


def _cut_to_valid(prediction: Prediction, valid: np.ndarray) -> Prediction:
    """Drop objects whose centre has no data, and cut masks to pixels with data."""
    instances: Any = prediction.instances
    if prediction.masks is not None:
        instances = replace(instances, mask=prediction.masks & valid)
    x, y = ((prediction.boxes[:, :2] + prediction.boxes[:, 2:]) / 2).astype(int).T
    height, width = valid.shape
    is_valid = valid[y.clip(0, height - 1), x.clip(0, width - 1)]
    return replace(prediction, instances=instances[is_valid])
