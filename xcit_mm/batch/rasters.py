"""Rasters larger than memory: predicted in shards of tile rows, and merged to a map or to polygons."""

import contextlib
import glob
from collections.abc import Iterator
from itertools import count, islice, repeat
from pathlib import Path

import numpy as np
import torch
from mmengine.structures import InstanceData
from torch import Tensor

from ..geo import Raster
from ..geo.area import points_within
from ..geo.geojson import MapInstance, write_instances
from ..geo.geotiff import DamagedRows, join_maps, open_map
from ..prediction.joining import merge_tiles, select_instances
from ..prediction.predictor import Predictor
from ..prediction.tiles import TiledImage, windows
from ..utils.atomic import unfinished_files
from ..utils.configs import resizes_images
from ..utils.run_lengths import decode_crop, encode_mask
from .inputs import Input
from .manifest import INSTANCES, LABELS, SHARDS
from .raster_inputs import open_raster_input
from .results import Progress, error_message
from .run import Run
from .shards import DamagedShard, Record, ShardFormat, read_records, write_records


class RasterPredictor:
    """Predicts shards of rasters. Successive shards of one segmentation map share the overlap of their tiles."""

    def __init__(self, run: Run, predictor: Predictor, progress: Progress) -> None:
        self.run, self.predictor, self.progress = run, predictor, progress
        self._next: tuple[int, int] | None = None  # input and tile row that `_strips` continues with
        self._strips: Iterator[tuple[int, Tensor]] = iter(())

    def predict(self, shard: int, writer: ShardFormat) -> str | None:
        """Predict a shard, and write its records. Return the reason if the raster cannot be read."""
        number = self.run.shards[shard].inputs.start
        record = self.run.record(number)
        predict = self._detect if self.predictor.is_detector else self._segment
        try:
            with _open(self.run.inputs[number], self.run) as raster:
                for part in predict(shard, raster, record._replace(height=raster.height, width=raster.width)):
                    writer.write(part)
        except _UnreadableRaster as error:
            writer.write(record._replace(error=str(error)))
            return str(error)
        return None

    def _detect(self, shard: int, raster: Raster, record: Record) -> Iterator[Record]:
        tiled = self._tiled(raster)
        for found in self.predictor.iter_detected(tiled, self.run.shards[shard].tile_rows):
            found = _crop(found, tiled.shape, (raster.height, raster.width))
            if len(found.scores):
                yield _fill(record, found)._replace(tile=found.tiles[0].tolist(), sides=found.sides.tolist())

    def _segment(self, shard: int, raster: Raster, record: Record) -> Iterator[Record]:
        """Write the map of a shard's rows."""
        shape, tile_rows = (raster.height, raster.width), self.run.shards[shard].tile_rows
        tile, overlap = self.run.tiling(shape)
        if self._next != (record.number, tile_rows.start):
            # The reader opens the raster again by itself, and can be used by the next shard.
            self._strips = self.predictor.iter_segmented(self._tiled(raster), tile_rows.start)
        starts = [window.start for window in windows(shape[0], tile, overlap)] + [shape[0]]
        rows = starts[tile_rows.start], starts[tile_rows.stop]
        path, palette = _rows_path(self.run, shard), self.predictor.metainfo.get("palette")
        with open_map(path, raster.georeference, self.run.model.classes, palette, rows) as writer:
            for start, strip in islice(self._strips, len(tile_rows)):
                labels = strip[: raster.height - start, : raster.width]
                with _as_failure():
                    valid = raster.valid(slice(start, start + len(labels)), slice(0, raster.width))
                writer.write(labels.numpy(), valid)
        self._next = record.number, tile_rows.stop
        yield record

    def _tiled(self, raster: Raster) -> TiledImage:
        """Split a raster into tiles. A raster smaller than a tile is padded, if the pipeline would enlarge it."""
        shape = raster.height, raster.width
        tile, overlap = self.run.tiling(shape)
        padded = (max(shape[0], tile), max(shape[1], tile)) if resizes_images(self.predictor.cfg) else shape

        def read(rows: slice, columns: slice) -> np.ndarray | None:
            self.progress(1, 0)
            bottom, right = min(rows.stop, shape[0]), min(columns.stop, shape[1])
            window = slice(rows.start, bottom), slice(columns.start, right)
            with _as_failure():
                if raster.is_outside(*window):
                    return None
                image, valid = raster.read(*window)
            return np.pad(image, [(0, rows.stop - bottom), (0, columns.stop - right), (0, 0)]) if valid.any() else None

        return TiledImage(read, padded, tile, overlap)


class _UnreadableRaster(ValueError):
    """Error of a raster that cannot be read."""


@contextlib.contextmanager
def _as_failure() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # drivers of GDAL raise many types
        raise _UnreadableRaster(error_message(error)) from None


