"""A labelled raster as tiles to train on: which tiles are written, and which are left out."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from ..datasets.writing import write_coco
from ..prediction.tiles import windows
from ..utils.atomic import atomic_path
from ..utils.cli import print_line, progress_bar
from ..utils.errors import preview
from .labels import BACKGROUND, NO_CLASS, DrawnClasses, LabelFile, StoredClasses
from .polygons import area_in_pixels, describe_extents, in_pixels, to_map, write_layer
from .raster import Raster
from .settings import RasterSettings
from .tiles import MIN_SHOWN, Tile, TileImages, write_map_tile, write_object_tile

HELD_OUT = "held_out.gpkg"
"""Name of the file with the held-out area."""
_WRITTEN = {"train", "val", "images", "masks", "train.json", "val.json", "classes.txt", HELD_OUT}
_STATED = ("bands", "nodata")  # options of the raster that a config states, beside its bounds
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

    Tiles without an object are at most as many as tiles with one. A fifth of the labels, at the end
    of the longer side of the area, is held out: no training tile shares a pixel with the area in
    `held_out.gpkg`. Lines count what is left out.

    Args:
        folder: The folder to write. It is whole or absent.
        aoi: Vector file of the area in which the labels are complete. Default: the raster.
        overwrite: Whether to replace the folder of an earlier call.
        model_classes: Classes of a model, whose order the labels take if they have the same.

    Raises:
        FileExistsError: If the folder exists.
        ValueError: If no label lies in the area, or labels and raster do not match.
        OSError, RuntimeError: If a file cannot be read.
    """
    if folder.exists() and not overwrite:
        raise FileExistsError(f"{folder} exists: --overwrite cuts the tiles again")
    others = [path.name for path in folder.glob("*") if path.name not in _WRITTEN]
    if others:
        raise ValueError(f"{folder} holds {preview(others)}, which are not of tiles: move them")
    raster = Raster(path, **settings.options)
    for note in raster.notes:
        print_line(f"{path}: {note}")
    area = shapely.box(0, 0, raster.width, raster.height)
    if aoi is None:
        print_line("without --aoi, labels count as complete on all of the raster")
    else:
        area = area_in_pixels(aoi, raster)
    labels: DrawnClasses | StoredClasses
    if is_detector or not source.is_raster():
        labels = _draw_labels(source, raster, area, is_detector, model_classes)
    else:
        labels = StoredClasses(source.path, raster)
    parts = _divide(area, labels) if hold_out else {"train": area}
    tiles = list(_plan(parts, labels, settings, MIN_SHOWN if is_detector else 0))
    is_raw = settings.options["raw"]
    with atomic_path(folder) as unfinished:
        unfinished.mkdir()
        images = TileImages(raster, unfinished, settings.tile, is_raw)
        if is_detector and isinstance(labels, DrawnClasses):
            _write_objects(tiles, images, labels)
        else:
            _write_maps(tiles, images, labels)
        if "val" in parts:
            held_out = to_map(parts["val"], raster).to_frame("geometry")
            write_layer(held_out, unfinished / HELD_OUT, "held_out")
        if folder.exists():
            shutil.rmtree(folder)
    stated: dict[str, Any] = dict(tile=settings.tile, overlap=settings.overlap)
    stated |= {name: value for name, value in settings.options.items() if name in _STATED}
    if raster.bounds is not None:
        stated["bounds"] = raster.bounds.ravel().tolist()
    return Tiles(stated, images.statistics if is_raw else None)


def _draw_labels(
    source: LabelFile, raster: Raster, area: Any, is_detector: bool, model_classes: Sequence[str]
) -> DrawnClasses:
    """Read the polygons that meet an area. A line counts the others."""
    labels = source.read(raster.crs)
    shapes = in_pixels(labels.geometry, raster)
    is_inside = shapely.intersects(area, shapes)
    if not is_inside.any():
        extents = describe_extents(shapely.total_bounds(shapes), area.bounds)
        raise ValueError(f"{source.path} has no polygon in the area: in pixels, {extents}")
    classes = labels["class"][is_inside]
    names = sorted({*classes} - {NO_CLASS})
    if not names:
        raise ValueError(f"{source.path}: no polygon in the area has a class")
    counts = f"{(~is_inside).sum()} outside of the area, {(classes == NO_CLASS).sum()} without a"
    print_line(f"{source.path}: {len(labels)} polygons, {counts} class")
    if not is_detector:
        names = [BACKGROUND, *(name for name in names if name != BACKGROUND)]
    if set(names) == set(model_classes):
        names = list(model_classes)
    return DrawnClasses(labels[is_inside], raster, names)


