"""Score of a table of objects against labels: average precision, and what is matched or missed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..utils.cli import print_line
from . import objects
from .labels import NO_CLASS, ONE_CLASS, LabelFile
from .old_raster import Raster
from .polygons import footprint, has_centre_in, read_area, repair, to_crs
from .tally import Tally

MIN_IOU = 0.5
_WINDOW = 512  # side in pixels of the windows in which the data of a raster are looked up


def score_objects(
    out: Path,
    source: LabelFile,
    aoi: str | Path | None,
    raster: Raster | None,
    classes: Sequence[str] | None,
) -> Any:
    """Match a table of objects with labels, and return the scores of each class and of all. Lines
    and `attrs` tell what is left out.

    Args:
        classes: Classes of the model, if known.
    """
    source.is_raster(is_detector=True)  # which raises an error
    table, _ = objects.read_table(out)
    crs = table.crs
    if raster is not None:  # in whose system its footprint is a rectangle
        table = to_crs(table, raster.crs, str(out))
    area = _find_area(table.crs, aoi, raster)
    placed, label_tally, _ = source.place(table.crs, area, by_centre=True)
    has_class = placed["class"] != NO_CLASS
    ignored = {"without a class": placed[~has_class]}
    labels = placed[has_class]
    source.note_parts(labels)
    if set(labels["class"]) == {ONE_CLASS}:
        table["class"] = ONE_CLASS
    elif classes is not None:
        is_known = source.are_known(labels, classes)
        labels = label_tally.keep(labels, is_known, "of a class that the model does not know")
    if raster is not None:
        has_data = _have_data(labels, raster)
        ignored["without data"] = labels[~has_data]
        labels = label_tally.keep(labels, has_data, "without data in the raster")
    if labels.empty:
        raise ValueError(f"{source.option} has no label that counts: {label_tally}")
    tally = Tally("objects found", len(table))
    if area is not None:
        table = tally.keep(table, has_centre_in(area, table), "outside of the area")
    table = table.iloc[_order_by_score(table)]
    matches = _match(table, labels)
    for reason, polygons in ignored.items():
        is_scored = (matches >= 0) | ~_lie_on(table, polygons)
        table = tally.keep(table, is_scored, f"on labels {reason}")
        matches = matches[is_scored]
    scores = _score_matches(out, table, labels, matches, crs)
    print_line(f"{out}: {label_tally}")
    print_line(f"{out}: {tally}")
    scores.attrs.update(labels=label_tally.counts, objects=tally.counts)
    return scores


def _find_area(crs: Any, aoi: str | Path | None, raster: Raster | None) -> Any:
    """Return the polygon of the area that counts, or None if everything does."""
    extent = None if raster is None else to_crs(footprint(raster), crs, raster.path)
    if aoi is not None:
        return read_area(aoi, crs, extent)
    return None if extent is None else extent.union_all()


def _have_data(labels: Any, raster: Raster) -> np.ndarray:
    """Return whether the raster has data at the centre of each label's box, without which no object
    is predicted.
    """
    shapes = to_crs(labels, raster.crs, raster.path).geometry
    shapes = shapes.affine_transform((~raster.transform).to_shapely())
    inside = shapes.intersection(shapely.box(0, 0, raster.width, raster.height))
    corners = np.nan_to_num(inside.bounds.reindex(labels.index)).reshape(-1, 2, 2)
    limits = raster.width - 1, raster.height - 1
    x, y = corners.mean(axis=1).astype(int).clip(0, limits).T
    # GDAL decodes whole blocks, so the labels of a window are looked up together.
    windows, numbers = np.unique([y // _WINDOW, x // _WINDOW], axis=1, return_inverse=True)
    has_data = np.zeros(len(labels), bool)
    for number, (top, left) in enumerate(windows.T * _WINDOW):
        rows = slice(top, min(top + _WINDOW, raster.height))
        columns = slice(left, min(left + _WINDOW, raster.width))
        _, valid = raster.read(rows, columns)
        is_here = numbers == number
        has_data[is_here] = valid[y[is_here] - top, x[is_here] - left]
    return has_data


def _order_by_score(table: Any) -> np.ndarray:
    """Return the positions of objects by descending score, whatever their order in the file."""
    bounds = table.geometry.bounds.to_numpy().T
    return np.lexsort((table["class"].to_numpy(str), *bounds, -table["score"].to_numpy(float)))


def _lie_on(table: Any, ignored: Any) -> np.ndarray:
    """Return whether at least half of each object lies on ignored labels, as on COCO's crowds."""
    shapes = repair(np.array(table.geometry))
    union = ignored.union_all()
    shared = shapely.area(shapely.intersection(shapes, union))
    return (shared > 0) & (shared >= MIN_IOU * shapely.area(shapes))


def _score_matches(out: Path, table: Any, labels: Any, matches: np.ndarray, crs: Any) -> Any:
    """Return the scores of each class and of all, and add what is matched, missed and false as
    layers to a GeoPackage.

    Args:
        table: In descending order of scores.
        matches: Position of each object's label, or -1.
        crs: Coordinate system of the layers.
    """
    import pandas

    threshold = _best_score(table["score"].to_numpy(), matches >= 0, len(labels))
    table = table.assign(is_matched=matches >= 0, is_good=table["score"] >= threshold)
    if out.suffix == ".gpkg":
        is_missed = ~np.isin(np.arange(len(labels)), matches[table["is_good"]])
        good = table[table["is_good"]].drop(columns="is_good")
        is_matched = good["is_matched"]
        layers = good[is_matched], labels[is_missed], good[~is_matched]
        placed = [layer if crs is None else layer.to_crs(crs) for layer in layers]
        objects.add_layers(out, dict(zip(objects.ERROR_LAYERS, placed, strict=True)))
    names = sorted({*table["class"], *labels["class"]})
    rows = []
    for name in names:
        count = int((labels["class"] == name).sum())
        rows.append(_measure(table[table["class"] == name], count))
    mean = float(np.nanmean([row["AP50"] for row in rows]))
    rows.append(_measure(table, len(labels)) | dict(AP50=mean))
    return pandas.DataFrame(rows, index=[*names, "all"]).assign(score=threshold)


def _match(table: Any, labels: Any) -> np.ndarray:
    """Match objects, in descending order of scores, each with the free label of its class that has
    the best IoU. Return the position of each object's label, or -1.
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


def _average_precision(is_matched: np.ndarray, labels: int) -> float:
    """Return COCO's average precision: the mean of the best precision at 101 recalls."""
    if not labels:
        return np.nan
    matched = np.cumsum(is_matched)
    precision = matched / np.arange(1, len(matched) + 1)
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0)
    return float(best[np.searchsorted(matched / labels, np.linspace(0, 1, 101))].mean())
