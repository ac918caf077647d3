"""Scores of a raster's result against a user's labels."""

from pathlib import Path
from typing import Any

from ..utils.cli import print_line
from . import maps, objects
from .labels import LabelFile
from .map_score import score_map
from .object_score import score_objects
from .old_raster import Raster


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

    What does not count: labels without a class, of classes that the model does not know, drawn
    twice, or where the raster has no data; and objects that lie on labels without a class or data.
    Lines tell over what a score was computed, and what is left out.

    Args:
        labels: Vector file of polygons. Without a column of classes, those of objects do not
            matter. For a map also a raster of class numbers, whose nodata and 255 do not count.
            Pixels without a polygon are `background`, or do not count for a map without this class.
        aoi: Vector file of the area in which the labels are complete. Default: the raster.
        raster: The raster that was predicted, whose extent and data limit what counts of a table. A
            line says if it has changed since. Default: everything counts.
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
        ValueError: If no label lies in the area or counts, a number in a raster is not a class of
            the map, or `class_column` is given for a raster.
        OSError, RuntimeError: If a file cannot be read.
    """
    out = Path(out)
    is_table = out.suffix in objects.SUFFIXES
    origin = objects.read_origin(out) if is_table else maps.read_origin(out)
    predicted = None if raster is None else _open_predicted(raster, origin)
    if predicted is not None and origin and predicted.checksum() != origin["content"]:
        problem = f"{raster} has changed since {out} was made from {origin['raster']}"
        print_line(f"{problem}: --overwrite predicts it again")
    if origin.get("aoi") and aoi is None:
        fix = "give the same aoi, as what lies outside would count as missed"
        raise ValueError(f"{out} was made within an aoi: {fix}")
    source = LabelFile(labels, class_column, layer)
    if not is_table:
        return score_map(out, source, aoi)
    return score_objects(out, source, aoi, predicted, origin.get("classes"))


def _open_predicted(path: str | Path, origin: dict[str, Any]) -> Raster:
    """Open a raster as it was read for a result, so that the same pixels have data."""
    if not origin:
        return Raster(path, raw=True)
    bands = origin["bands"]
    nodata = None if origin["nodata"] is None else float(origin["nodata"])
    options = dict(bands=bands, gsd=origin["gsd"], nodata=nodata)
    return Raster(path, channels=len(bands), raw=True, **options)  # values do not matter