def _divide(area: Any, labels: DrawnClasses | StoredClasses) -> dict[str, Any]:
    """Divide an area into a part to train on and, at the end of its longer side, a part to hold
    out. Most centres of polygons, or most of the area, lie in the first.
    """
    min_x, min_y, max_x, max_y = area.bounds
    axis = 0 if max_x - min_x > max_y - min_y else 1
    positions = np.array([(min_x, min_y), (max_x, max_y)])
    if isinstance(labels, DrawnClasses):
        drawn = labels.shapes[labels.numbers >= 0]
        if len(drawn) > 1:
            positions = shapely.get_coordinates(shapely.centroid(drawn))
    border = round(np.quantile(positions[:, axis], _TRAINED_SHARE))
    limits = (border, max_y) if axis == 0 else (max_x, border)
    trained = shapely.box(min_x, min_y, *limits)
    parts = {"train": area.intersection(trained), "val": area.difference(trained)}
    return {split: part for split, part in parts.items() if part.area > 0}


def _plan(
    parts: Mapping[str, Any],
    labels: DrawnClasses | StoredClasses,
    settings: RasterSettings,
    min_shown: float,
) -> Iterator[Tile]:
    """Yield the tiles that meet the parts of an area."""
    for split, part in parts.items():
        shapely.prepare(part)
        spans = []
        for start, stop in np.reshape(part.bounds, (2, 2)).T:
            first = int(start)
            axis = windows(int(np.ceil(stop)) - first, settings.tile, settings.overlap)
            spans.append([slice(first + tile.start, first + tile.stop) for tile in axis])
        for columns, rows in product(*spans):
            box = shapely.box(columns.start, rows.start, columns.stop, rows.stop)
            area = box if part.contains(box) else part.intersection(box)
            if area.area == 0:
                continue
            objects = labels.cut(area)
            has_object = any(part.number >= 0 and part.share > min_shown for part in objects)
            is_stored = isinstance(labels, StoredClasses)  # which tell when they are read
            yield Tile(split, rows, columns, area, objects, has_object or is_stored)


def _write_objects(tiles: Sequence[Tile], images: TileImages, labels: DrawnClasses) -> None:
    """Write tiles and COCO's jsons. A line counts the labels that the tiles show."""
    drawn = labels.shapes[labels.numbers >= 0]
    are_boxes = shapely.area(drawn) > 0.999 * shapely.area(shapely.envelope(drawn))
    has_masks = not are_boxes.all()
    classes = len(labels.names)
    write = partial(write_object_tile, images=images, classes=classes, has_masks=has_masks)
    written = _write_all(tiles, write)
    for split in {tile.split for tile, _ in written}:
        of_split = [objects for tile, objects in written if tile.split == split]
        annotations = [annotation for objects in of_split for annotation in objects.annotations]
        coco_images = [objects.image for objects in of_split]
        write_coco(images.folder / f"{split}.json", labels.names, coco_images, annotations)
    shown = set().union(*(objects.shown for _, objects in written))
    print_line(f"the tiles show {len(shown)} of {len(drawn)} labels")


def _write_maps(
    tiles: Sequence[Tile], images: TileImages, labels: DrawnClasses | StoredClasses
) -> None:
    """Write tiles, maps and classes.txt. Classes without a name are named by their numbers."""
    written = _write_all(tiles, partial(write_map_tile, images=images, labels=labels))
    highest = max(number for _, number in written)
    names = labels.names or [f"class {number}" for number in range(highest + 1)]
    (images.folder / "classes.txt").write_text("\n".join(names), "utf-8")


def _choose(tiles: Sequence[Tile]) -> list[Tile]:
    """Return the tiles that have an object and, of each split, up to as many others."""
    chosen = [tile for tile in tiles if tile.has_object]
    for split in ("train", "val"):
        others = [tile for tile in tiles if tile.split == split and not tile.has_object]
        count = min(sum(tile.split == split for tile in chosen), len(others))
        numbers = np.linspace(0, len(others) - 1, count).round().astype(int)
        chosen += [others[number] for number in numbers]
    return chosen


def _write_all(tiles: Sequence[Tile], write: Callable[[Tile], Any]) -> list[tuple[Tile, Any]]:
    """Write tiles, and return those that have data with what was written. A line counts the others.

    Raises:
        ValueError: If no tile to train on has an object.
    """
    written = []
    chosen = _choose(tiles)
    with progress_bar(len(chosen), "tile") as bar:
        for tile in chosen:
            content = write(tile)
            if content is not None:
                written.append((tile, content))
            bar.update()
    if not any(tile.split == "train" and tile.has_object for tile, _ in written):
        raise ValueError("no tile has labels to train on: give other labels, or a larger --tile")
    without_object = len(tiles) - len(chosen)
    without_data = len(chosen) - len(written)
    print_line(f"left out tiles: {without_object} without an object, {without_data} without data")
    return written
