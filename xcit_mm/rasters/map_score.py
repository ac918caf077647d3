"""Score of a map against labels: the IoU of each class."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..utils.cli import print_line
from ..utils.errors import preview
from .gdal import gdal, open_raster
from .labels import NO_CLASS, LabelFile, Labels
from .polygons import area_in_pixels, covers


def score_map(out: Path, source: LabelFile, aoi: str | Path | None) -> Any:
    """Return IoU and pixels of each class of a map. A line tells how many pixels count."""
    import pandas

    with gdal(out), open_raster(out) as file:
        if "CLASSES" not in file.tags():
            raise ValueError(f"{out} is not a map of xcit-mm raster: it lacks the tag CLASSES")
        names = json.loads(file.tags()["CLASSES"])
        polygons = source.read(file.crs)
        unknown = sorted(set(polygons["class"]) - {NO_CLASS, *names})
        if unknown:
            print_line(f"{source.path}: the map lacks {preview(unknown)}, which do not count")
        labels = Labels(polygons, file, names)
        counts, total = _count_pixels(file, labels, area_in_pixels(aoi, file))
    both = np.diag(counts)
    pixels = counts.sum(axis=1)
    if not pixels.any():
        raise ValueError(f"{source.path}: none of {total:,} pixels of the area is labelled")
    either = counts.sum(axis=0) + pixels - both
    iou = np.divide(both, either, out=np.full(len(names), np.nan), where=either > 0)
    scores = pandas.DataFrame(dict(IoU=iou, pixels=pixels), index=names)
    scores.loc["mean"] = [np.nanmean(iou), pixels.sum()]
    print_line(f"{out} is scored over {pixels.sum():,} of {total:,} pixels of the area")
    return scores.astype(dict(pixels=int))


def _count_pixels(file: Any, labels: Labels, area: Any) -> tuple[np.ndarray, int]:
    """Count the pixels in an area that have a class in the labels (row) and in the map (column),
    (classes, classes), and all pixels of the area.
    """
    classes = len(labels.names)
    counts = np.zeros((classes, classes), np.int64)
    total = 0
    for _, window in file.block_windows(1):
        rows, columns = window.toslices()
        predicted = file.read(1, window=window)
        numbers = labels.read(rows, columns)
        is_inside = covers(area, rows, columns)
        total += int(is_inside.sum())
        is_counted = is_inside & (predicted != file.nodata) & (numbers >= 0)
        pairs = numbers[is_counted] * classes + predicted[is_counted]
        counts += np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
    return counts, total
