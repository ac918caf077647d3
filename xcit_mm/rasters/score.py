"""Scores of a raster's result against a user's labels."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from . import objects
from .gdal import gdal, open_raster
from .labels import (
    ONE_CLASS,
    UNLABELLED,
    DrawnClasses,
    StoredClasses,
    has_centre_in,
    is_raster,
    place_labels,
    read_labels,
)
from .polygons import covers, footprint, read_area, repair, to_crs, to_pixels

MIN_IOU = 0.5
_WINDOW = 2048  # pixels of a side


def score_raster(
    out: str | Path,
    labels: str | Path,
    aoi: str | Path | None = None,
    *,
    raster: str | Path | None = None,
    class_column: str | None = None,
) -> Any:
    """Score a map or a table of objects of `predict_raster` against labels.

    Objects and labels of a class are matched one to one at an IoU of 0.5, best scores first. They
    count if their centre lies in the area. Precision, recall, F1 and counts are those at the score
    with the best F1 of all classes; a GeoPackage gets its objects and labels as the layers
    `matched`, `missed` and `false`.

    Args:
        labels: Vector file of polygons. Without a column of classes, those of objects do not
            matter. For a map also a raster of class numbers, whose nodata and 255 do not count.
            Pixels without a polygon are `background`, or do not count for a map without this class.
        aoi: Vector file of the area in which the labels are complete. Default: the raster.
        raster: The raster that was predicted, whose extent limits what counts of a table. A map
            has its raster's extent, so that this option has no effect. Default: everything counts.
        class_column: Of polygons. Default: `class`, `label`, `name`, `category` or `type`,
            whichever there is.

    Returns:
        A pandas.DataFrame with a row for each class. Of objects: AP50 as of COCO, precision,
        recall, F1, score and the numbers of objects in the labels, matched, missed and false, and
        the row `all` with the mean of AP50. Of a map: IoU and labelled pixels, and the row `mean`.

    Raises:
        ValueError: If no label lies in the area, a number in a raster is no class of the map, or
            `class_column` is given for a raster.
        OSError, RuntimeError: If a file cannot be read.
    """
    out = Path(out)
    if out.suffix not in objects.SUFFIXES:
        return _score_map(out, labels, aoi, class_column)
    table, _ = objects.read_table(out)
    area = _find_area(table.crs, aoi, raster)
    polygons = read_labels(labels, class_column)
    polygons = place_labels(polygons, table.crs, area, f"--labels {labels}", by_centre=True)
    if set(polygons["class"]) == {ONE_CLASS}:
        table["class"] = ONE_CLASS
    if area is not None:
        table = table[has_centre_in(area, table)]
    return _score_objects(out, table, polygons)


def _find_area(crs: Any, aoi: str | Path | None, raster: str | Path | None) -> Any:
    """Return the polygon of the area that counts, or None if everything does."""
    if raster is None:
        return None if aoi is None else read_area(aoi, crs)
    with gdal(raster), open_raster(raster) as file:
        place = to_crs(footprint(file), crs, str(raster))
    return place.union_all() if aoi is None else read_area(aoi, crs, place)


def _score_objects(out: Path, table: Any, labels: Any) -> Any:
    """Return the scores of each class and of all, and write the layers of a GeoPackage."""
    import pandas

    table = table.sort_values("score", ascending=False, kind="stable")
    matches = _match(table, labels)
    threshold = _best_score(table["score"].to_numpy(), matches >= 0, len(labels))
    table = table.assign(is_matched=matches >= 0, is_good=table["score"] >= threshold)
    if out.suffix == ".gpkg":
        is_missed = ~np.isin(np.arange(len(labels)), matches[table["is_good"]])
        good = table[table["is_good"]].drop(columns="is_good")
        is_matched = good["is_matched"]
        layers = good[is_matched], labels[is_missed], good[~is_matched]
        objects.add_layers(out, dict(zip(objects.ERROR_LAYERS, layers, strict=True)))
    names = sorted({*table["class"], *labels["class"]})
    rows = []
    for name in names:
        count = int((labels["class"] == name).sum())
        rows.append(_measure(table[table["class"] == name], count))
    mean = float(np.nanmean([row["AP50"] for row in rows]))
    rows.append(_measure(table, len(labels)) | dict(AP50=mean))
    return pandas.DataFrame(rows, index=[*names, "all"]).assign(score=threshold)


def _match(table: Any, labels: Any) -> np.ndarray:
    """Match objects, in descending order of scores, with labels. Return the position of each
    object's label, or -1.
    """
    shapes = repair(np.array(table.geometry))
    label_shapes = np.array(labels.geometry)
    first, second = shapely.STRtree(label_shapes).query(shapes, predicate="intersects")
    shared = shapely.area(shapely.intersection(shapes[first], label_shapes[second]))
    iou = shared / (shapely.area(shapes[first]) + shapely.area(label_shapes[second]) - shared)
    is_of_class = table["class"].to_numpy()[first] == labels["class"].to_numpy()[second]
    iou[~is_of_class] = 0
    matches = np.full(len(shapes), -1)
    is_taken = np.zeros(len(label_shapes), bool)
    for pair in np.lexsort((-iou, first)):  # the best IoU of each object comes first
        number = first[pair]
        label = second[pair]
        if iou[pair] >= MIN_IOU and matches[number] < 0 and not is_taken[label]:
            matches[number] = label
            is_taken[label] = True
    return matches


def _best_score(scores: np.ndarray, is_matched: np.ndarray, count: int) -> float:
    """Return the score from which on objects have the best F1, or infinity without objects.

    Args:
        scores: In descending order.
        count: Number of labels.
    """
    if not len(scores):
        return np.inf
    f1 = 2 * np.cumsum(is_matched) / (count + np.arange(1, len(scores) + 1))
    is_last_of_score = np.append(scores[1:] < scores[:-1], True)
    return scores[np.argmax(np.where(is_last_of_score, f1, 0))]


def _measure(table: Any, count: int) -> dict[str, float]:
    """Return the scores of a table of objects for a number of labels.

    Args:
        table: In descending order of scores, with the columns `is_matched`, and `is_good` for
            scores of at least that with the best F1.
    """
    is_good = table["is_good"].to_numpy()
    is_matched = table["is_matched"].to_numpy()
    detected = int(is_good.sum())
    matched = int((is_matched & is_good).sum())
    return dict(
        AP50=_average_precision(is_matched, count),
        precision=matched / detected if detected else np.nan,
        recall=matched / count if count else np.nan,
        F1=2 * matched / (detected + count) if detected + count else np.nan,
        objects=count,
        matched=matched,
        missed=count - matched,
        false=detected - matched,
    )


def _average_precision(is_matched: np.ndarray, count: int) -> float:
    """Return COCO's average precision: the mean of the best precision at 101 recalls."""
    if not count:
        return np.nan
    matched = np.cumsum(is_matched)
    precision = matched / np.arange(1, len(matched) + 1)
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0)
    return float(best[np.searchsorted(matched / count, np.linspace(0, 1, 101))].mean())


