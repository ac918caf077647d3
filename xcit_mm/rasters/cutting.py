"""Labelled rasters as tiles to train on: what is cut where, and into which split."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely
from shapely.affinity import affine_transform

from ..prediction.tiles import overlap_of_tiles, windows
from ..utils.atomic import atomic_folder
from ..utils.cli import print_line, progress_bar
from .files import list_rasters
from .labels import (
    BACKGROUND,
    DrawnClasses,
    StoredClasses,
    are_boxes,
    is_raster,
    place_labels,
    read_labels,
)
from .polygons import footprint, read_area
from .raster import Raster, pixel_size
from .tiles import MIN_VISIBLE, MapTiles, ObjectTiles, Tile, TileWriter

HELD_OUT = "held_out.gpkg"
"""Name of the file with the held-out areas."""
_TRAINED = 0.8  # share of the labels
_MANY = 5  # rasters, of which whole ones are held out


class Tiles(NamedTuple):
    """Tiles in a folder.

    Attributes:
        settings: How the rasters were read: keyword arguments of `predict_raster`.
        statistics: Mean and standard deviation of each band, if tiles have the stored values.
    """

    folder: Path
    settings: dict[str, Any]
    statistics: tuple[list[float], list[float]] | None


@dataclass
class _Scene:
    """A raster and its labels.

    Attributes:
        area: Where the labels are complete, in pixels.
        labels: The labels in pixels.
    """

    path: Path
    height: int
    width: int
    transform: Any
    crs: Any
    area: Any = None
    labels: Any = None

    def to_pixels(self, shapes: Any) -> Any:
        """Return the union of a GeoSeries in pixels, cut to the raster."""
        union = _to_crs(shapes, self.crs).union_all()
        pixels = affine_transform(union, (~self.transform).to_shapely())
        return pixels.intersection(shapely.box(0, 0, self.width, self.height))

    def to_map(self, shape: Any, crs: Any) -> Any:
        """Return a shape in pixels as a GeoSeries in a coordinate system."""
        import geopandas

        placed = affine_transform(shape, self.transform.to_shapely())
        return _to_crs(geopandas.GeoSeries([placed], crs=self.crs), crs)


class _Part(NamedTuple):
    """A part of a raster that is trained on or held out.

    Attributes:
        area: Where the labels are complete, in pixels of the raster.
        rows, columns: Pixels of the part.
    """

    scene: _Scene
    split: str
    area: Any
    rows: range
    columns: range


def cut_rasters(
    rasters: str | Path,
    labels: str | Path,
    folder: Path,
    *,
    is_detector: bool,
    channels: int = 3,
    raw: bool = False,
    tile: int = 512,
    overlap: int | None = None,
    aoi: str | Path | None = None,
    class_column: str | None = None,
    hold_out: bool = True,
    **loading: Any,
) -> Tiles:
    """Cut labelled rasters into tiles to train on, in a folder that `train --data` reads.

    Objects are written as COCO jsons, boxes alone if all polygons are boxes. An object of which a
    tile shows less than a third is `iscrowd`. Images of a segmentor get maps, in which 255 is
    ignored. Tiles without an object stay up to the number of those with an object. Lines say what
    is left out.

    A fifth of the labels along the longer side of each raster is held out, or every fifth raster if
    there are five or more. No training tile shares a pixel with the held-out areas, which are
    written to `held_out.gpkg`.

    Args:
        rasters: A file, or a folder of rasters.
        labels: As of `score_raster`.
        folder: The folder to write. It is whole or absent.
        channels, raw: As of `Raster`. Raw tiles are GeoTIFFs, others PNGs.
        tile, overlap: As of `predict_raster`.
        aoi: Vector file of the area in which the labels are complete. Default: the rasters.
        class_column: As of `score_raster`.
        hold_out: Whether tiles are held out.
        loading: `gsd`, `bands`, `bounds`, `percentiles` and `nodata` of `Raster`, or None. Default
            of `gsd`: the first raster's; of `bounds`: the lowest and the highest of all rasters'.

    Raises:
        FileExistsError: If the folder exists.
        ValueError: If no label lies on the rasters, or options and rasters do not match.
        OSError, RuntimeError: If a file cannot be read.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists: remove it, or name another config by --config")
    overlap = overlap_of_tiles(tile, overlap)  # raises an error before anything is read
    options = {name: value for name, value in loading.items() if value is not None}
    options |= dict(channels=channels, raw=raw)
    scenes, options = _open_scenes(list_rasters(Path(rasters)), options)
    _limit(scenes, aoi)
    classes, with_masks = _label(scenes, labels, class_column, is_detector)
    parts = _divide(scenes, hold_out)
    with atomic_folder(folder) as unfinished:
        unfinished.mkdir()
        writer: TileWriter
        if is_detector:
            writer = ObjectTiles(unfinished, tile, raw, classes, with_masks)
        else:
            writer = MapTiles(unfinished, tile, raw, classes)
        _write(parts, writer, options, overlap)
        if any(part.split == "val" for part in parts):
            _write_held_out(unfinished / HELD_OUT, parts)
    settings = dict(tile=tile, overlap=overlap)
    settings |= {name: value for name, value in options.items() if name not in ("channels", "raw")}
    return Tiles(folder, settings, writer.statistics if raw else None)


