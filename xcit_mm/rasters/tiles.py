"""Tiles of a labelled raster, written for mmdet with objects or for mmseg with maps."""

from pathlib import Path
from typing import Any, NamedTuple

import cv2
import msgspec
import numpy as np
import shapely
from shapely.affinity import translate

from ..datasets.coco import Annotation, CocoImage
from ..datasets.dataset import IGNORED
from ..utils.coco import encode_mask, from_corners
from .gdal import open_raster
from .labels import CutObject, Labels
from .polygons import covers
from .raster import Raster, pad
from .settings import RasterSettings

MIN_SHOWN = 1 / 3
"""Share of an object that a tile shows, up to which it is ignored there."""


class Tile(NamedTuple):
    """A tile, with its area where labels are complete, and the labelled polygons in this area, all
    in pixels of the raster.
    """

    rows: slice
    columns: slice
    area: Any
    objects: list[CutObject]
    has_object: bool


class TileImages:
    """Writes the square images of a split's tiles below a folder: PNGs, or GeoTIFFs of a raster
    that is read as stored.
    """

    def __init__(self, raster: Raster, folder: Path, split: str, settings: RasterSettings) -> None:
        self.raster = raster
        self.folder = folder
        self.split = split
        self.side = settings.tile
        self._is_raw = settings.options["raw"]
        self._moments: list[tuple[np.ndarray, np.ndarray]] = []

    @property
    def statistics(self) -> tuple[list[float], list[float]] | None:
        """Mean and standard deviation of each band over the tiles, if they have stored values."""
        if not self._is_raw:
            return None
        mean, mean_square = np.mean(self._moments, axis=0)
        deviation = np.sqrt(np.maximum(mean_square - mean**2, 0))
        deviation[deviation == 0] = 1
        return mean.tolist(), deviation.tolist()

    def name(self, tile: Tile) -> str:
        """Return the name of a tile's image, within the folder of its split."""
        suffix = "tif" if self._is_raw else "png"
        stem = Path(self.raster.path).stem
        return f"{stem}-{tile.rows.start}-{tile.columns.start}.{suffix}"

    def write(self, tile: Tile, parent: Path, hides_rest: bool = False) -> np.ndarray | None:
        """Write the image of a tile, if it has data in the tile's area, and return which of its
        pixels have, (h, w). With `hides_rest`, pixels outside of the area become zero.
        """
        image, has_data = self.raster.read(tile.rows, tile.columns)
        in_area = covers(tile.area, tile.rows, tile.columns)
        is_counted = has_data & in_area
        if not is_counted.any():
            return None
        if hides_rest:
            image[~in_area] = 0
        parent.mkdir(parents=True, exist_ok=True)
        path = parent / self.name(tile)
        padded = pad(image, self.side)
        if not self._is_raw:
            write_png(path, padded)
            return is_counted
        pixels = image[is_counted].astype(np.float64)
        self._moments.append((pixels.mean(axis=0), (pixels**2).mean(axis=0)))
        height, width, count = padded.shape
        profile = dict(height=height, width=width, count=count, dtype=image.dtype.name)
        with open_raster(path, "w", driver="GTiff", compress="deflate", **profile) as file:
            file.write(padded.transpose(2, 0, 1))
        return is_counted


def write_png(path: Path, image: np.ndarray) -> None:
    """Write an image of 8 bits as a PNG."""
    # OpenCV's default takes three times as long for files that are a tenth smaller.
    path.write_bytes(cv2.imencode(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes())


class ObjectTile(NamedTuple):
    """A tile for mmdet, and the labels that it shows."""

    image: CocoImage
    annotations: list[Annotation]
    shown: set[int]


def write_object_tile(
    images: TileImages, classes: int, has_masks: bool, tile: Tile
) -> ObjectTile | None:
    """Write the image of a tile, and return it with its objects, or None if it has no data.

    An object of which the tile shows too little is a crowd, one without a class in every class.
    """
    is_counted = images.write(tile, images.folder / images.split, hides_rest=True)
    if is_counted is None:
        return None
    number = tile.rows.start * images.raster.width + tile.columns.start
    file_name = f"{images.split}/{images.name(tile)}"
    image = CocoImage(number, file_name, images.side, images.side)
    annotations = []
    shown = set()
    for cut in tile.objects:
        share = cut.share
        if not is_counted.all():
            pixels = covers(cut.shape, tile.rows, tile.columns, all_touched=True)
            share *= is_counted[pixels].mean()
        is_shown = cut.number >= 0 and share > MIN_SHOWN
        if is_shown:
            shown.add(cut.label)
        shape = translate(cut.shape, -tile.columns.start, -tile.rows.start)
        box = from_corners(shape.bounds)[0].round(2).tolist()
        mask = msgspec.Raw(msgspec.json.encode(_to_mask(shape, images.side) if has_masks else []))
        categories = [cut.number + 1] if cut.number >= 0 else range(1, classes + 1)
        annotations += [
            Annotation(0, number, category, box, shape.area, 0 if is_shown else 1, mask)
            for category in categories
        ]
    return ObjectTile(image, annotations, shown)


def _to_mask(shape: Any, side: int) -> Any:
    """Return the outlines of a shape, x, y, x, y, ..., or with holes the RLE of its pixels."""
    polygons = [part for part in shapely.get_parts(shape) if part.area > 0]
    if any(part.interiors for part in polygons):
        return encode_mask(covers(shape, slice(0, side), slice(0, side)))
    return [np.ravel(part.exterior.coords[:-1]).round(2).tolist() for part in polygons]


def write_map_tile(images: TileImages, labels: Labels, tile: Tile) -> Path | None:
    """Write the image of a tile and its map, and return the map's path, or None without data."""
    is_counted = images.write(tile, images.folder / "images" / images.split)
    if is_counted is None:
        return None
    parent = images.folder / "masks" / images.split
    parent.mkdir(parents=True, exist_ok=True)
    numbers = labels.read(tile.rows, tile.columns)
    label_map = np.where(is_counted & (numbers >= 0), numbers, IGNORED).astype(np.uint8)
    path = (parent / images.name(tile)).with_suffix(".png")
    write_png(path, pad(label_map, images.side, IGNORED))
    return path
