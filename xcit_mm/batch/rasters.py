"""Rasters larger than memory: predicted in shards of tile rows, and merged to a map or to polygons."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.structures import InstanceData
from torch import Tensor

from ..geo import Raster, is_raster
from ..geo.geojson import MapInstance, write_instances
from ..geo.geotiff import join_maps, open_map
from ..geo.scaling import PERCENTILES
from ..prediction.predictor import Predictor
from ..prediction.tiled_detection import merge_tiles
from ..prediction.tiles import ReadTile, TiledImage, windows
from ..utils.configs import raster_step
from .inputs import Input
from .manifest import ModelInfo
from .options import RunOptions
from .run import INSTANCES, LABELS, SHARDS, Run
from .shards import Record, ShardFormat

__all__ = ["RasterPredictor", "merge_raster", "read_raster_headers", "resolve_raster_options"]


def resolve_raster_options(options: RunOptions, cfg: Config) -> RunOptions:
    """Replace the default bands and percentiles by those of a config.

    Raises:
        ValueError: If bounds or percentiles are given, but the config loads rasters unscaled.
    """
    step = raster_step(cfg)
    for name in ("bounds", "percentiles"):
        values = getattr(options, name)
        if step is not None and values is not None:
            text = " ".join(f"{value:g}" for value in values)
            raise ValueError(f"--{name} {text}: the config loads rasters unscaled (LoadRasterFromFile): leave it out")
    bands = options.bands or (step.get("bands") if step else None)
    return replace(options, bands=bands, percentiles=options.percentiles or PERCENTILES)


def read_raster_headers(inputs: Iterable[Input], options: RunOptions, model: ModelInfo) -> list[Input]:
    """Add size and bounds to the inputs that are read by windows: to all inputs if the config loads rasters.

    Raises:
        ValueError: If the bands of a raster do not fit the model, a raster would be stored as Parquet, or a video or
            URL would be read as a raster.
        OSError: If a raster cannot be read.
        ModuleNotFoundError: If rasterio is needed and not installed.
    """
    return [_read_header(input_, options, model) for input_ in inputs]


def _read_header(input_: Input, options: RunOptions, model: ModelInfo) -> Input:
    if input_.is_video or "://" in input_.path:
        if model.loads_rasters:
            kind = "a video" if input_.is_video else "a URL"
            raise ValueError(f"{input_.path} is {kind}, but the config loads rasters (LoadRasterFromFile): give files")
        return input_
    if not model.loads_rasters and not is_raster(input_.path):
        return input_
    if options.format == "parquet":
        raise ValueError(
            f"format='parquet': {input_.path} is a raster, whose results are GeoTIFF or GeoJSON: leave it out"
        )
    with _open_raster(input_, options, model) as raster:
        bounds = None if raster.bounds is None else [list(pair) for pair in raster.bounds]
        return input_._replace(size=[raster.height, raster.width], bounds=bounds)


def _open_raster(input_: Input, options: RunOptions, model: ModelInfo) -> Raster:
    bounds, percentiles = input_.bounds or options.bounds, options.percentiles or PERCENTILES
    return Raster(input_.path, options.bands, bounds, model.channels, percentiles, model.loads_rasters)


class RasterPredictor:
    """Predicts shards of rasters. Successive shards of one segmentation map share the overlap of their tiles.

    Args:
        run: The run.
        predictor: Model of the run.
        progress: Called for each tile.
    """

    def __init__(self, run: Run, predictor: Predictor, progress: Callable[[], None]) -> None:
        self.run, self.predictor, self.progress = run, predictor, progress
        self._next: tuple[int, int] | None = None  # input and tile row that `_strips` continues with
        self._strips: Iterator[tuple[int, Tensor]] = iter(())

    def predict(self, shard: int, writer: ShardFormat) -> None:
        """Predict a shard and write its records. A raster that cannot be read gives a failed record.

        Raises:
            OSError: If results cannot be written.
        """
        number = self.run.shards[shard].inputs.start
        input_ = self.run.inputs[number]
        record = Record(number, input_.path, input_.name, input_.image_id)
        predict = self._detect if self.predictor.is_detector else self._segment
        try:
            with _open_raster(input_, self.run.options, self.run.model) as raster:
                for part in predict(shard, raster, record._replace(height=raster.height, width=raster.width)):
                    writer.write(part)
        except _UnreadableRaster as error:
            writer.write(record._replace(error=str(error)))

    def _detect(self, shard: int, raster: Raster, record: Record) -> Iterator[Record]:
        shape, tile_rows = (raster.height, raster.width), self._tile_rows(shard)
        tiled = TiledImage(self._reader(raster), shape, *self.run.tiling(shape))
        for found in self.predictor.iter_detected(tiled, tile_rows):
            yield record._replace(
                boxes=found.bboxes.tolist(),
                scores=found.scores.tolist(),
                labels=found.labels.tolist(),
                masks=_mask_codes(found),
                ends=found.ends.tolist(),
            )

    def _segment(self, shard: int, raster: Raster, record: Record) -> Iterator[Record]:
        """Write the map of a shard's rows."""
        shape, tile_rows = (raster.height, raster.width), self._tile_rows(shard)
        tile, overlap = self.run.tiling(shape)
        if self._next != (record.number, tile_rows.start):
            # The reader opens the raster again by itself, and can be used by the next shard.
            tiled = TiledImage(self._reader(raster), shape, tile, overlap)
            self._strips = self.predictor.iter_segmented(tiled, tile_rows.start)
        starts = [window.start for window in windows(shape[0], tile, overlap)] + [shape[0]]
        rows = starts[tile_rows.start], starts[tile_rows.stop]
        path, palette = _rows_path(self.run, shard), self.predictor.metainfo.get("palette")
        with open_map(path, raster.georeference, self.run.model.classes, palette, rows) as writer:
            for start, labels in islice(self._strips, len(tile_rows)):
                valid = raster.valid(slice(start, start + len(labels)), slice(0, raster.width))
                writer.write(labels.numpy(), valid)
        self._next = record.number, tile_rows.stop
        yield record

    def _tile_rows(self, shard: int) -> range:
        tile_rows = self.run.shards[shard].tile_rows
        assert tile_rows is not None
        return tile_rows

    def _reader(self, raster: Raster) -> ReadTile:
        def read(rows: slice, columns: slice) -> np.ndarray | None:
            self.progress()
            try:
                return None if raster.is_empty(rows, columns) else raster.read(rows, columns)[0]
            except Exception as error:  # drivers of GDAL raise many types
                raise _UnreadableRaster(" ".join(str(error).split())) from None

        return read