def _open_scenes(
    paths: Sequence[Path], options: dict[str, Any]
) -> tuple[list[_Scene], dict[str, Any]]:
    """Return the rasters, and the options by which all are read alike."""
    first = Raster(paths[0], **options)
    if first.crs is not None and "gsd" not in options:
        options = options | dict(gsd=float(f"{np.mean(pixel_size(first)):.4g}"))
    scenes = []
    bounds = {}
    for path in paths:
        raster = Raster(path, **options)
        for note in raster.notes:
            print_line(f"{path}: {note}")
        place = raster.height, raster.width, raster.transform, raster.crs
        scenes.append(_Scene(path, *place))
        bounds[path] = raster.bounds
    if len(scenes) > 1 and any(scene.transform.is_identity for scene in scenes):
        raise ValueError(f"{paths[0].parent} has rasters without a place: cut each by itself")
    options = {name: value for name, value in options.items() if name != "percentiles"}
    scaled = [pairs for pairs in bounds.values() if pairs is not None]
    if scaled:
        unscaled = [path for path, pairs in bounds.items() if pairs is None]
        if unscaled:
            problem = f"{unscaled[0]} has 8 bits, and other rasters have more"
            raise ValueError(f"{problem}: give --bounds for all, or train each kind by itself")
        lowest = np.min(scaled, axis=0)[:, 0]
        highest = np.max(scaled, axis=0)[:, 1]
        common = np.stack([lowest, highest], axis=1).ravel()
        options["bounds"] = [float(f"{value:.6g}") for value in common]
    return scenes, options


def _limit(scenes: Sequence[_Scene], aoi: str | Path | None) -> None:
    """Set the areas in which the labels of the rasters are complete."""
    import geopandas
    import pandas

    for scene in scenes:
        scene.area = shapely.box(0, 0, scene.width, scene.height)
    if aoi is None:
        print_line("without --aoi, labels count as complete on all of the rasters")
        return
    crs = scenes[0].crs
    places = [_to_crs(footprint(scene), crs) for scene in scenes]
    area = read_area(aoi, crs, pandas.concat(places))
    for scene in scenes:
        scene.area = scene.to_pixels(geopandas.GeoSeries([area], crs=crs))


def _to_crs(shapes: Any, crs: Any) -> Any:
    """Convert shapes. Without a coordinate system, they stay."""
    return shapes if crs is None else shapes.to_crs(crs)


def _label(
    scenes: Sequence[_Scene], path: str | Path, class_column: str | None, is_detector: bool
) -> tuple[list[str], bool]:
    """Place labels on the rasters. Return the classes, none of a raster of classes, and whether a
    polygon is more than a box.
    """
    import pandas

    if is_raster(path):
        if is_detector:
            raise ValueError(f"--labels {path} has no polygons: a detector needs some")
        for scene in scenes:
            scene.labels = StoredClasses(path, scene)
        return [], True
    polygons = read_labels(path, class_column)
    crs = scenes[0].crs
    areas = pandas.concat([scene.to_map(scene.area, crs) for scene in scenes])
    placed = place_labels(polygons, crs, areas.union_all(), f"--labels {path}")
    names = sorted(set(placed["class"]))
    if not is_detector:
        names = [BACKGROUND, *(name for name in names if name != BACKGROUND)]
    for scene in scenes:
        scene.labels = DrawnClasses(_to_crs(placed, scene.crs), scene.transform, names)
    has_boxes = are_boxes(polygons.geometry)
    has_boxes |= all(are_boxes(scene.labels.shapes) for scene in scenes)
    return names, not has_boxes


def _divide(scenes: Sequence[_Scene], hold_out: bool) -> list[_Part]:
    """Divide the rasters into parts to train on and parts to hold out, the same in every run."""
    parts = []
    for number, scene in enumerate(scene for scene in scenes if not scene.area.is_empty):
        rows = range(scene.height)
        columns = range(scene.width)
        if not hold_out or len(scenes) >= _MANY:
            is_held_out = hold_out and number % _MANY == _MANY - 1
            parts.append(_part(scene, "val" if is_held_out else "train", rows, columns))
        elif scene.width > scene.height:
            border = _border(scene, axis=0)
            parts.append(_part(scene, "train", rows, columns[:border]))
            parts.append(_part(scene, "val", rows, columns[border:]))
        else:
            border = _border(scene, axis=1)
            parts.append(_part(scene, "train", rows[:border], columns))
            parts.append(_part(scene, "val", rows[border:], columns))
    held_out = [part for part in parts if part.split == "val"]
    return [_without_overlap(part, held_out) for part in parts if not part.area.is_empty]


