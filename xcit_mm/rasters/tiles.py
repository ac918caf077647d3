"""Tiles of labelled rasters in files: images with a COCO json, or with segmentation maps."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import shapely
from shapely.affinity import translate

from ..utils.coco import encode_mask, from_corners, new_annotation
from .gdal import open_raster
from .labels import UNLABELLED, StoredClasses
from .polygons import covers
from .raster import Raster

MIN_VISIBLE = 1 / 3
"""Smallest share of an object that a tile shows, below which the object is ignored."""
_IGNORED = 255


class Tile(NamedTuple):
    """A tile of a raster.

    Attributes:
        rows, columns: Its pixels in the raster.
        area: Where the labels are complete, in pixels of the raster.
        labels: The raster's `DrawnClasses` or `StoredClasses`.
        objects: Positions of the polygons in `labels`, what the tile shows of each, in pixels of
            the raster, and its share of the whole; none of a raster of classes.
    """

    raster: Path
    split: str
    rows: slice
    columns: slice
    area: Any
    labels: Any
    objects: tuple[np.ndarray, np.ndarray, np.ndarray]

    @property
    def name(self) -> str:
        """The name of its files, without a suffix."""
        return f"{self.raster.stem}-{self.rows.start}-{self.columns.start}"


class TileWriter:
    """Writes tiles into a folder. Those of 8 bits and three bands are PNGs, others GeoTIFFs.

    Args:
        side: Height and width of a tile. What the raster lacks is filled with zeros.
        raw: Whether tiles have the stored values of the bands.

    Attributes:
        count: Number of tiles by split.
        min_visible: Smallest share of an object for which a tile is not background.
    """

    min_visible = 0.0

    def __init__(self, folder: Path, side: int, raw: bool) -> None:
        self.side = side
        self.raw = raw
        self.count: Counter[str] = Counter()
        self._folder = folder
        self._sums: Any = 0  # of the training tiles: pixels, values and their squares by band

    def has_object(self, tile: Tile) -> bool:
        """Return whether a tile is not background alone, as far as is known before it is read."""
        shares = tile.objects[2]
        return isinstance(tile.labels, StoredClasses) or bool((shares >= self.min_visible).any())

    def write(self, tile: Tile, raster: Raster) -> str:
        """Write a tile with its labels. Return why it is left out, or nothing."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write what belongs to all tiles."""

    @property
    def statistics(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each band over the training tiles."""
        pixels, values, squares = self._sums
        mean = values / pixels
        deviation = np.sqrt(np.maximum(squares / pixels - mean**2, 0))
        deviation[deviation == 0] = 1
        return _rounded(mean), _rounded(deviation)

    def _write_image(
        self, path: Path, tile: Tile, raster: Raster, image: np.ndarray, valid: np.ndarray
    ) -> str:
        """Write an image, and return the name of its file in the folder of `path`."""
        if self.raw and tile.split == "train":
            values = image[valid].astype(np.float64)
            self._sums += np.array(
                [np.full(values.shape[1], len(values)), values.sum(0), (values**2).sum(0)]
            )
        self.count[tile.split] += 1
        path.parent.mkdir(parents=True, exist_ok=True)
        padded = self._pad(image, 0)
        if not self.raw:
            path = path.with_name(f"{path.name}.png")
            path.write_bytes(_encode_png(padded))
            return path.name
        path = path.with_name(f"{path.name}.tif")
        shift = type(raster.transform).translation(tile.columns.start, tile.rows.start)
        profile = dict(
            driver="GTiff",
            height=self.side,
            width=self.side,
            count=image.shape[2],
            dtype=image.dtype.name,
            crs=raster.crs,
            transform=raster.transform * shift,
            compress="deflate",
        )
        with open_raster(path, "w", **profile) as file:
            file.write(padded.transpose(2, 0, 1))
        return path.name

    def _pad(self, values: np.ndarray, fill: int) -> np.ndarray:
        """Pad pixels (h, w, ...) at the bottom and at the right to the size of a tile."""
        height, width = values.shape[:2]
        sides = [(0, self.side - height), (0, self.side - width), (0, 0)]
        return np.pad(values, sides[: values.ndim], constant_values=fill)


class ObjectTiles(TileWriter):
    """Writes images of a split into a folder and their objects into a COCO json beside it.

    Args:
        classes: Names of the classes, in the order of the labels' numbers.
        with_masks: Whether objects have masks, or boxes alone.
    """

    min_visible = MIN_VISIBLE

    def __init__(
        self, folder: Path, side: int, raw: bool, classes: Sequence[str], with_masks: bool
    ) -> None:
        super().__init__(folder, side, raw)
        self._classes = classes
        self._with_masks = with_masks
        self._contents: dict[str, dict[str, list]] = {}

    def write(self, tile: Tile, raster: Raster) -> str:
        image, valid = raster.read(tile.rows, tile.columns)
        is_labelled = covers(tile.area, tile.rows, tile.columns)
        if not (valid & is_labelled).any():
            return "without valid pixels"
        image[~is_labelled] = 0  # what stands there is neither an object nor background
        path = self._folder / tile.split / tile.name
        name = self._write_image(path, tile, raster, image, valid & is_labelled)
        empty: dict[str, list] = dict(images=[], annotations=[])
        content = self._contents.setdefault(tile.split, empty)
        number = len(content["images"]) + 1
        size = dict(height=self.side, width=self.side)
        content["images"].append(dict(id=number, file_name=name, **size))
        for annotation in self._annotate(tile):
            ids = dict(id=len(content["annotations"]) + 1, image_id=number)
            content["annotations"].append(annotation | ids)
        return ""

    def finish(self) -> None:
        names = enumerate(self._classes, start=1)
        categories = [dict(id=number, name=name) for number, name in names]
        for split, content in self._contents.items():
            path = self._folder / f"{split}.json"
            path.write_text(json.dumps(content | dict(categories=categories)))

    def _annotate(self, tile: Tile) -> list[dict[str, Any]]:
        """Return the annotations of the objects in a tile."""
        annotations = []
        for position, piece, share in zip(*tile.objects, strict=True):
            shape = translate(piece, -tile.columns.start, -tile.rows.start)
            box = from_corners(shape.bounds)[0].round(2)
            polygons = [part for part in shapely.get_parts(shape) if part.area > 0]
            outlines = []
            if self._with_masks:
                outlines = [part.exterior.coords[:-1] for part in polygons]
            rings = [np.ravel(outline).round(2).tolist() for outline in outlines]
            annotation = new_annotation(int(tile.labels.numbers[position]) + 1, box, rings)
            if self._with_masks and any(part.interiors for part in polygons):
                size = slice(0, self.side)
                mask = covers(shape, size, size)
                annotation |= dict(segmentation=encode_mask(mask), area=float(mask.sum()))
            annotations.append(annotation | dict(iscrowd=int(share < MIN_VISIBLE)))
        return annotations


class MapTiles(TileWriter):
    """Writes images into images/SPLIT, maps into annotations/SPLIT, and classes.txt.

    Args:
        classes: Names of the classes. Default: numbers, as of a raster of classes.
    """

    def __init__(self, folder: Path, side: int, raw: bool, classes: Sequence[str] = ()) -> None:
        super().__init__(folder, side, raw)
        self._classes = list(classes)

    def write(self, tile: Tile, raster: Raster) -> str:
        image, valid = raster.read(tile.rows, tile.columns)
        is_counted = valid & covers(tile.area, tile.rows, tile.columns)
        if not is_counted.any():
            return "without valid pixels"
        numbers = tile.labels.read(tile.rows, tile.columns)
        is_counted &= numbers != UNLABELLED
        if not is_counted.any():
            return "without a labelled pixel"
        lowest = numbers[is_counted].min()
        highest = numbers[is_counted].max()
        if lowest < 0 or highest >= _IGNORED:
            raise ValueError(f"--labels has classes from {lowest} to {highest}: give 0 to 254")
        if highest >= len(self._classes):
            first = len(self._classes)
            self._classes += [f"class {number}" for number in range(first, highest + 1)]
        self._write_image(
            self._folder / "images" / tile.split / tile.name, tile, raster, image, valid
        )
        path = self._folder / "annotations" / tile.split / f"{tile.name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        labels = np.where(is_counted, numbers, _IGNORED).astype(np.uint8)
        path.write_bytes(_encode_png(self._pad(labels, _IGNORED)))
        return ""

    def finish(self) -> None:
        (self._folder / "classes.txt").write_text("\n".join(self._classes))


def _encode_png(image: np.ndarray) -> bytes:
    # OpenCV's default takes three times as long for files that are a tenth smaller.
    return cv2.imencode(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes()


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
