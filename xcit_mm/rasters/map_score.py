"""Score of a map against labels: the IoU of each class."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..utils.cli import print_line
from ..utils.errors import preview
from .gdal import gdal, open_raster
from .labels import NO_CLASS, LabelFile
from .pixel_labels import UNKNOWN_CLASS, UNLABELLED, WITHOUT_CLASS, DrawnClasses, StoredClasses
from .polygons import covers, footprint, read_area, to_pixels
from .tally import Tally


def score_map(out: Path, source: LabelFile, aoi: str | Path | None) -> Any:
    """Return IoU and pixels of each class of a map. A line and `attrs` tell what is left out."""
    import pandas

    with gdal(out), open_raster(out) as file:
        names = json.loads(file.tags()["CLASSES"])
        extent = footprint(file)
        area = extent.union_all() if aoi is None else read_area(aoi, file.crs, extent)
        if source.is_raster(is_detector=False):
            stored = StoredClasses(source.path, file)
            if stored.names and stored.names != names:
                problem = (
                    f"its classes are {preview(stored.names)}, not {preview(names)} of the map"
                )
                raise ValueError(f"{source.option}: {problem}: give polygons of the classes")
            labels: DrawnClasses | StoredClasses = stored
        else:
            polygons = source.place(file.crs, area).polygons
            source.are_known(polygons[polygons["class"] != NO_CLASS], names)  # names the others
            labels = DrawnClasses(polygons, file, names)
        counts, tally = _count_pixels(file, labels, to_pixels(area, file), len(names))
    if not counts.any():
        raise ValueError(f"{source.option} has no labelled pixel that counts")
    both = np.diag(counts)
    pixels = counts.sum(axis=1)
    either = counts.sum(axis=0) + pixels - both
    iou = np.divide(both, either, out=np.full(len(names), np.nan), where=either > 0)
    scores = pandas.DataFrame(dict(IoU=iou, pixels=pixels), index=names)
    scores.loc["mean"] = [np.nanmean(iou), pixels.sum()]
    print_line(f"{out}: {tally}")
    scores.attrs["pixels"] = tally.counts
    return scores.astype(dict(pixels=int))


_LEFT_OUT = {
    UNLABELLED: "without a label",
    WITHOUT_CLASS: "in labels without a class",
    UNKNOWN_CLASS: "of a class that the model does not know",
}


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
        predicted = file.read(1, window=window)
        numbers = labels.read(rows, columns)
        if numbers.max() >= classes:
            problem = f"the labels have a class {numbers.max()}"
            raise ValueError(f"{problem}, but {file.name} has {classes}, from 0 on")
        is_inside = covers(area, rows, columns)
        numbers = numbers[is_inside]
        predicted = predicted[is_inside]
        tally.total += len(numbers)
        has_class = predicted != file.nodata
        numbers = tally.keep(numbers, has_class, "without a class in the map")
        predicted = predicted[has_class]
        for number, reason in _LEFT_OUT.items():
            tally.left_out[reason] += int((numbers == number).sum())
        is_counted = numbers >= 0
        pairs = numbers[is_counted] * classes + predicted[is_counted]
        counts += np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
    return counts, tally
