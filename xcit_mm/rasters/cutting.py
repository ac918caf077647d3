"""Labelled rasters as tiles to train on: which tiles are written, and which are left out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from ..datasets import Dataset
from ..prediction.tiles import windows
from ..utils.atomic import atomic_folder
from ..utils.cli import print_line, progress_bar
from .gdal import list_rasters
from .labels import LabelFile
from .raster import Raster
from .scenes import find_areas, label_scenes, open_alike
from .settings import RasterSettings
from .splits import Part, divide, write_held_out
from .tiles import MapTiles, ObjectTiles, Tile, TileWriter, is_shown


class Tiles(NamedTuple):
    """Tiles in a folder.

    Attributes:
        dataset: The tiles with their labels.
        settings: How the rasters were read: keyword arguments of `predict_raster`.
        statistics: Mean and standard deviation of each band, if tiles have the stored values.
    """

    dataset: Dataset
    settings: dict[str, Any]
    statistics: tuple[list[float], list[float]] | None


def cut_rasters(
    rasters: str | Path,
    labels: LabelFile,
    folder: Path,
    settings: RasterSettings,
    *,
    is_detector: bool,
    aoi: str | Path | None = None,
    hold_out: bool = True,
    known: Sequence[str] = (),
) -> Tiles:
    """Cut labelled rasters into tiles to train on, whose images are written into a folder.

    Objects have boxes alone if all polygons are boxes. An object of which a tile shows less than a
    third is a crowd. Tiles of a segmentor get maps, in which 255 is ignored. As many tiles without
    an object stay as tiles with one. Lines say what is left out.

    A fifth of the labels along the longer side of each raster is held out, or every fifth raster if
    there are five or more. No training tile shares a pixel with the held-out areas, which are
    written to `held_out.gpkg`.

    Args:
        rasters: A file, or a folder of rasters.
        labels: Polygons, or for a segmentor a raster of classes.
        folder: The folder to write. It is whole or absent.
        settings: How rasters are read. Raw tiles are GeoTIFFs, others PNGs. Default of `gsd`: the
            first raster's; of `bounds`: the lowest and the highest of all rasters'.
        aoi: Vector file of the area in which the labels are complete. Default: the rasters.
        hold_out: Whether tiles are held out.
        known: As of `label_scenes`.

    Raises:
        FileExistsError: If the folder exists.
        ValueError: If no label lies on the rasters, or options and rasters do not match.
        OSError, RuntimeError: If a file cannot be read.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists: remove it, or name another config by --config")
    options = dict(channels=settings.channels, raw=settings.raw, **settings.reading)
    grids, options = open_alike(list_rasters(Path(rasters)), options)
    areas = find_areas(grids, aoi)
    scenes, classes, with_masks = label_scenes(grids, areas, labels, is_detector, known)
    parts = divide(scenes, hold_out)
    with atomic_folder(folder) as unfinished:
        unfinished.mkdir()
        writer: TileWriter
        if is_detector:
            writer = ObjectTiles(unfinished, settings, classes, with_masks)
        else:
            writer = MapTiles(unfinished, settings, classes)
        _write(parts, writer, options, settings.overlap)
        dataset = writer.finish(folder)
        dataset.descriptions = [grid.path.resolve() for grid in grids] + [
            Path(labels.path).resolve()
        ]
        write_held_out(unfinished, parts)
    del options["channels"], options["raw"]
    stated = dict(tile=settings.tile, overlap=settings.overlap) | options
    return Tiles(dataset, stated, writer.statistics if settings.raw else None)


def _write(
    parts: Sequence[Part], writer: TileWriter, options: dict[str, Any], overlap: int
) -> None:
    """Write the tiles of all parts. Lines count what is left out."""
    planned = [tile for part in parts for tile in _plan(part, writer.side, overlap)]
    tiles = []
    for split in ("train", "val"):
        tiles += _limit_background([tile for tile in planned if tile.split == split], writer)
    tiles.sort(key=lambda tile: tile.raster)  # each raster is opened once
    if isinstance(writer, ObjectTiles):
        _note_ignored_objects(tiles)
    left_out = Counter({"without an object": len(planned) - len(tiles)})
    with progress_bar(len(tiles), "tile") as bar:
        for path, tiles_of_raster in groupby(tiles, key=lambda tile: tile.raster):
            raster = Raster(path, **options)
            for tile in tiles_of_raster:
                left_out[writer.write(tile, raster)] += 1
                bar.update()
    reasons = [f"{count:,} {reason}" for reason, count in left_out.items() if reason and count]
    if reasons:
        print_line(f"left out tiles: {', '.join(reasons)}")
    if not writer.count["train"]:
        raise ValueError("no tile has labels to train on: see what is left out")


def _plan(part: Part, side: int, overlap: int) -> Iterator[Tile]:
    """Yield the tiles of a part that meet its area."""
    spans = [
        [
            slice(axis.start + window.start, axis.start + window.stop)
            for window in windows(len(axis), side, overlap)
        ]
        for axis in (part.rows, part.columns)
    ]
    path = part.scene.grid.path
    labels = part.scene.labels
    shapely.prepare(part.area)
    for rows, columns in product(*spans):
        box = shapely.box(columns.start, rows.start, columns.stop, rows.stop)
        area = box if part.area.contains(box) else part.area.intersection(box)
        if area.area > 0:
            yield Tile(path, part.split, rows, columns, area, labels, labels.cut(area))


def _limit_background(tiles: Sequence[Tile], writer: TileWriter) -> list[Tile]:
    """Select as many tiles without an object as there are tiles with one, evenly spread."""
    background = [tile for tile in tiles if not writer.has_object(tile)]
    count = min(len(background), len(tiles) - len(background))
    places = np.linspace(0, len(background) - 1, count).round().astype(int)
    kept = {background[place].name for place in places}
    return [tile for tile in tiles if tile.name in kept or writer.has_object(tile)]


def _note_ignored_objects(tiles: Sequence[Tile]) -> None:
    """Print a line if no tile shows more than a small part of some objects."""
    objects = [item for tile in tiles for item in tile.objects if item.number >= 0]
    shown = {labelled.label for labelled in objects if is_shown(labelled)}
    ignored = {labelled.label for labelled in objects} - shown
    if ignored:
        problem = f"{len(ignored)} objects are in no tile by more than a third, and ignored"
        print_line(f"{problem}: give a larger --tile or --gsd")
