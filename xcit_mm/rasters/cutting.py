"""A labelled raster as tiles to train on: which tiles are written, and which are left out."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from ..datasets import IGNORED, Dataset, dataset_of_objects, read_dataset
from ..models.windows import check_overlap, tiles_along
from ..utils.atomic import atomic_path
from ..utils.errors import ArgumentError, preview
from ..utils.output import progress_bar, say
from .labels import BACKGROUND, NO_CLASS, LabelFile, Labels, note_similar
from .polygons import (
    Polygons,
    area_in_pixels,
    box_of,
    in_pixels,
    share_pixels,
    shared_part,
    to_map,
)
from .raster import Raster
from .settings import READING, SCALING
from .tiles import Tile, write_images, write_maps, write_objects

# What a folder of tiles may hold.
_WRITTEN = {
    "train",
    "val",
    "images",
    "masks",
    "train.json",
    "val.json",
    "classes.txt",
    "held_out.gpkg",
}


class Tiles(NamedTuple):
    """The tiles of a labelled raster.

    Attributes:
        dataset: Their images and labels.
        settings: How the raster was read: keyword arguments of `predict_raster`.
        pixel_size: In metres, or None without a place.
        statistics: Mean and standard deviation of each band in a sample of the raster, if tiles
            have the stored values.
    """

    dataset: Dataset
    settings: dict[str, Any]
    pixel_size: float | None
    statistics: tuple[list[float], list[float]] | None


def check_folder(folder: Path) -> None:
    """Raise ValueError if a folder has something else than tiles, such as files of the user."""
    others = [path.name for path in folder.glob("*") if path.name not in _WRITTEN]
    if others:
        raise ValueError(f"{folder} holds {preview(others)}, which are not of tiles: move them")


def cut_raster(
    path: str | Path,
    source: LabelFile,
    folder: Path,
    reading: Mapping[str, Any],
    *,
    is_detector: bool,
    aoi: Polygons | None = None,
    hold_out: bool = True,
    whole: bool = False,
    model_classes: Sequence[str] = (),
) -> Tiles:
    """Cut a labelled raster into a new folder of tiles to train on.

    A detector gets `train.json`, `val.json` and their images, a segmentor `images`, `masks` and
    `classes.txt`. With `hold_out`, no training tile shares a pixel with the area in
    `held_out.gpkg`.

    Args:
        reading: What `resolve_settings` returns.
        aoi: The area in which the labels are complete. Default: the raster.
        whole: Whether to write one image of all that is trained, in place of tiles, and one of what
            is held out. They show the pixels around the area, too.
        model_classes: Classes of the model. If the labels have the same, they take their order.

    Raises:
        ArgumentError: If no label lies in the area or in one of its two parts, or labels and raster
            do not match.
    """
    options = dict(reading)
    tile = options.pop("tile")
    overlap = options.pop("overlap", tile // 4)
    check_overlap(tile, overlap)
    settings = {name: reading[name] for name in READING if name in reading} | dict(overlap=overlap)
    with Raster(path, **options) as raster, atomic_path(folder) as unfinished:
        area = area_in_pixels(aoi, raster)
        labels = _read_labels(source, raster, area, is_detector, model_classes)
        statistics = _measure_bands(raster) if raster.raw else None
        parts = _divide(area, labels) if hold_out else {"train": area}
        unfinished.mkdir()
        objects: dict[str, Any] = {}
        for split, part in parts.items():
            side, shared = (None, 0) if whole else (tile, overlap)
            tiles = _choose_tiles(_cut_into_tiles(part, side, shared), labels)
            if not tiles:
                raise ArgumentError("labels", f"no label in {split} is a pixel wide: give others")
            image_folder = unfinished / split if is_detector else unfinished / "images" / split
            write = write_objects if is_detector else write_maps
            with progress_bar(len(tiles), "tile", desc=split, iterable=tiles) as bar:
                images = write_images(raster, bar, image_folder, shows_all=whole)
                objects[split] = write(unfinished, split, labels, images)
            count = len([*image_folder.iterdir()])
            say(f"{split}: {count} tiles; {len(tiles) - count} without data are left out")
        if "val" in parts:
            to_map([parts["val"]], raster).to_file(unfinished / "held_out.gpkg")
        if raster.scaling:
            settings[SCALING] = raster.scaling
    if is_detector:
        dataset = dataset_of_objects(objects["train"], objects.get("val"), model_classes)
    else:
        dataset = read_dataset(folder, is_detector)
    return Tiles(dataset, settings, raster.pixel_size, statistics)


def _read_labels(
    source: LabelFile, raster: Raster, area: Any, is_detector: bool, model_classes: Sequence[str]
) -> Labels:
    """Read the labels in an area of a raster, and number their classes.

    Raises:
        ArgumentError: If no label with a class lies in the area, or a segmentor cannot have these
            classes.
    """
    polygons = source.read(raster.crs)
    is_inside = share_pixels(area, in_pixels(polygons.geometry, raster))
    classes = polygons["class"][is_inside]
    has_class = classes != NO_CLASS
    if not has_class.any():
        problem = f"{source.name} has no polygon with a class in the area"
        raise ArgumentError("labels", f"{problem}: compare both in a GIS")
    counts = f"{(~is_inside).sum()} outside of the area, {(~has_class).sum()} without a class"
    say(f"{source.name}: {len(polygons)} polygons, {counts}")
    names = sorted({*classes[has_class]})
    note_similar({*names, *model_classes}, source.name)
    if any(len(name.splitlines()) != 1 for name in names):
        raise ArgumentError("labels", f"{source.name} has a class with a line break: {names}")
    if not is_detector:
        names = [BACKGROUND, *(name for name in names if name != BACKGROUND)]
        if not 1 < len(names) <= IGNORED:
            problem = f"{source.name} has {len(names)} classes with the background"
            raise ArgumentError("labels", f"{problem}: a map has 2 to {IGNORED}")
    if set(names) == set(model_classes):
        names = list(model_classes)
    return Labels(polygons[is_inside], raster, names)


def _measure_bands(raster: Raster) -> tuple[list[float], list[float]]:
    """Return the mean and the standard deviation of each band in a sample.

    Raises:
        ValueError: If the sample has no data.
    """
    sample = np.ma.masked_invalid(raster.sample)
    if not sample.size:
        raise ValueError(f"{raster.path}: a sample has no data: cut it to the part with data")
    deviation = sample.std(axis=1)
    deviation[deviation == 0] = 1
    return sample.mean(axis=1).tolist(), deviation.tolist()


def _divide(area: Any, labels: Labels) -> dict[str, Any]:
    """Divide an area across its longer side, and hold out the end with a fifth of the labels.

    A label lies where the centre of its part in the area lies. Both parts are at least a pixel
    wide, even if all labels lie at an edge of the area.

    Returns:
        The area to train on, and the area at the right or the lower end that is held out.
    """
    min_x, min_y, max_x, max_y = area.bounds
    axis = 0 if max_x - min_x > max_y - min_y else 1
    inside = shapely.intersection(labels.objects, area)
    centres = shapely.get_coordinates(shapely.centroid(inside))
    border = round(np.quantile(centres[:, axis], 0.8))
    trained = list(area.bounds)
    trained[axis + 2] = np.clip(border, trained[axis] + 1, trained[axis + 2] - 1)
    box = shapely.box(*trained)
    return {"train": shared_part(area, box), "val": area.difference(box)}


def _cut_into_tiles(area: Any, side: int | None, overlap: int) -> list[Tile]:
    """Cut an area into tiles, or without a side into one tile that covers it."""
    spans = []
    for start, stop in np.reshape(area.bounds, (2, 2)).T:
        first = int(start)
        length = max(int(np.ceil(stop)) - first, side or 1)
        axis = tiles_along(length, side or length, overlap)
        spans.append([slice(first + tile.start, first + tile.stop) for tile in axis])
    tiles = []
    for columns, rows in product(*spans):
        tiles.append(Tile(rows, columns, shared_part(area, box_of(rows, columns))))
    return [tile for tile in tiles if tile.area.area > 0]


def _choose_tiles(tiles: list[Tile], labels: Labels) -> list[Tile]:
    """Return the tiles that have an object, and up to as many others, evenly spread."""
    with_object: list[Tile] = []
    others: list[Tile] = []
    for tile in tiles:
        has_object = any(labels.numbers[label] >= 0 for label, _ in labels.cut(tile.area))
        (with_object if has_object else others).append(tile)
    count = min(len(with_object), len(others))
    spread = np.linspace(0, len(others) - 1, count).round().astype(int)
    return with_object + [others[number] for number in spread]
