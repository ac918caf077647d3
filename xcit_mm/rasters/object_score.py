"""Score of a table of objects against labels: average precision, and what is matched or missed."""

from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..utils.cli import print_line
from . import objects
from .gdal import open_raster
from .labels import NO_CLASS, LabelFile
from .polygons import describe_extents, footprint, read_polygons, repair, to_crs
from .tally import Tally

MIN_IOU = 0.5
ERROR_LAYERS = ("matched", "missed", "false")


def score_objects(
    out: Path, source: LabelFile, aoi: str | Path | None, raster: str | Path | None
) -> Any:
    """Match a table of objects with labels, and return the scores of each class and of all. Lines
    and `attrs` tell what counts, and the table's file gets the layers `ERROR_LAYERS`.
    """
    table = objects.read_table(out)
    area = _find_area(table.crs, aoi, raster)
    drawn = source.read(table.crs)
    label_tally = Tally("labels", len(drawn))
    has_class = drawn["class"] != NO_CLASS
    labels = label_tally.keep(drawn, has_class, "without a class")
    tally = Tally("objects", len(table))
    if area is not None:
        labels = label_tally.keep(labels, _have_centre_in(area, labels), "outside of the area")
        table = tally.keep(table, _have_centre_in(area, table), "outside of the area")
    if labels.empty:
        bounds = drawn.total_bounds if area is None else area.bounds
        extents = describe_extents(drawn.total_bounds, bounds)
        raise ValueError(f"{source.path} has no label in the area: {label_tally}; {extents}")
    table = table.sort_values("score", ascending=False, kind="stable")
    matches = _match(table, labels)
    # As COCO's crowds, labels without a class take the objects of which half lies on them.
    shapes = repair(table.geometry)
    shared = shapely.area(shapely.intersection(shapes, drawn[~has_class].union_all()))
    is_counted = (matches >= 0) | (shared < 0.5 * shapely.area(shapes))
    table = tally.keep(table, is_counted, "on labels without a class")
    scores = _score_matches(out, table, labels, matches[is_counted])
    print_line(f"{out} is scored over {label_tally}, and {tally}")
    scores.attrs.update(labels=label_tally.counts, objects=tally.counts)
    return scores


def _find_area(crs: Any, aoi: str | Path | None, raster: str | Path | None) -> Any:
    """Return the polygon of the area that counts, or None if everything does."""
    areas = []
    if raster is not None:
        with open_raster(raster) as file:
            areas.append(to_crs(footprint(file), crs, raster).union_all())
    if aoi is not None:
        areas.append(read_polygons(aoi, crs).union_all())
    return shapely.intersection_all(areas) if areas else None


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

    threshold = _best_score(table["score"].to_numpy(), matches >= 0, len(labels))
    is_good = table["score"].to_numpy() >= threshold
    is_found = matches >= 0
    is_missed = ~np.isin(np.arange(len(labels)), matches[is_good])
    layers = table[is_good & is_found], labels[is_missed], table[is_good & ~is_found]
    objects.add_layers(out, dict(zip(ERROR_LAYERS, layers, strict=True)))
    names = sorted({*table["class"], *labels["class"]})
    rows = []
    for name in names:
        is_of_class = (table["class"] == name).to_numpy()
        count = int((labels["class"] == name).sum())
        rows.append(_measure(is_found[is_of_class], is_good[is_of_class], count))
    mean = float(np.nanmean([row["AP50"] for row in rows]))
    rows.append(_measure(is_found, is_good, len(labels)) | dict(AP50=mean))
    return pandas.DataFrame(rows, index=[*names, "all"]).assign(score=threshold)


def _best_score(scores: np.ndarray, is_found: np.ndarray, labels: int) -> float:
    """Return the score, of scores in descending order, from which on objects have the best F1, or
    infinity without objects.
    """
    if not len(scores):
        return np.inf
    f1 = 2 * np.cumsum(is_found) / (labels + np.arange(1, len(scores) + 1))
    is_last_of_score = np.append(scores[1:] < scores[:-1], True)
    return scores[np.argmax(np.where(is_last_of_score, f1, 0))]


def _measure(is_found: np.ndarray, is_good: np.ndarray, labels: int) -> dict[str, float]:
    """Return the scores of objects, in descending order: whether each matches one of a number of
    labels, and has the score of the best F1.
    """
    detected = int(is_good.sum())
    matched = int((is_found & is_good).sum())
    return dict(
        AP50=_average_precision(is_found, labels),
        precision=matched / detected if detected else np.nan,
        recall=matched / labels if labels else np.nan,
        F1=2 * matched / (detected + labels) if detected + labels else np.nan,
        objects=labels,
        matched=matched,
        missed=labels - matched,
        false=detected - matched,
    )


def _average_precision(is_found: np.ndarray, labels: int) -> float:
    """Return COCO's average precision: the mean of the best precision at 101 recalls."""
    if not labels:
        return np.nan
    found = np.cumsum(is_found)
    precision = found / np.arange(1, len(found) + 1)
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0)
    return float(best[np.searchsorted(found / labels, np.linspace(0, 1, 101))].mean())