def _open(input_: Input, run: Run) -> Raster:
    with _as_failure():
        raster = open_raster_input(input_, run.options, run.model)
    if [raster.height, raster.width] != input_.size:
        raise _UnreadableRaster("it could not be read when the run began: predict it into another --out")
    return raster


def _rows_path(run: Run, shard: int) -> Path:
    """Return the path of the segmentation map of a shard's rows."""
    return run.out / SHARDS / f"rows-{shard:06}.tif"


def merge_raster(run: Run, shards: range) -> Record:
    """Merge the completed shards of a raster to one record, and write its map or polygons.

    The record is stored, so that a resumed run merges only rasters with newer shards.
    """
    number = run.shards[shards.start].inputs.start
    input_, is_detector = run.inputs[number], run.model.is_detector
    output = run.out / (f"{INSTANCES}/{input_.key}.geojson" if is_detector else f"{LABELS}/{input_.key}.tif")
    stored = run.out / SHARDS / f"merged-{shards.start:06}{run.format.suffix}"
    if output.exists() and stored.exists():
        times = [path.stat().st_mtime_ns for path in (stored, *map(run.shard_path, shards))]
        if times[0] > max(times[1:]):
            (record,) = read_records(stored, run.format)  # to the end, where the checksum is
            return record
    records = [record for shard in shards for record in run.records(shard)]
    failure = next((record for record in records if record.error is not None), None)
    if failure is not None:
        return failure
    with open_raster_input(input_, run.options, run.model) as raster:
        georeference = raster.georeference
    merged = run.record(number)._replace(height=georeference.height, width=georeference.width)
    classes = run.model.classes
    _remove_unfinished(output)
    if is_detector:
        found = merge_tiles([_to_instances(record) for record in records if record.boxes])
        if raster.area is not None:
            centres = (found.bboxes[:, :2] + found.bboxes[:, 2:]).numpy() / 2
            found = select_instances(found, np.flatnonzero(points_within(raster.area, centres)))
        merged = _fill(merged, found)
        boxes, scores, labels, cut = merged.boxes or [], merged.scores or [], merged.labels or [], merged.cut or []
        masks = merged.masks or repeat(None, len(boxes))
        instances = map(MapInstance, count(1), labels, scores, boxes, masks, cut)
        write_instances(output, georeference, classes, instances, run.options.crs)
    else:
        rows = {_rows_path(run, shard): shard for shard in shards}
        try:
            join_maps(output, rows, georeference, classes, run.model.palette)
        except DamagedRows as error:
            raise DamagedShard(run.shard_path(rows[error.path]), error) from None
    with write_records(stored, run.format) as writer:
        writer.write(merged)
    return merged


def _remove_unfinished(path: Path) -> None:
    """Remove what killed runs left of a file, and of GDAL's files beside it."""
    for unfinished in unfinished_files(path.with_name(f"{glob.escape(path.name)}*")):
        unfinished.unlink()


def _crop(found: InstanceData, padded: tuple[int, int], shape: tuple[int, int]) -> InstanceData:
    """Crop the objects of a padded raster to the raster, and leave out those outside."""
    if padded == shape:
        return found
    height, width = shape
    found.bboxes = found.bboxes.clamp(max=found.bboxes.new_tensor([width, height, width, height]))
    keep = (found.bboxes[:, 2:] > found.bboxes[:, :2]).all(dim=1)
    if "masks" in found:
        crops = [decode_crop(mask["counts"], *padded) for mask in found.masks]
        parts = [crop and crop._replace(mask=crop.mask[: height - crop.top, : width - crop.left]) for crop in crops]
        keep &= torch.tensor([part is not None and bool(part.mask.any()) for part in parts], dtype=torch.bool)
        found.masks = [encode_mask(part.mask, (part.top, part.left), shape) if part else None for part in parts]
    return select_instances(found, np.flatnonzero(keep))


def _fill(record: Record, found: InstanceData) -> Record:
    """Add the objects of a raster or a tile to its record."""
    boxes, scores, labels = (values.tolist() for values in (found.bboxes, found.scores, found.labels))
    masks = [mask["counts"].decode() for mask in found.masks] if "masks" in found else None
    cut = found.cut.tolist() if "cut" in found else None
    return record._replace(boxes=boxes, scores=scores, labels=labels, masks=masks, cut=cut)


def _to_instances(record: Record) -> InstanceData:
    """Convert the record of a tile for `merge_tiles`."""
    assert record.boxes is not None
    fields = dict(bboxes=record.boxes, scores=record.scores, labels=record.labels, sides=record.sides)
    found = InstanceData(**{name: torch.tensor(values) for name, values in fields.items()})
    found.tiles = torch.tensor([record.tile]).expand(len(record.boxes), 4)
    if record.masks is not None:
        found.masks = [dict(size=[record.height, record.width], counts=mask.encode()) for mask in record.masks]
    return found
