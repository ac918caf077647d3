"""Scores of a raster's result against a user's labels."""

from pathlib import Path
from typing import Any

from .labels import LabelFile
from .map_score import score_map
from .object_score import score_objects


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
    their centre lies in the area. Labels without a class do not count, nor do objects on them.
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
    return score_map(out, source, aoi)