def _score_map(
    out: Path, path: str | Path, aoi: str | Path | None, class_column: str | None
) -> Any:
    """Return the IoU of each class of a map."""
    import pandas

    with gdal(out), open_raster(out) as file:
        names = json.loads(file.tags()["CLASSES"])
        place = footprint(file)
        area = place.union_all() if aoi is None else read_area(aoi, file.crs, place)
        if is_raster(path, class_column):
            labels: DrawnClasses | StoredClasses = StoredClasses(path, file)
        else:
            polygons = read_labels(path, class_column)
            polygons = place_labels(polygons, file.crs, area, f"--labels {path}")
            names += sorted(set(polygons["class"]) - set(names))
            labels = DrawnClasses(polygons, file.transform, names)
        counts = _count_pixels(file, labels, to_pixels(area, file), len(names))
    if not counts.any():
        raise ValueError(f"--labels {path} has no labelled pixel that counts")
    both = np.diag(counts)
    pixels = counts.sum(axis=1)
    either = counts.sum(axis=0) + pixels - both
    iou = np.divide(both, either, out=np.full(len(names), np.nan), where=either > 0)
    scores = pandas.DataFrame(dict(IoU=iou, pixels=pixels), index=names)
    scores.loc["mean"] = [np.nanmean(iou), pixels.sum()]
    return scores.astype(dict(pixels=int))


def _count_pixels(
    file: Any, labels: DrawnClasses | StoredClasses, area: Any, count: int
) -> np.ndarray:
    """Count the pixels in an area of each class in the labels (row) and in the map (column)."""
    counts = np.zeros((count, count), np.int64)
    for top, left in product(range(0, file.height, _WINDOW), range(0, file.width, _WINDOW)):
        rows = slice(top, min(top + _WINDOW, file.height))
        columns = slice(left, min(left + _WINDOW, file.width))
        predicted = file.read(1, window=((rows.start, rows.stop), (columns.start, columns.stop)))
        numbers = labels.read(rows, columns)
        if numbers.max() >= count:
            problem = f"the labels have a class {numbers.max()}"
            raise ValueError(f"{problem}, but {file.name} has {count}, from 0 on")
        is_counted = covers(area, rows, columns)
        is_counted &= (numbers != UNLABELLED) & (predicted != file.nodata)
        pairs = numbers[is_counted] * count + predicted[is_counted]
        counts += np.bincount(pairs, minlength=count**2).reshape(count, count)
    return counts
