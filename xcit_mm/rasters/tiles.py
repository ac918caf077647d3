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

from ..datasets.inventory import LeftOut
from ..datasets.old_dataset import IGNORED, Dataset, Image, Mask, NewObject, Split
from ..datasets.photo_labels import to_split
from ..utils.coco import encode_mask, from_corners
from .gdal import open_raster
from .old_raster import Raster, pad
from .pixel_labels import CutObject, StoredClasses
from .polygons import covers
from .scenes import Scene


class Tile(NamedTuple):
    """A tile of a labelled raster, with its area where labels are complete, and the labelled
    polygons in it, all in pixels of the raster.
    """

    scene: Scene
    rows: slice
    columns: slice
    area: Any
    objects: list[CutObject]

    @property
    def name(self) -> str:
        """Name of its files, without a suffix."""
        return f"{self.scene.grid.path.stem}-{self.rows.start}-{self.columns.start}"


class _TileWriter:
    """Writes square tiles with their labels, where zeros fill what the raster lacks. Scaled images
    are PNGs, raw ones GeoTIFFs of the stored values.

    Attributes:
        written: Paths of images, and labels, of the tiles by split.
        with_object: Number of tiles by split that show an object.
        shown_labels: Indices of the labels that a tile shows.
        without_data: Indices of labels that a tile would show, if the raster had data there.
    """

    why_not_shown = "in no tile"  # why a label with data is not used

    _images = Path()  # folder of the images in the folder of the tiles
    _is_cut_to_area = False
    _min_shown = 0.0  # share of an object, up to which it is ignored in a tile
    _min_data = 0.0  # share of its part in the tile

    def __init__(self, folder: Path, side: int, is_raw: bool, classes: Sequence[str]) -> None:
        self.side = side
        self.written: defaultdict[str, list[tuple[Path, Any]]] = defaultdict(list)  # by split
        self.with_object = Counter[str]()
        self.shown_labels: set[int] = set()
        self.without_data: set[int] = set()
        self._is_raw = is_raw
        self._folder = folder
        self._classes = list(classes)
        # Of the training tiles, by band.
        self._pixel_count = 0
        self._sum: Any = 0
        self._sum_of_squares: Any = 0

    @property
    def statistics(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each band over the training tiles."""
        mean = self._sum / self._pixel_count
        variance = self._sum_of_squares / self._pixel_count - mean**2
        deviation = np.sqrt(np.maximum(variance, 0))
        deviation[deviation == 0] = 1
        return _rounded(mean), _rounded(deviation)

    def may_show(self, labelled: CutObject) -> bool:
        """Return whether an object has a class, and its tile covers enough of it."""
        return labelled.number >= 0 and labelled.share > self._min_shown

    def has_object(self, tile: Tile) -> bool:
        """Return whether a tile covers enough of an object."""
        return any(map(self.may_show, tile.objects))

    def write(self, tile: Tile, raster: Raster) -> str:
        """Write a tile with its labels. Return why the tile is left out, or an empty text."""
        image, valid = raster.read(tile.rows, tile.columns)
        is_in_area = covers(tile.area, tile.rows, tile.columns)
        is_counted = valid & is_in_area
        shown = self._find_shown(tile, valid)  # also notes labels without data
        if not is_counted.any():
            return "without valid pixels"
        labels = self._write_labels(tile, is_counted, shown)
        if labels is None:
            return "without a labelled pixel"
        if self._is_raw and tile.scene.split == "train":
            pixels = image[is_counted].astype(np.float64)
            self._pixel_count += len(pixels)
            self._sum = self._sum + pixels.sum(axis=0)
            self._sum_of_squares = self._sum_of_squares + (pixels**2).sum(axis=0)
        if self._is_cut_to_area:
            image[~is_in_area] = 0
        path = self._write_image(tile, image, raster)
        self.written[tile.scene.split].append((path, labels))
        if shown:
            self.with_object[tile.scene.split] += 1
        self.shown_labels |= shown
        return ""

    def _find_shown(self, tile: Tile, valid: np.ndarray) -> set[int]:
        """Return the indices of labels that a tile shows with enough data, and note the others."""
        shown = set()
        is_whole = valid.all()
        for labelled in filter(self.may_show, tile.objects):
            with_data = 1.0
            if not is_whole:
                pixels = covers(labelled.shape, tile.rows, tile.columns, all_touched=True)
                with_data = valid[pixels].mean()
            if with_data >= self._min_data and labelled.share * with_data > self._min_shown:
                shown.add(labelled.label)
            else:
                self.without_data.add(labelled.label)
        return shown

    def _write_image(self, tile: Tile, image: np.ndarray, raster: Raster) -> Path:
        """Write an image, and return its path within the folder."""
        suffix = "tif" if self._is_raw else "png"
        path = self._images / tile.scene.split / f"{tile.name}.{suffix}"
        written = self._folder / path
        written.parent.mkdir(parents=True, exist_ok=True)
        image = pad(image, self.side)
        if not self._is_raw:
            written.write_bytes(_encode_png(image))
            return path
        shift = raster.transform.translation(tile.columns.start, tile.rows.start)
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
        for split, tiles in self.written.items():
            images = [Image(folder / path, self.side, self.side) for path, _ in tiles]
            splits[split] = self._to_split(images, [labels for _, labels in tiles], folder)
        return Dataset("tiles", tuple(self._classes), splits, LeftOut(folder))

    def _write_labels(self, tile: Tile, is_counted: np.ndarray, shown: set[int]) -> Any:
        """Return the labels of a tile, or None if no pixel that counts has one."""
        raise NotImplementedError

    def _to_split(self, images: list[Image], labels: list[Any], folder: Path) -> Split:
        raise NotImplementedError


class ObjectTiles(_TileWriter):
    """Writes images into SPLIT. Objects have masks, or boxes alone. Those that a tile does not show
    well are crowds.
    """

    why_not_shown = "in no tile by more than a third"

    _is_cut_to_area = True  # what stands outside is neither an object nor background
    _min_shown = 1 / 3
    _min_data = 1 / 2

    def __init__(
        self, folder: Path, side: int, is_raw: bool, classes: Sequence[str], has_masks: bool
    ) -> None:
        super().__init__(folder, side, is_raw, classes)
        self._has_masks = has_masks

    def _write_labels(self, tile: Tile, is_counted: np.ndarray, shown: set[int]) -> list[NewObject]:
        """Return the objects of a tile. Those whose label is not in `shown` are crowds."""
        objects = []
        for labelled in tile.objects:
            # An object without a class is never shown: it is a crowd in every class.
            has_class = labelled.number >= 0
            names = [self._classes[labelled.number]] if has_class else self._classes
            shape = translate(labelled.shape, -tile.columns.start, -tile.rows.start)
            box = from_corners(shape.bounds)[0].round(2).tolist()
            mask, area = self._to_mask(shape) if self._has_masks else (None, None)
            name = f"polygon {labelled.label} of --labels"
            is_crowd = labelled.label not in shown
            objects += [NewObject(class_, box, mask, name, is_crowd, area) for class_ in names]
        return objects

    def _to_split(self, images: list[Image], labels: list[Any], folder: Path) -> Split:
        rows = [(image, None, objects) for image, objects in zip(images, labels, strict=True)]
        return to_split(rows, self._classes)

    def _to_mask(self, shape: Any) -> tuple[Mask, float | None]:
        """Return the outlines of a shape, or with holes its pixels and their number."""
        polygons = [part for part in shapely.get_parts(shape) if part.area > 0]
        if any(part.interiors for part in polygons):
            pixels = covers(shape, slice(0, self.side), slice(0, self.side))
            return encode_mask(pixels), float(pixels.sum())
        outlines = [part.exterior.coords[:-1] for part in polygons]
        return [array("d", np.ravel(outline).round(2)) for outline in outlines], None


class MapTiles(_TileWriter):
    """Writes images into images/SPLIT, maps into masks/SPLIT, and classes.txt. Classes
    without a name, as of a raster of classes, are named by their numbers.
    """

    _images = Path("images")

    def has_object(self, tile: Tile) -> bool:
        """Return whether a tile has an object, or labels that tell only when they are read."""
        return super().has_object(tile) or isinstance(tile.scene.labels, StoredClasses)

    def finish(self, folder: Path) -> Dataset:
        """Write the names of the classes, and return the tiles."""
        (self._folder / "classes.txt").write_text("\n".join(self._classes))
        return super().finish(folder)

    def _to_split(self, images: list[Image], labels: list[Any], folder: Path) -> Split:
        return Split(images, [folder / path for path in labels])

    def _write_labels(self, tile: Tile, is_counted: np.ndarray, shown: set[int]) -> Path | None:
        """Write a map of 8 bits, and return its path within the folder, or None without labels."""
        numbers = tile.scene.labels.read(tile.rows, tile.columns)
        is_labelled = is_counted & (numbers >= 0)
        if not is_labelled.any():
            return None
        lowest = numbers[is_labelled].min()
        highest = numbers[is_labelled].max()
        if highest >= IGNORED:
            raise ValueError(f"--labels has classes from {lowest} to {highest}: give 0 to 254")
        unnamed = range(len(self._classes), highest + 1)
        self._classes += [f"class {number}" for number in unnamed]
        path = Path("masks", tile.scene.split, f"{tile.name}.png")
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
