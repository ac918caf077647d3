"""Tiles of labelled rasters: images in files, with objects or segmentation maps."""

from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import shapely
from shapely.affinity import translate

from ..datasets.dataset import IGNORED, Dataset, Image, Mask, NewObject, Split
from ..datasets.inventory import LeftOut
from ..datasets.photo_labels import to_split
from ..utils.coco import encode_mask, from_corners
from .gdal import open_raster
from .labels import CutObject, DrawnClasses, StoredClasses
from .polygons import covers
from .raster import Raster
from .settings import RasterSettings

MIN_VISIBLE = 1 / 3
"""Smallest share of an object that a tile shows, below which the object is ignored."""


class Tile(NamedTuple):
    """A tile of a raster.

    Attributes:
        rows, columns: Its pixels in the raster.
        area: Where the labels are complete, in pixels of the raster.
        labels: The labels of the raster.
        objects: The labelled polygons in the tile, in pixels of the raster.
    """

    raster: Path
    split: str
    rows: slice
    columns: slice
    area: Any
    labels: DrawnClasses | StoredClasses
    objects: list[CutObject]

    @property
    def name(self) -> str:
        """Name of its files, without a suffix."""
        return f"{self.raster.stem}-{self.rows.start}-{self.columns.start}"


def is_shown(labelled: CutObject) -> bool:
    """Return whether an object has a class, and its tile shows enough of it."""
    return labelled.number >= 0 and labelled.share >= MIN_VISIBLE


