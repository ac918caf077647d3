"""Scores of a raster's result against a user's labels."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..utils.cli import print_line
from ..utils.errors import preview
from .gdal import gdal, open_raster
from .labels import NO_CLASS, LabelFile, Labels
from .object_score import score_objects
from .polygons import area_in_pixels, covers


def score_raster(
    out: str | Path,
    labels: str | Path,
    aoi: str | Path | None = None,
    *,
    raster: str | Path | None = None,
    class_column: str | None = None,
    class_name: str | None = None,
    layer: str | None = None,
) -> Any:
    """Score a map or a table of objects of `predict_raster` against polygons.

    Objects and labels of a class match one to one at an IoU of 0.5, best scores first, and count if
    their centre lies in the area. Labels without a class do not count, nor do objects whose centre
    lies on them.
    Precision, recall, F1 and counts are those from the score on that gives the best F1; the
    GeoPackage gets these objects and labels as the layers `matched`, `missed` and `false`.

    Args:
        aoi: Vector file of the area in which the labels are complete. Default: the raster.
        raster: The raster that was predicted, in whose extent objects count. Default: everywhere.
        class_column, class_name, layer: As of `LabelFile`.

    Returns:
        A pandas.DataFrame with a row for each class. Of objects: AP50 as of COCO, precision,
        recall, F1, score and the numbers of objects in the labels, matched, missed and false, and
        the row `all` with the mean of AP50. Of a map: IoU and labelled pixels, and the row `mean`.
        A line tells how many of the labels, objects and pixels count.

    Raises:
        ValueError: If no label counts, or labels and result do not match.
        OSError, RuntimeError: If a file cannot be read.
    """
    out = Path(out)
    source = LabelFile(labels, class_column, class_name, layer)
    if out.suffix == ".gpkg":
        return score_objects(out, source, aoi, raster)
    return _score_map(out, source, aoi)


def _score_map(out: Path, source: LabelFile, aoi: str | Path | None) -> Any:
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
    scores = pandas.DataFrame(dict(IoU=both / (counts.sum(axis=0) + pixels - both), pixels=pixels))
    scores.index = names
    scores.loc["mean"] = [scores["IoU"].mean(), pixels.sum()]
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
