"""Scores of a raster's result against a user's labels."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..utils.cli import print_line
from ..utils.errors import preview
from . import maps, objects
from .files import checksum
from .gdal import gdal, list_files, open_raster
from .labels import (
    NO_CLASS,
    ONE_CLASS,
    UNKNOWN_CLASS,
    UNLABELLED,
    WITHOUT_CLASS,
    DrawnClasses,
    LabelFile,
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
    layer: str | None = None,
) -> Any:
    """Score a map or a table of objects of `predict_raster` against labels.

    Objects and labels of a class are matched one to one at an IoU of 0.5, best scores first. They
    count if their centre lies in the area. Precision, recall, F1 and counts are those at the score
    with the best F1 of all classes; a GeoPackage gets its objects and labels as the layers
    `matched`, `missed` and `false`.

    Labels without a class, and of classes that the model does not know, do not count, nor do
    objects that lie on labels without a class. Lines tell over what a score was computed, and what
    is left out.

    Args:
        labels: Vector file of polygons. Without a column of classes, those of objects do not
            matter. For a map also a raster of class numbers, whose nodata and 255 do not count.
            Pixels without a polygon are `background`, or do not count for a map without this class.
        aoi: Vector file of the area in which the labels are complete. Default: the raster.
        raster: The raster that was predicted, whose extent limits what counts of a table. A line
            says if it has changed since. Default: everything counts.
        class_column: Of polygons. Default: `class`, `label`, `name`, `category` or `type`,
            whichever there is.
        layer: Layer of the polygons. Default: the first that has some.

    Returns:
        A pandas.DataFrame with a row for each class. Of objects: AP50 as of COCO, precision,
        recall, F1, score and the numbers of objects in the labels, matched, missed and false, and
        the row `all` with the mean of AP50. Of a map: IoU and labelled pixels, and the row `mean`.
        Its `attrs` have a dictionary for the `pixels` of a map, or for the `labels` and the
        `objects` of a table: how many there are in all, `scored`, and left out by each reason.

    Raises:
        ValueError: If no label lies in the area or has a class of the model, a number in a raster
            is no class of the map, or `class_column` is given for a raster.
        OSError, RuntimeError: If a file cannot be read.
    """
    out = Path(out)
    is_table = out.suffix in objects.SUFFIXES
    origin = objects.read_origin(out) if is_table else maps.read_origin(out)
    if raster is not None and origin:
        _note_change(out, origin, raster)
    source = LabelFile(labels, class_column, layer)
    if not is_table:
        return _score_map(out, source, aoi)
    table, _ = objects.read_table(out)
    found = Tally("objects found", len(table))
    area = _find_area(table.crs, aoi, raster)
    polygons = read_labels(source)
    drawn = Tally("labels", len(polygons))
    polygons = place_labels(polygons, table.crs, area, source.option, by_centre=True)
    drawn.leave_out("outside of the area", drawn.total - len(polygons))
    ignored = polygons[polygons["class"] == NO_CLASS]
    drawn.leave_out("without a class", len(ignored))
    polygons = polygons[polygons["class"] != NO_CLASS]
    if set(polygons["class"]) == {ONE_CLASS}:
        table["class"] = ONE_CLASS
    elif origin:
        polygons = _select_known(polygons, origin["classes"], source, drawn)
    if area is not None:
        table = table[has_centre_in(area, table)]
    found.leave_out("outside of the area", found.total - len(table))
    table = table.iloc[_order(table)]
    matches = _match(table, polygons)
    is_ignored = (matches < 0) & _lie_on(table, ignored)
    found.leave_out("on labels without a class", int(is_ignored.sum()))
    scores = _score_objects(out, table[~is_ignored], polygons, matches[~is_ignored])
    for tally in (drawn, found):
        print_line(f"{out}: {tally}")
    scores.attrs.update(labels=drawn.counts, objects=found.counts)
    return scores


class Tally:
    """Over how many of all things a score was computed, and how many are left out for what reason.

    Args:
        unit: What is counted.
        total: How many there are.
    """

    def __init__(self, unit: str, total: int) -> None:
        self.unit = unit
        self.total = total
        self.left_out: Counter[str] = Counter()

    def leave_out(self, reason: str, count: int) -> None:
        """Count things that do not count for one more reason."""
        self.left_out[reason] += count

    @property
    def counts(self) -> dict[str, int]:
        """The total, the number of scored things, and of those left out by reason."""
        left_out = {reason: count for reason, count in self.left_out.items() if count}
        return dict(total=self.total, scored=self.total - self.left_out.total()) | left_out

    def __str__(self) -> str:
        counts = self.counts
        total = counts.pop("total")
        scored = counts.pop("scored")
        share = f" ({scored / total:.1%})" if total else ""
        reasons = [f"{count:,} {reason}" for reason, count in counts.items()]
        left_out = f"; left out: {', '.join(reasons)}" if reasons else ""
        return f"the score counts {scored:,} of {total:,} {self.unit}{share}{left_out}"


def _note_change(out: Path, origin: dict[str, Any], raster: str | Path) -> None:
    """Print a line if a raster is not the one that a result was made from."""
    with gdal(raster), open_raster(raster) as file:
        content = checksum(list_files(file))
    if content != origin["content"]:
        problem = f"{raster} has changed since {out} was made from {origin['raster']}"
        print_line(f"{problem}: --overwrite predicts it again")


def _select_known(polygons: Any, classes: Sequence[str], source: LabelFile, drawn: Tally) -> Any:
    """Select the polygons of a model's classes. A line names the other classes.

    Raises:
        ValueError: If no polygon has one of the classes.
    """
    is_known = polygons["class"].isin(classes)
    unknown = sorted(set(polygons["class"][~is_known]))
    if unknown:
        problem = f"the model does not know {preview(unknown)}, but {preview(classes)}"
        if not is_known.any():
            raise ValueError(f"{source.option}: {problem}: give --class-column")
        print_line(f"{source.option}: {problem}: these labels do not count")
    drawn.leave_out("of a class that the model does not know", int((~is_known).sum()))
    return polygons[is_known]


def _find_area(crs: Any, aoi: str | Path | None, raster: str | Path | None) -> Any:
    """Return the polygon of the area that counts, or None if everything does."""
    if raster is None:
        return None if aoi is None else read_area(aoi, crs)
    with gdal(raster), open_raster(raster) as file:
        place = to_crs(footprint(file), crs, str(raster))
    return place.union_all() if aoi is None else read_area(aoi, crs, place)


def _order(table: Any) -> np.ndarray:
    """Return the positions of objects by descending score, whatever their order in the file."""
    bounds = table.geometry.bounds.to_numpy().T
    return np.lexsort((table["class"].to_numpy(str), *bounds, -table["score"].to_numpy(float)))


def _lie_on(table: Any, ignored: Any) -> np.ndarray:
    """Return whether at least half of each object lies on labels, as COCO's crowds ignore."""
    shapes = repair(np.array(table.geometry))
    union = ignored.union_all()
    return shapely.area(shapely.intersection(shapes, union)) >= MIN_IOU * shapely.area(shapes)


