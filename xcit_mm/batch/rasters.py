"""Scenes, which no memory holds: predicted by rows of tiles, and merged with their place on a map."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.structures import InstanceData
from torch import Tensor

from ..geo import Raster, is_raster
from ..geo.geojson import MapInstance, write_instances
from ..geo.geotiff import join_maps, open_map
from ..geo.raster import Georeference
from ..geo.scaling import PERCENTILES
from ..prediction.predictor import Predictor
from ..prediction.tiled_detection import merge_tiles
from ..prediction.tiles import ReadTile, TiledImage, windows
from ..utils.configs import image_side, raster_bands, raster_step
from .inputs import Input
from .manifest import INSTANCES, LABELS, PARTS, Run, tiles_of
from .shards import Row, Writer

__all__ = ["ScenePredictor", "merge_scene", "scene_options", "with_scenes"]


def scene_options(
    cfg: Config,
    bands: Sequence[int] | None = None,
    bounds: Sequence[float] | None = None,
    percentiles: Sequence[float] | None = None,
) -> dict[str, Any]:
    """A run's options on how scenes become what the config's model takes: in tiles, of bytes or of a raster's values.

    Args:
        cfg: Of the model.
        bands: Their numbers; default: those that the config loads, or the file's own red, green and blue.
        bounds: What becomes 0 and 255; default: by percentiles.
        percentiles: Default: `PERCENTILES`.

    Raises:
        ValueError: If values shall be scaled that the config loads as they are.
    """
    step = raster_step(cfg)
    for name, given in (("bounds", bounds), ("percentiles", percentiles)):
        if step is not None and given is not None:
            values = " ".join(f"{value:g}" for value in given)
            raise ValueError(f"--{name} {values}: the config loads rasters unscaled (LoadRasterFromFile): leave it out")
    return dict(
        bands=bands or (step.get("bands") if step else None),
        bounds=bounds,
        percentiles=percentiles or PERCENTILES,
        channels=raster_bands(cfg) or 3,
        raw=step is not None,
        scene_tile=image_side(cfg),
    )


def with_scenes(inputs: Iterable[Input], options: dict[str, Any]) -> list[Input]:
    """Inputs, of which those that are to be read by windows have their size, and how their bands are scaled.

    Args:
        inputs: All of them.
        options: Of the run: format, and `scene_options`. With raw ones all inputs are scenes.

    Raises:
        ValueError: If a scene's bands are not what the model takes, or the results shall be Parquet; if a video or
            URL shall be read raw.
        OSError: If it cannot be read.
        ModuleNotFoundError: If rasterio is needed and not installed.
    """
    found = []
    for one in inputs:
        is_picture = one.is_video or "://" in one.path
        if is_picture and options["raw"]:
            what = "a video" if one.is_video else "a URL"
            raise ValueError(f"{one.path} is {what}, but the config loads rasters (LoadRasterFromFile): give files")
        if is_picture or not (options["raw"] or is_raster(one.path)):
            found.append(one)
            continue
        if options["format"] == "parquet":
            raise ValueError(
                f"--format parquet: {one.path} is a scene, whose results are GeoTIFF or GeoJSON; leave it out"
            )
        with _open(one, options) as raster:
            bounds = None if raster.bounds is None else [list(pair) for pair in raster.bounds]
            found.append(one._replace(size=[raster.height, raster.width], bounds=bounds))
    return found


def _open(scene: Input, options: dict[str, Any]) -> Raster:
    bounds = scene.bounds or options["bounds"]
    return Raster(scene.path, options["bands"], bounds, options["channels"], options["percentiles"], options["raw"])


class ScenePredictor:
    """Predicts rows of tiles; those that follow on one another in one process share what overlaps.

    Args:
        run: The run.
        predict: Its model.
        progress: Called for each tile.
    """

    def __init__(self, run: Run, predict: Predictor, progress: Callable[[], None]) -> None:
        self.run, self.predict, self.progress = run, predict, progress
        self._next: tuple[int, int] | None = None  # input and strip that `_strips` would give
        self._strips: Iterator[tuple[int, Tensor]] = iter(())

    def work(self, part: int, writer: Writer) -> None:
        """Predict a part; what cannot be read is its row's error.

        Raises:
            OSError: If results cannot be written.
        """
        number, strips = self.run.parts[part].inputs.start, self.run.parts[part].strips
        given = self.run.inputs[number]
        assert strips is not None and given.size is not None  # of a scene
        row = Row(number, given.path, given.name, given.image_id, height=given.size[0], width=given.size[1])
        try:
            with _open(given, self.run.options) as raster:
                rows = (
                    self._detect(raster, row, strips) if self.predict.is_detector else self._segment(part, raster, row)
                )
                for one in rows:
                    writer.write(one)
        except _Unreadable as error:
            writer.write(row._replace(height=None, width=None, error=str(error)))

    def _read(self, raster: Raster) -> ReadTile:
        def read(rows: slice, columns: slice) -> np.ndarray | None:
            self.progress()
            try:
                return None if raster.is_empty(rows, columns) else raster.read(rows, columns)[0]
            except Exception as error:  # of any driver
                raise _Unreadable(" ".join(str(error).split())) from None

        return read

    def _detect(self, raster: Raster, row: Row, strips: range) -> Iterator[Row]:
        shape = raster.height, raster.width
        tiled = TiledImage(self._read(raster), shape, *tiles_of(shape, self.run.options))
        for found in self.predict.iter_detected(tiled, strips):
            yield row._replace(
                boxes=found.bboxes.tolist(),
                scores=found.scores.tolist(),
                labels=found.labels.tolist(),
                masks=[mask["counts"].decode() for mask in found.masks] if "masks" in found else None,
                ends=found.ends.tolist(),
            )

    def _segment(self, part: int, raster: Raster, row: Row) -> Iterator[Row]:
        strips, shape = self.run.parts[part].strips, (raster.height, raster.width)
        assert strips is not None
        if self._next != (row.number, strips.start):
            tiled = TiledImage(self._read(raster), shape, *tiles_of(shape, self.run.options))
            # The raster is opened by the generator's own reader: it outlives this part.
            self._strips = self.predict.iter_segmented(tiled, strips.start)
        starts = [one.start for one in windows(shape[0], *tiles_of(shape, self.run.options))] + [shape[0]]
        rows = starts[strips.start], starts[strips.stop]
        model = self.run.identity["model"]
        palette = self.predict.metainfo.get("palette")
        with open_map(map_of(self.run, part), raster.georeference, model["classes"], palette, rows) as maps:
            for start, labels in islice(self._strips, len(strips)):
                span = slice(start, start + len(labels))
                maps.write(labels.numpy(), raster.valid(span, slice(0, raster.width)))
        self._next = row.number, strips.stop
        yield row


class _Unreadable(ValueError):
    """A window of a scene cannot be read."""


def map_of(run: Run, part: int) -> Path:
    """Where the classes of a part's rows are."""
    return run.out / PARTS / f"rows-{part:06}.tif"


