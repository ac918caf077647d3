"""A labelled raster as tiles to train on: which tiles are written, and which are left out."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from ..datasets.dataset import IGNORED
from ..datasets.writing import write_coco
from ..prediction.tiles import windows
from ..utils.atomic import atomic_path
from ..utils.cli import print_line, progress_bar
from ..utils.errors import preview
from .labels import BACKGROUND, NO_CLASS, LabelFile, Labels
from .polygons import area_in_pixels, in_pixels, to_map
from .raster import Raster
from .settings import READING, RasterSettings
from .tiles import MIN_SHOWN, Tile, TileImages, write_map_tile, write_object_tile

HELD_OUT = "held_out.gpkg"
"""Name of the file with the held-out area."""
_WRITTEN = {"train", "val", "images", "masks", "train.json", "val.json", "classes.txt", HELD_OUT}
_TRAINED_SHARE = 0.8  # of the labels


class Tiles(NamedTuple):
    """What a config says of tiles.

    Attributes:
        settings: How the raster was read: keyword arguments of `predict_raster`.
        statistics: Mean and standard deviation of each band, if tiles have the stored values.
    """

    settings: dict[str, Any]
    statistics: tuple[list[float], list[float]] | None


def cut_raster(
    path: str | Path,
    source: LabelFile,
    folder: Path,
    settings: RasterSettings,
    *,
    is_detector: bool,
    aoi: str | Path | None = None,
    hold_out: bool = True,
    overwrite: bool = False,
    model_classes: Sequence[str] = (),
) -> Tiles:
    """Cut a labelled raster into tiles to train on: for a detector `train.json`, `val.json` and
    their images, for a segmentor `images`, `masks` and `classes.txt`.

    A fifth of the labels, at the end of the longer side of the area, is held out: no training tile
    shares a pixel with the area in `held_out.gpkg`. Lines count what is left out.

    Args:
        folder: The folder to write. It is whole or absent.
        aoi: Vector file of the area in which the labels are complete. Default: the raster.
        model_classes: Classes of a model, whose order the labels take if they have the same.

    Raises:
        FileExistsError: If the folder exists, without `overwrite`.
        ValueError: If no label lies in the area, or labels and raster do not match.
    """
    _check_folder(folder, overwrite)
    raster = Raster(path, **settings.options)
    if raster.note:
        print_line(f"{path}: {raster.note}")
    if aoi is None:
        print_line("without --aoi, labels count as complete on all of the raster")
    area = area_in_pixels(aoi, raster)
    labels = _read_labels(source, raster, area, [] if is_detector else [BACKGROUND], model_classes)
    parts = _divide(area, labels) if hold_out else {"train": area}
    with atomic_path(folder) as unfinished:
        unfinished.mkdir()
        images = {split: TileImages(raster, unfinished, split, settings) for split in parts}
        if is_detector:
            _write_objects(parts, images, labels, settings)
        else:
            for split, part in parts.items():
                tiles = list(_plan(part, labels, settings, 0))
                _write_tiles(split, tiles, partial(write_map_tile, images[split], labels))
            (unfinished / "classes.txt").write_text("\n".join(labels.names), "utf-8")
        if "val" in parts:
            to_map(parts["val"], raster).to_file(unfinished / HELD_OUT, layer="held_out")
        if folder.exists():
            shutil.rmtree(folder)
    reading = {name: value for name, value in settings.options.items() if name in READING}
    stated = dict(tile=settings.tile, overlap=settings.overlap) | reading
    return Tiles(stated, images["train"].statistics)


def _check_folder(folder: Path, overwrite: bool) -> None:
    """Raise an error if a folder exists, or has files of the user."""
    if folder.exists() and not overwrite:
        raise FileExistsError(f"{folder} exists: --overwrite cuts the tiles again")
    others = [path.name for path in folder.glob("*") if path.name not in _WRITTEN]
    if others:
        raise ValueError(f"{folder} holds {preview(others)}, which are not of tiles: move them")


def _read_labels(
    source: LabelFile,
    raster: Raster,
    area: Any,
    first_classes: Sequence[str],
    model_classes: Sequence[str],
) -> Labels:
    """Read the polygons that meet an area. A line counts the others. The `first_classes` stand
    before those of the polygons.
    """
    polygons = source.read(raster.crs)
    is_inside = shapely.intersects(area, in_pixels(polygons.geometry, raster))
    classes = polygons["class"][is_inside]
    has_class = classes != NO_CLASS
    if not has_class.any():
        problem = f"{source.path} has no polygon with a class in the area"
        raise ValueError(f"{problem}: compare both in a GIS")
    counts = f"{(~is_inside).sum()} outside of the area, {(~has_class).sum()} without a class"
    print_line(f"{source.path}: {len(polygons)} polygons, {counts}")
    names = [*first_classes, *sorted({*classes[has_class]} - {*first_classes})]
    if set(names) == set(model_classes):
        names = list(model_classes)
    if len(names) > IGNORED:
        raise ValueError(f"{source.path} has {len(names)} classes: a map has at most {IGNORED}")
    return Labels(polygons[is_inside], raster, names)


def _divide(area: Any, labels: Labels) -> dict[str, Any]:
    """Divide an area into a part to train on and, at the end of its longer side, a part to hold
    out. Most centres of polygons, or most of the area, lie in the first.
    """
    min_x, min_y, max_x, max_y = area.bounds
    axis = 0 if max_x - min_x > max_y - min_y else 1
    drawn = labels.shapes[labels.numbers >= 0]
    positions = np.array([(min_x, min_y), (max_x, max_y)])
    if len(drawn) > 1:
        positions = shapely.get_coordinates(shapely.centroid(drawn))
    border = round(np.quantile(positions[:, axis], _TRAINED_SHARE))
    limits = (border, max_y) if axis == 0 else (max_x, border)
    trained = shapely.box(min_x, min_y, *limits)
    parts = {"train": area.intersection(trained), "val": area.difference(trained)}
    return {split: part for split, part in parts.items() if part.area > 0}


def _plan(part: Any, labels: Labels, settings: RasterSettings, min_shown: float) -> Iterator[Tile]:
    """Yield the tiles that meet a part of the area."""
    shapely.prepare(part)
    spans = []
    for start, stop in np.reshape(part.bounds, (2, 2)).T:
        first = int(start)
        axis = windows(int(np.ceil(stop)) - first, settings.tile, settings.overlap)
        spans.append([slice(first + tile.start, first + tile.stop) for tile in axis])
    for columns, rows in product(*spans):
        box = shapely.box(columns.start, rows.start, columns.stop, rows.stop)
        area = box if part.contains(box) else part.intersection(box)
        if area.area > 0:
            objects = labels.cut(area)
            has_object = any(cut.number >= 0 and cut.share > min_shown for cut in objects)
            yield Tile(rows, columns, area, objects, has_object)


def _write_objects(
    parts: Mapping[str, Any],
    images: Mapping[str, TileImages],
    labels: Labels,
    settings: RasterSettings,
) -> None:
    """Write tiles and COCO's jsons. A line counts the labels that the tiles show."""
    drawn = labels.shapes[labels.numbers >= 0]
    are_boxes = shapely.area(drawn) > 0.999 * shapely.area(shapely.envelope(drawn))
    has_masks = not are_boxes.all()
    shown: set[int] = set()
    for split, part in parts.items():
        tiles = list(_plan(part, labels, settings, MIN_SHOWN))
        write = partial(write_object_tile, images[split], len(labels.names), has_masks)
        written = _write_tiles(split, tiles, write)
        annotations = [annotation for tile in written for annotation in tile.annotations]
        coco_images = [tile.image for tile in written]
        write_coco(images[split].folder / f"{split}.json", labels.names, coco_images, annotations)
        shown.update(*(tile.shown for tile in written))
    print_line(f"the tiles show {len(shown)} of {len(drawn)} labels")


def _write_tiles(split: str, tiles: Sequence[Tile], write: Callable[[Tile], Any]) -> list[Any]:
    """Write the tiles of a split that have an object, and up to as many others. Return what was
    written of those that have data. A line counts the tiles.

    Raises:
        ValueError: If no tile to train on has an object.
    """
    chosen = [tile for tile in tiles if tile.has_object]
    others = [tile for tile in tiles if not tile.has_object]
    numbers = np.linspace(0, len(others) - 1, min(len(chosen), len(others))).round().astype(int)
    with_objects = len(chosen)
    chosen += [others[number] for number in numbers]
    contents = []
    with progress_bar(len(chosen), "tile") as bar:
        for tile in chosen:
            contents.append(write(tile))
            bar.update()
    if split == "train" and all(content is None for content in contents[:with_objects]):
        raise ValueError("no tile has labels to train on: give other labels, or a larger --tile")
    written = [content for content in contents if content is not None]
    without_object = f"{len(tiles) - len(chosen)} without an object"
    without_data = f"{len(chosen) - len(written)} without data"
    print_line(f"{split}: {len(written)} tiles, left out {without_object}, {without_data}")
    return written
