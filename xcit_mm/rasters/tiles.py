"""Tiles of a labelled raster, written for mmdet with objects or for mmseg with maps."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import msgspec
import numpy as np

from ..datasets.coco import Annotation, CocoFile, CocoImage, encode_mask, from_corners, write_coco
from ..datasets.dataset import IGNORED
from ..utils.errors import ArgumentError
from .gdal import open_raster
from .labels import Labels
from .polygons import covers
from .raster import Raster

MIN_SHOWN = 1 / 3
"""Share of an object that a tile shows, up to which it is ignored there."""


class Tile(NamedTuple):
    """A tile, and the area in it where labels are complete, in pixels of the raster."""

    rows: slice
    columns: slice
    area: Any


Images = Iterable[tuple[Tile, Path, np.ndarray]]
"""Tiles, their images, and which pixels of each count, (h, w), bool."""


def write_images(
    raster: Raster, tiles: Iterable[Tile], folder: Path, shows_all: bool = False
) -> Images:
    """Write the images of the tiles that have data in their area, and yield them.

    They are PNGs, or GeoTIFFs with a place if the raster is read as stored. Pixels outside of the
    area are 0, unless an image `shows_all`.

    Raises:
        ArgumentError: If no tile has data.
    """
    from rasterio.io import MemoryFile
    from rasterio.windows import Window, transform

    folder.mkdir(parents=True)
    stem = Path(raster.path).stem
    for tile in tiles:
        image, has_data = raster.read(tile.rows, tile.columns)
        in_area = covers(tile.area, tile.rows, tile.columns)
        is_counted = has_data & in_area
        if not is_counted.any():
            continue
        if not shows_all:
            image[~in_area] = 0
        path = folder / f"{stem}-{tile.rows.start}-{tile.columns.start}.png"
        if raster.raw:
            path = path.with_suffix(".tif")
            bands = image.transpose(2, 0, 1)
            shape = dict(zip(("count", "height", "width"), bands.shape, strict=True))
            profile = dict(driver="GTiff", compress="deflate", dtype=bands.dtype.name)
            window = Window.from_slices(tile.rows, tile.columns)
            place = dict(crs=raster.crs, transform=transform(window, raster.transform))
            # On a full disk GDAL loses blocks in silence, and Python raises.
            with MemoryFile() as memory:
                with open_raster(memory.name, "w", **profile, **shape, **place) as file:
                    file.write(bands)
                path.write_bytes(memory.read())
        else:
            _write_png(path, image)
        yield tile, path, is_counted
    if not any(folder.iterdir()):
        problem = f"the raster has no data where the labels of {folder.name} are"
        raise ArgumentError("labels", f"{problem}: give others, or hold none out")


def _write_png(path: Path, image: np.ndarray) -> None:
    path.write_bytes(cv2.imencode(".png", image)[1].tobytes())


def write_objects(folder: Path, split: str, labels: Labels, images: Images) -> CocoFile:
    """Write a COCO json with the objects in the images of a split, and return its content.

    An object is a crowd if a tile shows too little of it. A polygon without a class is a crowd of
    every class. Images are square.

    Raises:
        ArgumentError: If no image shows a third of a label.
    """
    coco_images: list[CocoImage] = []
    annotations: list[Annotation] = []
    for tile, path, is_counted in images:
        number = len(coco_images)
        side = len(is_counted)
        coco_images.append(CocoImage(number, f"{split}/{path.name}", side, side))
        origin = np.tile([tile.columns.start, tile.rows.start], 2)
        for label, part in labels.cut(tile.area):
            class_number = int(labels.numbers[label])
            has_class = class_number >= 0
            mask = covers(part, tile.rows, tile.columns)
            shown = (mask & is_counted).sum() / labels.shapes[label].area
            is_crowd = not (has_class and shown > MIN_SHOWN)
            box = from_corners(part.bounds - origin)[0].round(2).tolist()
            segmentation = encode_mask(mask) if labels.have_masks else []
            encoded = msgspec.Raw(msgspec.json.encode(segmentation))
            for category in [class_number] if has_class else range(len(labels.names)):
                entry = Annotation(0, number, category + 1, box, part.area, is_crowd, encoded)
                annotations.append(entry)
    if all(annotation.iscrowd for annotation in annotations):
        problem = f"no tile of {split} shows a third of a label"
        raise ArgumentError("tile", f"{problem}: give a larger one, or other labels")
    return write_coco(folder / f"{split}.json", labels.names, coco_images, annotations)


def write_maps(folder: Path, split: str, labels: Labels, images: Images) -> None:
    """Write the maps for the images of a split, and the names of the classes."""
    map_folder = folder / "masks" / split
    map_folder.mkdir(parents=True)
    for tile, path, is_counted in images:
        numbers = labels.read(tile.rows, tile.columns)
        label_map = np.where(is_counted & (numbers >= 0), numbers, IGNORED).astype(np.uint8)
        _write_png(map_folder / f"{path.stem}.png", label_map)
    (folder / "classes.txt").write_text("\n".join(labels.names), "utf-8")
