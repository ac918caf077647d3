"""Tiles of labelled rasters: images in files, with objects or segmentation maps."""

from array import array
from collections import Counter, defaultdict
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
from .raster import Raster, pad
from .settings import RasterSettings

MIN_VISIBLE = 1 / 3
"""Smallest share of an object that a tile shows, below which the object is ignored."""


class Tile(NamedTuple):
    """A tile of a raster, with its area where labels are complete, and the labelled polygons in it,
    all in pixels of the raster.
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


class _TileWriter:
    """Writes square tiles with their labels, where zeros fill what the raster lacks. Scaled images
    are PNGs, raw ones GeoTIFFs of the stored values.

    Attributes:
        count: Number of tiles by split.
    """

    _images = Path()  # folder of the images in the folder of the tiles
    _is_cut_to_area = False

    def __init__(self, folder: Path, settings: RasterSettings, classes: Sequence[str]) -> None:
        self.side = settings.tile
        self.count: Counter[str] = Counter()
        self._raw = settings.raw
        self._folder = folder
        self._classes = list(classes)
        self._rows: defaultdict[str, list[tuple[Path, Any]]] = defaultdict(list)
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

    def write(self, tile: Tile, raster: Raster) -> str:
        """Write a tile with its labels. Return why the tile is left out, or nothing."""
        image, valid = raster.read(tile.rows, tile.columns)
        is_in_area = covers(tile.area, tile.rows, tile.columns)
        is_counted = valid & is_in_area
        if not is_counted.any():
            return "without valid pixels"
        labels = self._write_labels(tile, is_counted)
        if labels is None:
            return "without a labelled pixel"
        if self._raw and tile.split == "train":
            pixels = image[is_counted].astype(np.float64)
            self._pixels += len(pixels)
            self._sum = self._sum + pixels.sum(axis=0)
            self._sum_of_squares = self._sum_of_squares + (pixels**2).sum(axis=0)
        if self._is_cut_to_area:
            image[~is_in_area] = 0
        path = self._write_image(tile, image, raster)
        self._rows[tile.split].append((path, labels))
        self.count[tile.split] += 1
        return ""

    def _write_image(self, tile: Tile, image: np.ndarray, raster: Raster) -> Path:
        """Write an image, and return its path within the folder."""
        path = self._images / tile.split / f"{tile.name}.{'tif' if self._raw else 'png'}"
        written = self._folder / path
        written.parent.mkdir(parents=True, exist_ok=True)
        image = pad(image, self.side)
        if not self._raw:
            written.write_bytes(_encode_png(image))
            return path
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
        with open_raster(written, "w", **profile) as file:
            file.write(image.transpose(2, 0, 1))
        return path

    def finish(self, folder: Path) -> Dataset:
        """Return the tiles with their labels, whose folder will be moved to `folder`."""
        splits = {}
        for split, rows in self._rows.items():
            images = [Image(folder / path, self.side, self.side) for path, _ in rows]
            splits[split] = self._to_split(images, [labels for _, labels in rows], folder)
        return Dataset("tiles", tuple(self._classes), splits, LeftOut(folder))

    def _write_labels(self, tile: Tile, is_counted: np.ndarray) -> Any:
        """Return the labels of a tile, or None if no pixel that counts has one."""
        raise NotImplementedError

    def _to_split(self, images: list[Image], labels: list[Any], folder: Path) -> Split:
        raise NotImplementedError


class ObjectTiles(_TileWriter):
    """Writes images into SPLIT. Objects have masks, or boxes alone."""

    _is_cut_to_area = True  # what stands outside is neither an object nor background

    def __init__(
        self, folder: Path, settings: RasterSettings, classes: Sequence[str], with_masks: bool
    ) -> None:
        super().__init__(folder, settings, classes)
        self._with_masks = with_masks

    def has_object(self, tile: Tile) -> bool:
        """Return whether a tile shows enough of an object."""
        return any(is_shown(labelled) for labelled in tile.objects)

    def _write_labels(self, tile: Tile, is_counted: np.ndarray) -> list[NewObject]:
        return [new for labelled in tile.objects for new in self._to_objects(labelled, tile)]

    def _to_split(self, images: list[Image], labels: list[Any], folder: Path) -> Split:
        rows = [(image, None, objects) for image, objects in zip(images, labels, strict=True)]
        return to_split(rows, self._classes)

    def _to_objects(self, labelled: CutObject, tile: Tile) -> list[NewObject]:
        """Return an object as its tile shows it. Without a class, it is ignored in every class."""
        shape = translate(labelled.shape, -tile.columns.start, -tile.rows.start)
        box = from_corners(shape.bounds)[0].round(2).tolist()
        mask: Mask = None
        area = None
        if self._with_masks:
            polygons = [part for part in shapely.get_parts(shape) if part.area > 0]
            outlines = [part.exterior.coords[:-1] for part in polygons]
            mask = [array("d", np.ravel(outline).round(2)) for outline in outlines]
            if any(part.interiors for part in polygons):
                side = slice(0, self.side)
                pixels = covers(shape, side, side)
                mask = encode_mask(pixels)
                area = float(pixels.sum())
        names = self._classes if labelled.number < 0 else [self._classes[labelled.number]]
        name = f"polygon {labelled.label} of --labels"
        is_crowd = not is_shown(labelled)
        return [NewObject(class_, box, mask, name, is_crowd, area) for class_ in names]


class MapTiles(_TileWriter):
    """Writes images into images/SPLIT, maps into annotations/SPLIT, and classes.txt. Classes
    without a name, as of a raster of classes, are named by their numbers.
    """

    _images = Path("images")

    def has_object(self, tile: Tile) -> bool:
        """Return whether a tile has an object, or labels that tell only when they are read."""
        has_class = any(labelled.number >= 0 for labelled in tile.objects)
        return has_class or isinstance(tile.labels, StoredClasses)

    def finish(self, folder: Path) -> Dataset:
        """Write the names of the classes, and return the tiles."""
        (self._folder / "classes.txt").write_text("\n".join(self._classes))
        return super().finish(folder)

    def _to_split(self, images: list[Image], labels: list[Any], folder: Path) -> Split:
        return Split(images, [folder / path for path in labels])

    def _write_labels(self, tile: Tile, is_counted: np.ndarray) -> Path | None:
        """Write a map of 8 bits, and return its path within the folder."""
        numbers = tile.labels.read(tile.rows, tile.columns)
        is_labelled = is_counted & (numbers >= 0)
        if not is_labelled.any():
            return None
        lowest = numbers[is_labelled].min()
        highest = numbers[is_labelled].max()
        if highest >= IGNORED:
            raise ValueError(f"--labels has classes from {lowest} to {highest}: give 0 to 254")
        unnamed = range(len(self._classes), highest + 1)
        self._classes += [f"class {number}" for number in unnamed]
        path = Path("annotations", tile.split, f"{tile.name}.png")
        written = self._folder / path
        written.parent.mkdir(parents=True, exist_ok=True)
        labels = np.where(is_labelled, numbers, IGNORED).astype(np.uint8)
        written.write_bytes(_encode_png(pad(labels, self.side, IGNORED)))
        return path


TileWriter = ObjectTiles | MapTiles


def _encode_png(image: np.ndarray) -> bytes:
    # OpenCV's default takes three times as long for files that are a tenth smaller.
    return cv2.imencode(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes()


def _rounded(numbers: np.ndarray) -> list[float]:
    return [float(f"{number:.6g}") for number in numbers]