class _UnreadableRaster(ValueError):
    """Error of a raster whose window cannot be read."""


def _rows_path(run: Run, shard: int) -> Path:
    """Return the path of the segmentation map of a shard's rows."""
    return run.out / SHARDS / f"rows-{shard:06}.tif"


def merge_raster(run: Run, shards: range) -> Record:
    """Merge the completed shards of a raster to one record, and write its map or polygons.

    Raises:
        DamagedShard: If a shard is not complete.
        OSError: If the results cannot be written.
    """
    input_ = run.inputs[run.shards[shards.start].inputs.start]
    records = [record for shard in shards for record in run.records(shard)]
    failure = next((record for record in records if record.error is not None), None)
    if failure is not None:
        return failure
    with _open_raster(input_, run.options, run.model) as raster:
        georeference = raster.georeference
    number = run.shards[shards.start].inputs.start
    merged = Record(
        number, input_.path, input_.name, input_.image_id, height=georeference.height, width=georeference.width
    )
    classes = run.model.classes
    if not run.model.is_detector:
        rows = [_rows_path(run, shard) for shard in shards]
        join_maps(run.out / LABELS / f"{input_.key}.tif", rows, georeference, classes, run.model.palette)
        return merged
    found = merge_tiles([_to_instances(record) for record in records if record.boxes])
    boxes, scores, labels = (values.tolist() for values in (found.bboxes, found.scores, found.labels))
    masks = _mask_codes(found)
    instances = (
        MapInstance(number, label, score, box, masks[number - 1] if masks else None)
        for number, (label, score, box) in enumerate(zip(labels, scores, boxes, strict=True), start=1)
    )
    write_instances(run.out / INSTANCES / f"{input_.key}.geojson", georeference, classes, instances)
    return merged._replace(boxes=boxes, scores=scores, labels=labels, masks=masks)


def _mask_codes(found: InstanceData) -> list[str] | None:
    return [mask["counts"].decode() for mask in found.masks] if "masks" in found else None


def _to_instances(record: Record) -> InstanceData:
    """Convert the record of a tile for `merge_tiles`."""
    fields = dict(bboxes=record.boxes, scores=record.scores, labels=record.labels, ends=record.ends)
    found = InstanceData(**{name: torch.tensor(values) for name, values in fields.items()})
    if record.masks is not None:
        found.masks = [dict(size=[record.height, record.width], counts=mask.encode()) for mask in record.masks]
    return found