def _part(scene: _Scene, split: str, rows: range, columns: range) -> _Part:
    box = shapely.box(columns.start, rows.start, columns.stop, rows.stop)
    return _Part(scene, split, scene.area.intersection(box), rows, columns)


def _without_overlap(part: _Part, held_out: Sequence[_Part]) -> _Part:
    """Return a part to train on without what is held out of other rasters at the same place."""
    area = part.area
    for other in held_out:
        if part.split == "train" and other.scene is not part.scene:
            held_out_area = other.scene.to_map(other.area, part.scene.crs)
            area = area.difference(part.scene.to_pixels(held_out_area))
    return part._replace(area=area)


def _border(scene: _Scene, axis: int) -> int:
    """Return the pixel along an axis before which most of the labels lie."""
    low, high = np.reshape(scene.area.bounds, (2, 2))[:, axis]
    border = low + _TRAINED * (high - low)
    if isinstance(scene.labels, DrawnClasses):
        is_inside = shapely.intersects(scene.area, scene.labels.shapes)
        centres = shapely.centroid(scene.labels.shapes[is_inside])
        if len(centres) > 1:
            border = np.quantile(shapely.get_coordinates(centres)[:, axis], _TRAINED)
    return round(border)


def _write(
    parts: Sequence[_Part], writer: TileWriter, options: dict[str, Any], overlap: int
) -> None:
    """Write the tiles of all parts. Lines say what is left out."""
    tiles = [tile for part in parts for tile in _plan(part, writer.side, overlap)]
    surplus = set[str]()
    for split in ("train", "val"):
        surplus |= _surplus([tile for tile in tiles if tile.split == split], writer)
    tiles = [tile for tile in tiles if tile.name not in surplus]
    if isinstance(writer, ObjectTiles):
        _note_parts(tiles)
    left_out = Counter({"without an object": len(surplus)})
    with progress_bar(len(tiles), "tile") as bar:
        for path, tiles_of_raster in groupby(tiles, key=lambda tile: tile.raster):
            raster = Raster(path, **options)
            for tile in tiles_of_raster:
                left_out[writer.write(tile, raster)] += 1
                bar.update()
    writer.finish()
    reasons = [f"{count:,} {reason}" for reason, count in left_out.items() if reason and count]
    if reasons:
        print_line(f"left out tiles: {', '.join(reasons)}")
    if not writer.count["train"]:
        raise ValueError("no tile has labels to train on: see what is left out")


def _plan(part: _Part, side: int, overlap: int) -> Iterator[Tile]:
    """Yield the tiles of a part that meet its area."""
    spans = [
        [
            slice(axis.start + window.start, axis.start + window.stop)
            for window in windows(len(axis), side, overlap)
        ]
        for axis in (part.rows, part.columns)
    ]
    labels = part.scene.labels
    shapely.prepare(part.area)
    for rows, columns in product(*spans):
        box = shapely.box(columns.start, rows.start, columns.stop, rows.stop)
        area = box if part.area.contains(box) else part.area.intersection(box)
        if area.area > 0:
            yield Tile(part.scene.path, part.split, rows, columns, area, labels, labels.cut(area))


def _surplus(tiles: Sequence[Tile], writer: TileWriter) -> set[str]:
    """Return the names of tiles without an object beyond the number of those with an object."""
    empty = [tile.name for tile in tiles if not writer.has_object(tile)]
    count = min(len(empty), len(tiles) - len(empty))
    kept = {empty[round(place)] for place in np.linspace(0, len(empty) - 1, count)}
    return set(empty) - kept


def _note_parts(tiles: Sequence[Tile]) -> None:
    """Print a line if tiles show of some objects only small parts."""
    every: set[int] = set()
    shown: set[int] = set()
    for tile in tiles:
        positions, _, shares = tile.objects
        if len(positions):
            every.update(tile.labels.index[positions])
            shown.update(tile.labels.index[positions[shares >= MIN_VISIBLE]])
    if every - shown:
        problem = f"{len(every - shown)} objects are in no tile by more than a third, and ignored"
        print_line(f"{problem}: give a larger --tile or --gsd")


def _write_held_out(path: Path, parts: Sequence[_Part]) -> None:
    """Write the held-out areas for `--aoi`."""
    import geopandas
    import pandas

    crs = parts[0].scene.crs
    places = [part.scene.to_map(part.area, crs) for part in parts if part.split == "val"]
    table = geopandas.GeoDataFrame(geometry=pandas.concat(places))
    table.to_file(path, engine="pyogrio", geometry_type="MultiPolygon", promote_to_multi=True)
