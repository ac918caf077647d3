"""Tiles of a labelled raster, written for mmdet with objects or for mmseg with maps."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import msgspec
import numpy as np
import shapely
from shapely.affinity import translate

from ..datasets.coco import Annotation, CocoImage, write_coco
from ..datasets.dataset import IGNORED
from ..utils.coco import encode_mask, from_corners
from .gdal import open_raster
from .labels import Labels
from .polygons import burn, covers
from .raster import Raster, pad
from .settings import RasterSettings

MIN_SHOWN = 1 / 3
"""Share of an object that a tile shows, up to which it is ignored there."""


class Tile(NamedTuple):
    """A tile, with its area where labels are complete, in pixels of the raster."""

    rows: slice
    columns: slice
    area: Any


class TileImages:
    """Writes the square images of a split's tiles below a folder: PNGs, or GeoTIFFs of a raster
    that is read as stored.

    Attributes:
        count: Number of the written images.
        shown: Positions of the labels that they show.
    """

    def __init__(self, raster: Raster, folder: Path, split: str, settings: RasterSettings) -> None:
        self.folder = folder
        self.split = split
        self.side = settings.tile
        self.count = 0
        self.shown: set[int] = set()
        self._raster = raster
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

    def write(self, tiles: Iterable[Tile], folder: Path) -> Iterator[tuple[Tile, Path, np.ndarray]]:
        """Write the images of the tiles that have data in their area. Yield each with its path, and
        which of its pixels count, (h, w). Pixels outside of the area are 0.
        """
        stem = Path(self._raster.path).stem
        for tile in tiles:
            image, has_data = self._raster.read(tile.rows, tile.columns)
            in_area = covers(tile.area, tile.rows, tile.columns)
            is_counted = has_data & in_area
            if not is_counted.any():
                continue
            image[~in_area] = 0
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{stem}-{tile.rows.start}-{tile.columns.start}.png"
            if self._is_raw:
                path = path.with_suffix(".tif")
                pixels = image[is_counted].astype(np.float64)
                self._moments.append((pixels.mean(axis=0), (pixels**2).mean(axis=0)))
                bands = pad(image, self.side).transpose(2, 0, 1)
                shape = dict(zip(("count", "height", "width"), bands.shape, strict=True))
                profile = dict(driver="GTiff", compress="deflate", dtype=bands.dtype.name)
                with open_raster(path, "w", **profile, **shape) as file:
                    file.write(bands)
            else:
                _write_png(path, pad(image, self.side))
            self.count += 1
            yield tile, path, is_counted


def _write_png(path: Path, image: np.ndarray) -> None:
    # OpenCV's default takes three times as long for files that are a tenth smaller.
    path.write_bytes(cv2.imencode(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes())


def write_objects(images: TileImages, labels: Labels, tiles: Iterable[Tile]) -> None:
    """Write the images of tiles, and a COCO json with their objects. One of which a tile shows too
    little is a crowd, and one without a class is a crowd in every class.
    """
    coco_images: list[CocoImage] = []
    annotations: list[Annotation] = []
    for tile, path, is_counted in images.write(tiles, images.folder / images.split):
        image = len(coco_images)
        file_name = f"{images.split}/{path.name}"
        coco_images.append(CocoImage(image, file_name, images.side, images.side))
        for label, part, share in labels.cut(tile.area):
            has_class = labels.numbers[label] >= 0
            pixels = burn([(part, 1)], tile.rows, tile.columns, all_touched=True) > 0
            is_shown = has_class and share * is_counted[pixels].mean() > MIN_SHOWN
            if is_shown:
                images.shown.add(label)
            shape = translate(part, -tile.columns.start, -tile.rows.start)
            box = from_corners(shape.bounds)[0].round(2).tolist()
            outlines = _to_mask(shape, images.side) if labels.have_masks else []
            mask = msgspec.Raw(msgspec.json.encode(outlines))
            numbers = [int(labels.numbers[label])] if has_class else range(len(labels.names))
            annotations += [
                Annotation(0, image, number + 1, box, shape.area, 0 if is_shown else 1, mask)
                for number in numbers
            ]
    write_coco(images.folder / f"{images.split}.json", labels.names, coco_images, annotations)


def _to_mask(shape: Any, side: int) -> Any:
    """Return the outlines of a shape, x, y, x, y, ..., or with holes the RLE of its pixels."""
    polygons = [part for part in shapely.get_parts(shape) if part.area > 0]
    if any(part.interiors for part in polygons):
        return encode_mask(covers(shape, slice(0, side), slice(0, side)))
    return [np.ravel(part.exterior.coords[:-1]).round(2).tolist() for part in polygons]


def write_maps(images: TileImages, labels: Labels, tiles: Iterable[Tile]) -> None:
    """Write the images of tiles, their maps, and the names of the classes."""
    map_folder = images.folder / "masks" / images.split
    image_folder = images.folder / "images" / images.split
    for tile, path, is_counted in images.write(tiles, image_folder):
        images.shown.update(
            label for label, *_ in labels.cut(tile.area) if labels.numbers[label] >= 0
        )
        numbers = labels.read(tile.rows, tile.columns)
        label_map = np.where(is_counted & (numbers >= 0), numbers, IGNORED).astype(np.uint8)
        map_folder.mkdir(parents=True, exist_ok=True)
        _write_png(map_folder / f"{path.stem}.png", pad(label_map, images.side, IGNORED))
    (images.folder / "classes.txt").write_text("\n".join(labels.names), "utf-8")
