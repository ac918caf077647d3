"""Scores of a raster's result against a user's labels."""

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..utils.atomic import atomic_path
from ..utils.errors import ArgumentError, preview
from ..utils.output import say
from .finished import LAYER
from .gdal import gdal, open_raster
from .labels import NO_CLASS, LabelFile, Labels
from .polygons import (
    Polygons,
    area_in_pixels,
    covers,
    read_layer,
    read_polygons,
    repair,
    share_pixels,
    to_map,
)

MIN_IOU = 0.5


def score_raster(
    out: str | Path,
    labels: Polygons,
    aoi: Polygons | None = None,
    *,
    raster: str | Path | None = None,
    class_column: str | None = None,
    class_name: str | None = None,
    layer: str | None = None,
) -> Any:
    """Score a result of `predict_raster`, a map or a table of objects, against polygons.

    An object and a label match if they have the same class and an IoU of at least 0.5. They match
    one to one: the object with the best score chooses first. Objects and labels count if their
    centre lies in the area. Labels without a class do not count, nor do objects whose centre lies
    on such a label.

    Precision, recall, F1 and the numbers of objects are computed at one minimum score for all
    classes, the one with the best F1. The objects and labels behind these numbers are written into
    the GeoPackage of the result, as the layers `matched`, `missed` and `false`.

    Args:
        out: The result.
        labels: Vector file, or GeoDataFrame.
        aoi: The area in which the labels are complete: a vector file, or a GeoDataFrame. Default:
            all of `raster`, or all of the map.
        raster: The raster that was predicted. Objects and labels outside of it do not count. By
            default they count everywhere. A map does not need it.
        class_column: Column of the labels' classes. Default: `class`.
        class_name: Class of all labels, in place of a column.
        layer: Layer of the labels. Default: the only one.

    Returns:
        A pandas.DataFrame with a row for each class. For a table of objects, the columns are `AP50`
        as COCO computes it, `precision`, `recall` and `F1`; the number of `objects` in the labels,
        and how many of them are `matched` and `missed`; the number of `false` predictions; and the
        minimum `score`. The row `all` counts all classes together, and has the mean of AP50. For a
        map, the columns are `IoU` and the number of labelled `pixels`. The row `mean` has the mean
        IoU.
        A message says how many of the labels, objects and pixels count.

    Raises:
        ArgumentError: If no label counts, if the labels have no column of classes, or if a class
            has the name of the last row, `all` or `mean`.
        ValueError: If a file has several layers, and none of them is chosen, or if only one of
            labels and result has a coordinate system.
        OSError, RuntimeError: If a file cannot be read.

    Example:
        >>> from xcit_mm import score_raster
        >>> scores = score_raster("objects.gpkg", "crowns.gpkg")
        >>> int(scores.loc["all", "missed"])
        0
    """
    out = Path(out)
    source = LabelFile(labels, class_column, class_name, layer)
    if out.suffix == ".gpkg":
        return _score_objects(out, source, aoi, raster)
    return _score_map(out, source, aoi)


def _score_map(out: Path, source: LabelFile, aoi: Polygons | None) -> Any:
    import pandas

    with gdal(out), open_raster(out) as file:
        names = json.loads(file.tags().get("CLASSES", "[]"))
        polygons = source.read(file.crs)
        drawn = sorted({*polygons["class"]} - {NO_CLASS})
        _check_row_name("mean", names)
        labels = Labels(polygons, file, names)
        area = area_in_pixels(aoi, file)
        if not share_pixels(area, labels.objects).any():
            # Else the background alone would count, with a score of 1.
            problem = f"none of {len(polygons)} labels has a class of the map and lies in its area"
            classes = f"[{preview(drawn)}] in {source.name}, [{preview(names)}] in {out}"
            raise ArgumentError("labels", f"{problem}: their classes are {classes}")
        unknown = [name for name in drawn if name not in names]
        if unknown:
            ignored = f"labels of {preview(unknown)} do not count"
            say(f"{source.name}: {ignored}: the map has no such class")
        counts, total = _count_pixels(file, labels, area)
    both = np.diag(counts)
    pixels = pandas.Series(counts.sum(axis=1), names)
    if not pixels.any():
        problem = f"none of {total:,} pixels of the area is labelled"
        raise ArgumentError("labels", f"{source.name}: {problem}: compare both in a GIS")
    scores = pandas.DataFrame(dict(IoU=both / (counts.sum(axis=0) + pixels - both), pixels=pixels))
    scores.loc["mean"] = [scores["IoU"].mean(), pixels.sum()]
    counted = f"{pixels.sum():,} of {total:,} pixels in the area count"
    say(f"{out}: {counted}; they have a label and data")
    return scores.astype(dict(pixels=int))


def _check_row_name(name: str, classes: Collection[str]) -> None:
    """Raise ArgumentError if a class has the name of the row of all classes."""
    if name in classes:
        problem = f"labels or result have a class {name!r}, the name of the last row of scores"
        raise ArgumentError("labels", f"{problem}: rename the class")


