"""Labelled rasters as tiles to train on: which tiles are written, and which are left out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, groupby, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from ..datasets.old_dataset import Dataset
from ..prediction.tiles import windows
from ..utils.atomic import atomic_folder
from ..utils.cli import print_line, progress_bar
from .gdal import list_rasters
from .labels import LabelFile
from .old_raster import Raster
from .scenes import LabelledRasters, Scene, divide, label_rasters, open_alike, write_held_out
from .settings import RasterSettings
from .tiles import MapTiles, ObjectTiles, Tile, TileWriter


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
    model_classes: Sequence[str] = (),
) -> Tiles:
    """Cut labelled rasters into tiles to train on, whose images are written into a folder.

    Objects have boxes alone if all polygons are boxes. An object of which a tile shows less than a
    third, or that lies mostly on pixels without data, is a crowd. Tiles of a segmentor get maps, in
    which 255 is ignored. As many tiles without an object stay as tiles with one. Lines say what is
    left out.

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
        model_classes: Classes of a model, whose order the labels take if they have the same.

    Raises:
        FileExistsError: If the folder exists.
        ValueError: If no label lies on the rasters, or options and rasters do not match.
        OSError, RuntimeError: If a file cannot be read.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists: remove it, or name another config by --config")
    paths = list_rasters(Path(rasters))
    grids, options = open_alike(paths, dict(settings.options))
    labelled = label_rasters(grids, labels, is_detector, aoi, model_classes)
    parts = divide(labelled.scenes, hold_out)
    is_raw = options["raw"]
    with atomic_folder(folder) as unfinished:
        unfinished.mkdir()
        writer: TileWriter
        if is_detector:
            has_masks = labelled.has_masks
            writer = ObjectTiles(unfinished, settings.tile, is_raw, labelled.classes, has_masks)
        else:
            writer = MapTiles(unfinished, settings.tile, is_raw, labelled.classes)
        _write(parts, writer, options, settings.overlap)
        _report(labelled, writer)
        dataset = writer.finish(folder)
        write_held_out(unfinished, parts)
    sources = [*chain(*(grid.files for grid in grids)), *labels.files]
    dataset.descriptions = [path.resolve() for path in sources]
    stated = dict(tile=settings.tile, overlap=settings.overlap) | options
    del stated["channels"], stated["raw"]
    return Tiles(dataset, stated, writer.statistics if is_raw else None)


def _write(
    parts: Sequence[Scene], writer: TileWriter, options: dict[str, Any], overlap: int
) -> None:
    """Write the tiles of all parts. Lines count the tiles that are left out."""
    planned = [tile for part in parts for tile in _plan(part, writer.side, overlap)]
    with_object = [tile for tile in planned if writer.has_object(tile)]
    background = [tile for tile in planned if not writer.has_object(tile)]
    left_out = _write_tiles(with_object, writer, options)
    kept = []
    for split in ("train", "val"):
        of_split = [tile for tile in background if tile.scene.split == split]
        kept += _spread(of_split, writer.with_object[split])
    left_out += _write_tiles(kept, writer, options)
    left_out["without an object"] = len(background) - len(kept)
    reasons = [f"{count:,} {reason}" for reason, count in left_out.items() if count]
    if reasons:
        print_line(f"left out tiles: {', '.join(reasons)}")
    if not writer.written["train"]:
        raise ValueError("no tile has labels to train on: see what is left out")


def _write_tiles(
    tiles: Sequence[Tile], writer: TileWriter, options: dict[str, Any]
) -> Counter[str]:
    """Write tiles, and count those that are left out by their reasons."""
    left_out = Counter[str]()
    with progress_bar(len(tiles), "tile", disable=not tiles) as bar:
        for path, tiles_of_raster in groupby(tiles, lambda tile: tile.scene.grid.path):
            raster = Raster(path, **options)
            for tile in tiles_of_raster:
                left_out[writer.write(tile, raster)] += 1
                bar.update()
    del left_out[""]
    return left_out


def _spread(tiles: Sequence[Tile], count: int) -> list[Tile]:
    """Select up to `count` tiles, evenly spread."""
    numbers = np.linspace(0, len(tiles) - 1, min(count, len(tiles)))
    return [tiles[number] for number in numbers.round().astype(int)]


def _report(labelled: LabelledRasters, writer: TileWriter) -> None:
    """Complete and print the tally: how many labels tiles show, or leave out for what reason."""
    tally = labelled.tally
    hidden = labelled.used - writer.shown_labels
    tally.left_out["without data in the raster"] = len(hidden & writer.without_data)
    tally.left_out[writer.why_not_shown] = len(hidden - writer.without_data)
    if tally.total and not writer.shown_labels:
        raise ValueError(f"{tally}: give other labels, or a larger --tile or --gsd")
    if tally.total:
        print_line(str(tally))


def _plan(part: Scene, side: int, overlap: int) -> Iterator[Tile]:
    """Yield the tiles of a part that meet its area."""
    spans = [
        [
            slice(axis.start + window.start, axis.start + window.stop)
            for window in windows(len(axis), side, overlap)
        ]
        for axis in (part.rows, part.columns)
    ]
    shapely.prepare(part.area)
    for rows, columns in product(*spans):
        box = shapely.box(columns.start, rows.start, columns.stop, rows.stop)
        area = box if part.area.contains(box) else part.area.intersection(box)
        if area.area > 0:
            yield Tile(part, rows, columns, area, part.labels.cut(area))
