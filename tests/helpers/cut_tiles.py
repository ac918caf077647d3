"""Tiles that tests cut from a labelled raster, read from their files."""

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import shapely

from helpers.raster_files import write_shapes
from xcit_mm.rasters.cutting import Tiles, cut_raster
from xcit_mm.rasters.labels import LabelFile


def cut(
    raster: Path,
    labels: Any,
    is_detector: bool = True,
    tile: int = 100,
    overlap: int = 0,
    reading: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Path, Tiles]:
    """Cut tiles, and return their folder."""
    folder = raster.with_name("tiles")
    shutil.rmtree(folder, ignore_errors=True)
    reading = dict(tile=tile, overlap=overlap, channels=3, raw=False) | (reading or {})
    options = dict(is_detector=is_detector, hold_out=False) | options
    return folder, cut_raster(raster, LabelFile(labels), folder, reading, **options)


def write_labels(folder: Path, *shapes: shapely.Geometry) -> Path:
    """Write polygons of one class."""
    columns = {"class": ["tree"] * len(shapes)}
    return write_shapes(folder / "labels.gpkg", shapes, "EPSG:32633", **columns)


def discs(stop: int) -> list[shapely.Geometry]:
    return [shapely.Point(x, 100).buffer(9) for x in range(20, stop, 40)]


def place_of(stem: str) -> tuple[int, int]:
    """Return the first row and column of a tile."""
    _, row, column = stem.rsplit("-", 2)
    return int(row), int(column)


def read_objects(folder: Path) -> list[tuple[int, int, dict[str, Any]]]:
    """Return first row and column of the tile, and annotation of all objects."""
    objects = []
    for path in folder.glob("*.json"):
        dataset = json.loads(path.read_text())
        stems = {image["id"]: Path(image["file_name"]).stem for image in dataset["images"]}
        for annotation in dataset["annotations"]:
            objects.append((*place_of(stems[annotation["image_id"]]), annotation))
    return objects


def read_tiles(folder: Path) -> list[tuple[int, int, np.ndarray]]:
    """Return first row and column, and pixels of the tiles of a folder."""
    paths = sorted(folder.glob("*.png"))
    return [(*place_of(path.stem), cv2.imread(str(path), cv2.IMREAD_UNCHANGED)) for path in paths]