def _count_pixels(file: Any, labels: Labels, area: Any) -> tuple[np.ndarray, int]:
    """Count the pixels of an area.

    Returns:
        The number of pixels with a class in the labels (row) and in the map (column), (classes,
        classes), and the number of all pixels.
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


def _score_objects(
    out: Path, source: LabelFile, aoi: Polygons | None, raster: str | Path | None
) -> Any:
    table = read_layer(out, LAYER)
    drawn = source.read(table.crs)
    has_class = drawn["class"] != NO_CLASS
    labels = drawn[has_class]
    objects = table.sort_values("score", ascending=False, kind="stable")
    area = None
    if raster is not None:
        with gdal(raster), open_raster(raster) as file:
            area = to_map([area_in_pixels(aoi, file)], file).union_all()
    elif aoi is not None:
        area = read_polygons(aoi, table.crs).union_all()
    if area is not None:
        labels = labels[_have_centre_in(area, labels)]
        objects = objects[_have_centre_in(area, objects)]
    objects = objects[~_have_centre_in(drawn[~has_class].union_all(), objects)]
    if labels.empty:
        problem = f"none of {len(drawn)} labels has a class, and its centre in the area"
        raise ArgumentError("labels", f"{source.name}: {problem}: compare both in a GIS")
    _check_row_name("all", [*labels["class"], *objects["class"]])
    scores = _score_matches(out, objects, labels, _match(objects, labels))
    counts = f"{len(objects)} of {len(table)} objects and {len(labels)} of {len(drawn)} labels"
    say(f"{out}: {counts} count; others are outside the area or without a class")
    return scores


def _have_centre_in(area: Any, polygons: Any) -> np.ndarray:
    return shapely.contains(area, shapely.centroid(np.array(polygons.geometry)))


def _match(objects: Any, labels: Any) -> np.ndarray:
    """Match objects with labels of their class, one to one.

    An object gets the free label with the best IoU. Objects are in descending order of scores.

    Returns:
        The position of each object's label, or -1.
    """
    shapes = repair(objects.geometry)
    label_shapes = np.array(labels.geometry)
    first, second = shapely.STRtree(label_shapes).query(shapes, predicate="intersects")
    shared = shapely.area(shapely.intersection(shapes[first], label_shapes[second]))
    iou = shared / (shapely.area(shapes[first]) + shapely.area(label_shapes[second]) - shared)
    is_of_class = objects["class"].to_numpy()[first] == labels["class"].to_numpy()[second]
    may_match = is_of_class & (iou >= MIN_IOU)
    matches = np.full(len(shapes), -1)
    is_taken = np.zeros(len(label_shapes), bool)
    for pair in np.lexsort((-iou, first)):  # the best IoU of each object comes first
        number = first[pair]
        label = second[pair]
        if may_match[pair] and matches[number] < 0 and not is_taken[label]:
            matches[number] = label
            is_taken[label] = True
    return matches


def _score_matches(out: Path, objects: Any, labels: Any, matches: np.ndarray) -> Any:
    """Return the scores of each class and of all, and write what is matched, missed and false."""
    import pandas

    is_found = matches >= 0
    threshold = _best_score(objects["score"].to_numpy(), is_found, len(labels))
    is_good = objects["score"].to_numpy() >= threshold
    is_missed = ~np.isin(np.arange(len(labels)), matches[is_good])
    layers = dict(
        matched=objects[is_good & is_found],
        missed=labels[is_missed],
        false=objects[is_good & ~is_found],
    )
    with atomic_path(out.resolve()) as unfinished:
        shutil.copyfile(out, unfinished)
        for name, layer in layers.items():
            layer.to_file(
                unfinished, layer=name, geometry_type="MultiPolygon", promote_to_multi=True
            )
    columns = {name: layer["class"].value_counts() for name, layer in layers.items()}
    names = sorted({*objects["class"], *labels["class"]})
    counts = pandas.DataFrame(columns, index=names).fillna(0).astype(int)
    counts.insert(0, "objects", counts["matched"] + counts["missed"])
    precisions = [
        _average_precision(is_found[objects["class"] == name], counts.loc[name, "objects"])
        for name in names
    ]
    counts.loc["all"] = counts.sum()
    matched = counts["matched"]
    detected = matched + counts["false"]
    rates = dict(
        AP50=[*precisions, np.nanmean(precisions)],
        precision=matched / detected,
        recall=matched / counts["objects"],
        F1=2 * matched / (detected + counts["objects"]),
    )
    return pandas.DataFrame(rates).join(counts).assign(score=threshold)


def _best_score(scores: np.ndarray, is_found: np.ndarray, labels: int) -> float:
    """Return the minimum score with the best F1, or NaN without objects.

    Args:
        scores: In descending order.
        is_found: Whether each object has a label.
        labels: Number of labels.
    """
    if not len(scores):
        return np.nan
    f1 = 2 * np.cumsum(is_found) / (labels + np.arange(1, len(scores) + 1))
    is_last_of_score = np.append(scores[1:] < scores[:-1], True)
    return scores[np.argmax(np.where(is_last_of_score, f1, 0))]


def _average_precision(is_found: np.ndarray, labels: int) -> float:
    """Return COCO's average precision: the mean of the best precision at 101 recalls.

    Args:
        is_found: Whether each object has a label, in descending order of scores.
        labels: Number of labels.
    """
    if not labels:
        return np.nan
    found = np.cumsum(is_found)
    precision = found / np.arange(1, len(found) + 1)
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0)
    return float(best[np.searchsorted(found / labels, np.linspace(0, 1, 101))].mean())