def _score_objects(out: Path, table: Any, labels: Any, matches: np.ndarray) -> Any:
    """Return the scores of each class and of all, and write the layers of a GeoPackage.

    Args:
        table: In descending order of scores.
        matches: As of `_match`.
    """
    import pandas

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


def _score_map(out: Path, source: LabelFile, aoi: str | Path | None) -> Any:
    """Return the IoU of each class of a map."""
    import pandas

    with gdal(out), open_raster(out) as file:
        names = json.loads(file.tags()["CLASSES"])
        place = footprint(file)
        area = place.union_all() if aoi is None else read_area(aoi, file.crs, place)
        if is_raster(source.path, source.class_column):
            labels: DrawnClasses | StoredClasses = StoredClasses(source.path, file)
        else:
            polygons = read_labels(source)
            polygons = place_labels(polygons, file.crs, area, source.option)
            _select_known(polygons[polygons["class"] != NO_CLASS], names, source, Tally("", 0))
            labels = DrawnClasses(polygons, file.transform, names)
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
    file: Any, labels: DrawnClasses | StoredClasses, area: Any, count: int
) -> tuple[np.ndarray, Tally]:
    """Count the pixels in an area of each class in the labels (row) and in the map (column), and
    the pixels that are left out.
    """
    counts = np.zeros((count, count), np.int64)
    tally = Tally("pixels of the area", 0)
    for top, left in product(range(0, file.height, _WINDOW), range(0, file.width, _WINDOW)):
        rows = slice(top, min(top + _WINDOW, file.height))
        columns = slice(left, min(left + _WINDOW, file.width))
        predicted = file.read(1, window=((rows.start, rows.stop), (columns.start, columns.stop)))
        numbers = labels.read(rows, columns)
        if numbers.max() >= count:
            problem = f"the labels have a class {numbers.max()}"
            raise ValueError(f"{problem}, but {file.name} has {count}, from 0 on")
        is_inside = covers(area, rows, columns)
        has_class = is_inside & (predicted != file.nodata)
        tally.total += int(is_inside.sum())
        tally.leave_out("without a class in the map", int((is_inside & ~has_class).sum()))
        for number, reason in _LEFT_OUT.items():
            tally.leave_out(reason, int((has_class & (numbers == number)).sum()))
        is_counted = has_class & (numbers >= 0)
        pairs = numbers[is_counted] * count + predicted[is_counted]
        counts += np.bincount(pairs, minlength=count**2).reshape(count, count)
    return counts, tally
