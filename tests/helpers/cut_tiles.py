"""Tiles that tests cut from labelled rasters, read from their files."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import shapely

from helpers.labelled_scene import LabelledScene
from helpers.raster_files import write_shapes
from xcit_mm.datasets.old_writing import write_coco
from xcit_mm.rasters.cutting import cut_rasters
from xcit_mm.rasters.labels import LabelFile
from xcit_mm.rasters.settings import RasterSettings

SIZE = (400, 600)


def cut_scene(scene: LabelledScene, folder: Path, is_detector: bool = True, **options: Any) -> Any:
    rasters = scene.rasters[0].parent
    return _cut(rasters, scene.labels, folder, is_detector, **dict(tile=200, overlap=50) | options)


def cut(raster: Path, labels: Path, is_detector: bool = True, **options: Any) -> Any:
    options = dict(tile=100, overlap=0, hold_out=False) | options
    return _cut(raster, labels, labels.parent / "tiles", is_detector, **options)


def _cut(
    rasters: Path,
    labels: Path,
    folder: Path,
    is_detector: bool,
    tile: int,
    overlap: int,
    aoi: Path | None = None,
    hold_out: bool = True,
    **reading: Any,
) -> Any:
    settings = RasterSettings(tile, overlap, dict(channels=3, raw=False) | reading)
    source = LabelFile(labels)
    options = dict(is_detector=is_detector, aoi=aoi, hold_out=hold_out)
    tiles = cut_rasters(rasters, source, folder, settings, **options)
    for name, split in tiles.dataset.splits.items() if is_detector else ():
        write_coco(split, tiles.dataset.classes, folder / f"{name}.json")
    return tiles


def write_labels(folder: Path, *shapes: shapely.Geometry) -> Path:
    return write_shapes(folder / "labels.gpkg", shapes, "EPSG:32633")


def discs(stop: int) -> list[shapely.Geometry]:
    return [shapely.Point(x, 100).buffer(9) for x in range(20, stop, 40)]


def place_of(stem: str) -> tuple[str, int, int]:
    """Return raster, first row and column of a tile."""
    raster, row, column = stem.rsplit("-", 2)
    return raster, int(row), int(column)


def read_objects(folder: Path) -> list[tuple[str, int, int, dict]]:
    """Return raster, first row and column of the tile, and annotation of all objects."""
    objects = []
    for path in folder.glob("*.json"):
        dataset = json.loads(path.read_text())
        stems = {image["id"]: Path(image["file_name"]).stem for image in dataset["images"]}
        for annotation in dataset["annotations"]:
            objects.append((*place_of(stems[annotation["image_id"]]), annotation))
    return objects


def tile_places(folder: Path, split: str) -> list[tuple[str, int, int]]:
    paths = [path for path in folder.rglob("*.*") if path.parent.name == split]
    return [place_of(stem) for stem in sorted({path.stem for path in paths})]


def read_tiles(folder: Path) -> list[tuple[str, int, int, np.ndarray]]:
    """Return raster, first row and column, and pixels of the tiles of a folder."""
    paths = sorted(folder.glob("*.png"))
    return [(*place_of(path.stem), cv2.imread(str(path), cv2.IMREAD_UNCHANGED)) for path in paths]


def covered_pixels(places: list[tuple[str, int, int]]) -> np.ndarray:
    pixels = np.zeros((2, *SIZE), bool)
    for stem, row, column in places:
        pixels[int(stem[-1]), row : row + 200, column : column + 200] = True
    return pixels