def merge_scene(run: Run, parts: range) -> Row:
    """What was found in a scene, whose parts are all there, as one row; its map, or its polygons, are written.

    Raises:
        DamagedPart: If a part is not whole.
        OSError: If the results cannot be written.
    """
    given = run.inputs[run.parts[parts.start].inputs.start]
    rows = [row for part in parts for row in run.rows(part)]
    failed = next((row for row in rows if row.error is not None), None)
    if failed is not None:
        return failed
    model = run.identity["model"]
    with _open(given, run.options) as raster:
        scene = raster.georeference
    whole = Row(rows[0].number, given.path, given.name, given.image_id, height=scene.height, width=scene.width)
    if not model["is_detector"]:
        path = run.out / LABELS / f"{given.key}.tif"
        join_maps(path, [map_of(run, part) for part in parts], scene, model["classes"], model["palette"])
        return whole
    merged = merge_tiles([_instances(row, scene) for row in rows if row.boxes])
    masks = [mask["counts"].decode() for mask in merged.masks] if "masks" in merged else None
    boxes, scores, labels = (values.tolist() for values in (merged.bboxes, merged.scores, merged.labels))
    found = (
        MapInstance(number, label, score, box, masks[number - 1] if masks else None)
        for number, (box, score, label) in enumerate(zip(boxes, scores, labels, strict=True), start=1)
    )
    write_instances(run.out / INSTANCES / f"{given.key}.geojson", scene, model["classes"], found)
    return whole._replace(boxes=boxes, scores=scores, labels=labels, masks=masks)


def _instances(row: Row, scene: Georeference) -> InstanceData:
    """What a tile reported."""
    found = InstanceData(
        bboxes=torch.tensor(row.boxes), scores=torch.tensor(row.scores), labels=torch.tensor(row.labels)
    )
    found.ends = torch.tensor(row.ends)
    if row.masks is not None:
        found.masks = [dict(size=[scene.height, scene.width], counts=mask.encode()) for mask in row.masks]
    return found
