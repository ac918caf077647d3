"""Rasters larger than memory: predicted in shards of tile rows, and merged to a map or to polygons."""

from collections.abc import Iterator
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
from .results import Progress
from .run import INSTANCES, LABELS, SHARDS, Run
from .shards import Record, ShardFormat

__all__ = ["RasterPredictor", "merge_raster", "read_raster_header", "resolve_raster_options"]


def resolve_raster_options(options: RunOptions, cfg: Config) -> RunOptions:
    """Replace the default bands and percentiles by those of a config."""
    step = raster_step(cfg)
    for name in ("bounds", "percentiles"):
        values = getattr(options, name)
        if step is not None and values is not None:
            text = " ".join(f"{value:g}" for value in values)
            raise ValueError(f"--{name} {text}: the config loads rasters unscaled (LoadRasterFromFile): leave it out")
    bands = options.bands or (step.get("bands") if step else None)
    return replace(options, bands=bands, percentiles=options.percentiles or PERCENTILES)


def read_raster_header(input_: Input, options: RunOptions, model: ModelInfo) -> Input:
    """Add size and bounds to an input that is read by windows: to any input if the config loads rasters."""
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
    """Predicts shards of rasters. Successive shards of one segmentation map share the overlap of their tiles."""

    def __init__(self, run: Run, predictor: Predictor, progress: Progress) -> None:
        self.run, self.predictor, self.progress = run, predictor, progress
        self._next: tuple[int, int] | None = None  # input and tile row that `_strips` continues with
        self._strips: Iterator[tuple[int, Tensor]] = iter(())

    def predict(self, shard: int, writer: ShardFormat) -> str | None:
        """Predict a shard, and write its records. Return the reason if the raster cannot be read."""
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
            return str(error)
        return None

    def _detect(self, shard: int, raster: Raster, record: Record) -> Iterator[Record]:
        shape = raster.height, raster.width
        tiled = TiledImage(self._reader(raster), shape, *self.run.tiling(shape))
        for found in self.predictor.iter_detected(tiled, self.run.shards[shard].tile_rows):
            yield _fill(record, found)._replace(ends=found.ends.tolist())

    def _segment(self, shard: int, raster: Raster, record: Record) -> Iterator[Record]:
        """Write the map of a shard's rows."""
        shape, tile_rows = (raster.height, raster.width), self.run.shards[shard].tile_rows
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

    def _reader(self, raster: Raster) -> ReadTile:
        def read(rows: slice, columns: slice) -> np.ndarray | None:
            self.progress(1, 0)
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
    """Merge the completed shards of a raster to one record, and write its map or polygons."""
    number = run.shards[shards.start].inputs.start
    input_ = run.inputs[number]
    records = [record for shard in shards for record in run.records(shard)]
    failure = next((record for record in records if record.error is not None), None)
    if failure is not None:
        return failure
    with _open_raster(input_, run.options, run.model) as raster:
        georeference = raster.georeference
    merged = Record(number, input_.path, input_.name, input_.image_id, None, georeference.height, georeference.width)
    classes = run.model.classes
    if not run.model.is_detector:
        rows = [_rows_path(run, shard) for shard in shards]
        join_maps(run.out / LABELS / f"{input_.key}.tif", rows, georeference, classes, run.model.palette)
        return merged
    filled = _fill(merged, merge_tiles([_to_instances(record) for record in records if record.boxes]))
    boxes, scores, labels, masks = filled.boxes or [], filled.scores or [], filled.labels or [], filled.masks
    instances = (
        MapInstance(number, label, score, box, masks[number - 1] if masks else None)
        for number, (label, score, box) in enumerate(zip(labels, scores, boxes, strict=True), start=1)
    )
    write_instances(run.out / INSTANCES / f"{input_.key}.geojson", georeference, classes, instances)
    return filled


def _fill(record: Record, found: InstanceData) -> Record:
    """Add the objects of a raster or a tile to its record."""
    boxes, scores, labels = (values.tolist() for values in (found.bboxes, found.scores, found.labels))
    masks = [mask["counts"].decode() for mask in found.masks] if "masks" in found else None
    return record._replace(boxes=boxes, scores=scores, labels=labels, masks=masks)


def _to_instances(record: Record) -> InstanceData:
    """Convert the record of a tile for `merge_tiles`."""
    fields = dict(bboxes=record.boxes, scores=record.scores, labels=record.labels, ends=record.ends)
    found = InstanceData(**{name: torch.tensor(values) for name, values in fields.items()})
    if record.masks is not None:
        found.masks = [dict(size=[record.height, record.width], counts=mask.encode()) for mask in record.masks]
    return found
