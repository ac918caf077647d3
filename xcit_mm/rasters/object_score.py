"""Score of a table of objects against labels: average precision, and what is matched or missed."""

from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..utils.cli import print_line
from .gdal import open_raster
from .labels import NO_CLASS, LabelFile
from .objects import LAYER, add_layers
from .polygons import read_polygons, rectangle, repair, to_crs, to_map

MIN_IOU = 0.5


def score_objects(
    out: Path, source: LabelFile, aoi: str | Path | None, raster: str | Path | None
) -> Any:
    """Match a table of objects with labels, and return the scores of each class and of all. The
    table's file gets the layers `matched`, `missed` and `false`. A line tells how many count.
    """
    import geopandas

    table = geopandas.read_file(out, layer=LAYER)
    drawn = source.read(table.crs)
    areas = []
    if aoi is not None:
        areas.append(read_polygons(aoi, table.crs).union_all())
    if raster is not None:
        with open_raster(raster) as file:
            areas.append(to_crs(to_map(rectangle(file), file), table.crs, raster).union_all())
    has_class = drawn["class"] != NO_CLASS
    labels = drawn[has_class]
    objects = table.sort_values("score", ascending=False, kind="stable")
    for area in areas:
        labels = labels[_have_centre_in(area, labels)]
        objects = objects[_have_centre_in(area, objects)]
    if labels.empty:
        problem = f"none of {len(drawn)} labels has a class, and its centre in the area"
        raise ValueError(f"{source.path}: {problem}: compare both in a GIS")
    matches = _match(objects, labels)
    # As COCO's crowds, labels without a class take the objects of which half lies on them.
    shapes = repair(objects.geometry)
    ignored = shapely.area(shapely.intersection(shapes, drawn[~has_class].union_all()))
    is_counted = (matches >= 0) | (ignored < shapely.area(shapes) / 2)
    scores = _score_matches(out, objects[is_counted], labels, matches[is_counted])
    counts = f"{len(labels)} of {len(drawn)} labels, {is_counted.sum()} of {len(table)} objects"
    print_line(f"{out} is scored over {counts}: those with a class in the area")
    return scores


def _have_centre_in(area: Any, polygons: Any) -> np.ndarray:
    return shapely.contains(area, shapely.centroid(np.array(polygons.geometry)))


def _match(table: Any, labels: Any) -> np.ndarray:
    """Match objects, in descending order of scores, each with the free label of its class that has
    the best IoU. Return the position of each object's label, or -1.
    """
    shapes = repair(table.geometry)
    label_shapes = np.array(labels.geometry)
    first, second = shapely.STRtree(label_shapes).query(shapes, predicate="intersects")
    shared = shapely.area(shapely.intersection(shapes[first], label_shapes[second]))
    iou = shared / (shapely.area(shapes[first]) + shapely.area(label_shapes[second]) - shared)
    is_of_class = table["class"].to_numpy()[first] == labels["class"].to_numpy()[second]
    matches = np.full(len(shapes), -1)
    is_taken = np.zeros(len(label_shapes), bool)
    for pair in np.lexsort((-iou, first)):  # the best IoU of each object comes first
        number = first[pair]
        label = second[pair]
        is_match = is_of_class[pair] and iou[pair] >= MIN_IOU
        if is_match and matches[number] < 0 and not is_taken[label]:
            matches[number] = label
            is_taken[label] = True
    return matches


def _score_matches(out: Path, table: Any, labels: Any, matches: np.ndarray) -> Any:
    """Return the scores of each class and of all, and write what is matched, missed and false."""
    import pandas

    is_found = matches >= 0
    threshold = _best_score(table["score"].to_numpy(), is_found, len(labels))
    is_good = table["score"].to_numpy() >= threshold
    is_missed = ~np.isin(np.arange(len(labels)), matches[is_good])
    matched = table[is_good & is_found]
    layers = dict(matched=matched, missed=labels[is_missed], false=table[is_good & ~is_found])
    add_layers(out, layers)
    names = sorted({*table["class"], *labels["class"]})
    classes = dict(objects=labels["class"], detected=table["class"][is_good])
    classes["matched"] = matched["class"]
    columns = {name: column.value_counts() for name, column in classes.items()}
    counts = pandas.DataFrame(columns, index=names).fillna(0).astype(int)
    of_class = [(table["class"] == name).to_numpy() for name in names]
    pairs = zip(of_class, counts["objects"], strict=True)
    precisions = [_average_precision(is_found[is_of_class], count) for is_of_class, count in pairs]
    counts.loc["all"] = counts.sum()
    return pandas.DataFrame(
        dict(
            AP50=[*precisions, np.nanmean(precisions)],
            precision=counts["matched"] / counts["detected"],
            recall=counts["matched"] / counts["objects"],
            F1=2 * counts["matched"] / (counts["detected"] + counts["objects"]),
            objects=counts["objects"],
            matched=counts["matched"],
            missed=counts["objects"] - counts["matched"],
            false=counts["detected"] - counts["matched"],
            score=threshold,
        )
    )


def _best_score(scores: np.ndarray, is_found: np.ndarray, labels: int) -> float:
    """Return the score, of scores in descending order, from which on objects have the best F1, or
    infinity without objects.
    """
    if not len(scores):
        return np.inf
    f1 = 2 * np.cumsum(is_found) / (labels + np.arange(1, len(scores) + 1))
    is_last_of_score = np.append(scores[1:] < scores[:-1], True)
    return scores[np.argmax(np.where(is_last_of_score, f1, 0))]


def _average_precision(is_found: np.ndarray, labels: int) -> float:
    """Return COCO's average precision of objects in descending order of scores: the mean of the
    best precision at 101 recalls.
    """
    if not labels:
        return np.nan
    found = np.cumsum(is_found)
    precision = found / np.arange(1, len(found) + 1)
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0)
    return float(best[np.searchsorted(found / labels, np.linspace(0, 1, 101))].mean())