class _TileImages:
    """Writes the images of tiles. Scaled images are PNGs, others GeoTIFFs.

    Args:
        settings: Its `tile` is height and width, where zeros fill what the raster lacks. With `raw`
            tiles have the stored values of the bands.

    Attributes:
        count: Number of tiles by split.
    """

    def __init__(self, folder: Path, settings: RasterSettings) -> None:
        self.side = settings.tile
        self.raw = settings.raw
        self.count: Counter[str] = Counter()
        self._folder = folder
        # Of the training tiles, by band.
        self._pixels = 0
        self._sum: Any = 0
        self._sum_of_squares: Any = 0

    @property
    def statistics(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each band over the training tiles."""
        mean = self._sum / self._pixels
        variance = self._sum_of_squares / self._pixels - mean**2
        deviation = np.sqrt(np.maximum(variance, 0))
        deviation[deviation == 0] = 1
        return _rounded(mean), _rounded(deviation)

    def _write_image(self, path: Path, tile: Tile, image: np.ndarray, raster: Raster) -> Path:
        """Write an image to a path without a suffix, and return its path."""
        self.count[tile.split] += 1
        path.parent.mkdir(parents=True, exist_ok=True)
        padded = self._pad(image, 0)
        if not self.raw:
            path = path.with_name(f"{path.name}.png")
            path.write_bytes(_encode_png(padded))
            return path
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
        return path

    def _add_to_statistics(self, tile: Tile, pixels: np.ndarray) -> None:
        """Add pixels, (n, bands), to the sums of the training tiles."""
        if self.raw and tile.split == "train":
            pixels = pixels.astype(np.float64)
            self._pixels += len(pixels)
            self._sum = self._sum + pixels.sum(axis=0)
            self._sum_of_squares = self._sum_of_squares + (pixels**2).sum(axis=0)

    def _pad(self, pixels: np.ndarray, fill: int) -> np.ndarray:
        """Pad pixels (h, w, ...) at the bottom and at the right to the size of a tile."""
        height, width = pixels.shape[:2]
        sides = [(0, self.side - height), (0, self.side - width), (0, 0)]
        return np.pad(pixels, sides[: pixels.ndim], constant_values=fill)


class ObjectTiles(_TileImages):
    """Writes images of a split into a folder.

    Args:
        classes: Names of the classes, in the order of the labels' numbers.
        with_masks: Whether objects have masks, or boxes alone.
    """

    def __init__(
        self, folder: Path, settings: RasterSettings, classes: Sequence[str], with_masks: bool
    ) -> None:
        super().__init__(folder, settings)
        self._classes = classes
        self._with_masks = with_masks
        self._rows: dict[str, list[tuple[Path, list[NewObject]]]] = {}

    def has_object(self, tile: Tile) -> bool:
        """Return whether a tile shows enough of an object."""
        return any(is_shown(labelled) for labelled in tile.objects)

    def write(self, tile: Tile, raster: Raster) -> str:
        """Write the image of a tile. Return why the tile is left out, or nothing."""
        image, valid = raster.read(tile.rows, tile.columns)
        is_labelled = covers(tile.area, tile.rows, tile.columns)
        is_counted = valid & is_labelled
        if not is_counted.any():
            return "without valid pixels"
        image[~is_labelled] = 0  # what stands there is neither an object nor background
        self._add_to_statistics(tile, image[is_counted])
        path = self._write_image(self._folder / tile.split / tile.name, tile, image, raster)
        objects = [new for labelled in tile.objects for new in self._to_objects(labelled, tile)]
        self._rows.setdefault(tile.split, []).append((path, objects))
        return ""

    def finish(self, folder: Path) -> Dataset:
        """Return the tiles with their objects, whose folder will be moved."""
        splits = {}
        for split, rows in self._rows.items():
            images = [
                (
                    Image(folder / path.relative_to(self._folder), self.side, self.side),
                    None,
                    objects,
                )
                for path, objects in rows
            ]
            splits[split] = to_split(images, self._classes)
        return Dataset("tiles", tuple(self._classes), splits, LeftOut(folder))

    def _to_objects(self, labelled: CutObject, tile: Tile) -> list[NewObject]:
        """Return an object as its tile shows it. Without a class, it is ignored in every class."""
        shape = translate(labelled.shape, -tile.columns.start, -tile.rows.start)
        box = from_corners(shape.bounds)[0].round(2).tolist()
        polygons = [part for part in shapely.get_parts(shape) if part.area > 0]
        mask: Mask = None
        area = None
        if self._with_masks:
            outlines = [part.exterior.coords[:-1] for part in polygons]
            mask = [array("d", np.ravel(outline).round(2)) for outline in outlines]
        if self._with_masks and any(part.interiors for part in polygons):
            side = slice(0, self.side)
            pixels = covers(shape, side, side)
            mask = encode_mask(pixels)
            area = float(pixels.sum())
        names = self._classes if labelled.number < 0 else [self._classes[labelled.number]]
        name = f"polygon {labelled.label} of --labels"
        is_crowd = not is_shown(labelled)
        return [NewObject(class_, box, mask, name, is_crowd, area) for class_ in names]


class MapTiles(_TileImages):
    """Writes images into images/SPLIT, maps into annotations/SPLIT, and classes.txt.

    Args:
        classes: Names of the classes. Default: numbers, as of a raster of classes.
    """

    def __init__(self, folder: Path, settings: RasterSettings, classes: Sequence[str] = ()) -> None:
        super().__init__(folder, settings)
        self._classes = list(classes)
        self._rows: dict[str, list[tuple[Path, Path]]] = {}

    def has_object(self, tile: Tile) -> bool:
        """Return whether a tile has an object, or labels that tell only when they are read."""
        return isinstance(tile.labels, StoredClasses) or any(
            labelled.number >= 0 for labelled in tile.objects
        )

    def write(self, tile: Tile, raster: Raster) -> str:
        """Write a tile with its labels. Return why the tile is left out, or nothing."""
        image, valid = raster.read(tile.rows, tile.columns)
        is_counted = valid & covers(tile.area, tile.rows, tile.columns)
        numbers = tile.labels.read(tile.rows, tile.columns)
        is_labelled = is_counted & (numbers >= 0)
        if not is_labelled.any():
            return "without a labelled pixel" if is_counted.any() else "without valid pixels"
        self._name_classes(numbers[is_labelled])
        self._add_to_statistics(tile, image[is_counted])
        photo = self._folder / "images" / tile.split / tile.name
        photo = self._write_image(photo, tile, image, raster)
        path = self._folder / "annotations" / tile.split / f"{tile.name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        labels = np.where(is_labelled, numbers, IGNORED).astype(np.uint8)
        path.write_bytes(_encode_png(self._pad(labels, IGNORED)))
        self._rows.setdefault(tile.split, []).append((photo, path))
        return ""

    def finish(self, folder: Path) -> Dataset:
        """Write the names of the classes. Return the tiles, whose folder will be moved."""
        (self._folder / "classes.txt").write_text("\n".join(self._classes))
        splits = {}
        for split, rows in self._rows.items():
            moved = [[folder / path.relative_to(self._folder) for path in row] for row in rows]
            images = [Image(photo, self.side, self.side) for photo, _ in moved]
            splits[split] = Split(images, [path for _, path in moved])
        return Dataset("tiles", tuple(self._classes), splits, LeftOut(folder))

    def _name_classes(self, numbers: np.ndarray) -> None:
        """Name the classes without a name by their numbers.

        Raises:
            ValueError: If a map of 8 bits cannot hold a number.
        """
        lowest = numbers.min()
        highest = numbers.max()
        if lowest < 0 or highest >= IGNORED:
            raise ValueError(f"--labels has classes from {lowest} to {highest}: give 0 to 254")
        unnamed = range(len(self._classes), highest + 1)
        self._classes += [f"class {number}" for number in unnamed]


TileWriter = ObjectTiles | MapTiles


def _encode_png(image: np.ndarray) -> bytes:
    # OpenCV's default takes three times as long for files that are a tenth smaller.
    return cv2.imencode(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes()


def _rounded(numbers: np.ndarray) -> list[float]:
    return [float(f"{number:.6g}") for number in numbers]
