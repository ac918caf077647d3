"""Score of a table of objects against labels: average precision, and what is matched or missed."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..utils.atomic import atomic_path
from ..utils.cli import print_line
from .gdal import open_raster
from .labels import NO_CLASS, LabelFile
from .objects import LAYER
from .polygons import area_in_pixels, read_polygons, repair, to_map

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
    has_class = drawn["class"] != NO_CLASS
    labels = drawn[has_class]
    objects = table.sort_values("score", ascending=False, kind="stable")
    area = None
    if raster is not None:
        with open_raster(raster) as file:
            area = to_map([area_in_pixels(aoi, file)], file).union_all()
    elif aoi is not None:
        area = read_polygons(aoi, table.crs).union_all()
    if area is not None:
        labels = labels[_have_centre_in(area, labels)]
        objects = objects[_have_centre_in(area, objects)]
    objects = objects[~_have_centre_in(drawn[~has_class].union_all(), objects)]
    if labels.empty:
        problem = f"none of {len(drawn)} labels has a class, and its centre in the area"
        raise ValueError(f"{source.path}: {problem}: compare both in a GIS")
    scores = _score_matches(out, objects, labels, _match(objects, labels))
    counts = f"{len(labels)} of {len(drawn)} labels, {len(objects)} of {len(table)} objects"
    print_line(f"{out} is scored over {counts}: those with a class in the area")
    return scores


def _have_centre_in(area: Any, polygons: Any) -> np.ndarray:
    return shapely.contains(area, shapely.centroid(np.array(polygons.geometry)))


def _match(objects: Any, labels: Any) -> np.ndarray:
    """Match objects, in descending order of scores, each with the free label of its class that has
    the best IoU. Return the position of each object's label, or -1.
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
    with atomic_path(out) as unfinished:
        shutil.copyfile(out, unfinished)
        for name, layer in layers.items():
            options = dict(geometry_type="MultiPolygon", promote_to_multi=True)
            layer.to_file(unfinished, layer=name, driver="GPKG", **options)
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
