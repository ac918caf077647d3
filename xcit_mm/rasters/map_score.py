"""Score of a map against labels: the IoU of each class."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..utils.cli import print_line
from ..utils.errors import preview
from .gdal import gdal, open_raster
from .labels import NO_CLASS, DrawnClasses, LabelFile, StoredClasses
from .polygons import area_in_pixels, covers
from .tally import Tally


def score_map(out: Path, source: LabelFile, aoi: str | Path | None) -> Any:
    """Return IoU and pixels of each class of a map. A line and `attrs` tell what counts."""
    import pandas

    with gdal(out), open_raster(out) as file:
        if "CLASSES" not in file.tags():
            raise ValueError(f"{out} is not a map of xcit-mm raster: it lacks the tag CLASSES")
        names = json.loads(file.tags()["CLASSES"])
        area = area_in_pixels(aoi, file) if aoi else shapely.box(0, 0, file.width, file.height)
        counts, tally = _count_pixels(file, _read_labels(source, file, names), area, len(names))
    if not counts.any():
        raise ValueError(f"{source.path} has no labelled pixel that counts: {tally}")
    both = np.diag(counts)
    pixels = counts.sum(axis=1)
    either = counts.sum(axis=0) + pixels - both
    iou = np.divide(both, either, out=np.full(len(names), np.nan), where=either > 0)
    scores = pandas.DataFrame(dict(IoU=iou, pixels=pixels), index=names)
    scores.loc["mean"] = [np.nanmean(iou), pixels.sum()]
    print_line(f"{out} is scored over {tally}")
    scores.attrs["pixels"] = tally.counts
    return scores.astype(dict(pixels=int))


def _read_labels(source: LabelFile, file: Any, names: list[str]) -> DrawnClasses | StoredClasses:
    """Read labels on the pixels of a map. A line names classes that the map lacks."""
    if source.is_raster():
        stored = StoredClasses(source.path, file)
        if stored.names not in ([], names):
            classes = f"{preview(stored.names)}, not {preview(names)} of the map"
            raise ValueError(f"{source.path} has the classes {classes}: give polygons")
        return stored
    labels = source.read(file.crs)
    unknown = sorted(set(labels["class"]) - {NO_CLASS, *names})
    if unknown:
        print_line(f"{source.path}: the map lacks {preview(unknown)}, which do not count")
    return DrawnClasses(labels, file, names)


def _count_pixels(
    file: Any, labels: DrawnClasses | StoredClasses, area: Any, classes: int
) -> tuple[np.ndarray, Tally]:
    """Count the pixels in an area of each class in the labels (row) and in the map (column), and
    the pixels that are left out.
    """
    counts = np.zeros((classes, classes), np.int64)
    tally = Tally("pixels of the area", 0)
    for _, window in file.block_windows(1):
        rows, columns = window.toslices()
        is_inside = covers(area, rows, columns)
        predicted = file.read(1, window=window)[is_inside]
        numbers = labels.read(rows, columns)[is_inside]
        if numbers.max(initial=0) >= classes:
            problem = f"the labels have a class {numbers.max()}"
            raise ValueError(f"{problem}, but {file.name} has {classes}, from 0 on")
        tally.total += len(numbers)
        has_class = predicted != file.nodata
        predicted = predicted[has_class]
        numbers = tally.keep(numbers, has_class, "without a class in the map")
        is_labelled = numbers >= 0
        predicted = predicted[is_labelled]
        numbers = tally.keep(numbers, is_labelled, "without a label of a class")
        pairs = np.bincount(numbers * classes + predicted, minlength=classes**2)
        counts += pairs.reshape(classes, classes)
    return counts, tally
