"""`xcit-mm raster`: detect or segment in a raster of any size, and score the result."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import Predictor, predict_raster, score_raster
from ..rasters.labels import LabelFile
from ..utils.cli import CommandParser
from ..utils.errors import ArgumentError
from ..utils.folders import check_output
from ..utils.ranks import is_first
from .options import COLUMNS, PREDICTOR, RASTER, VIEW, WHOLE, add_options, take

CALLS = """
xcit-mm raster MODEL RASTER --out map.tif        # a segmentor: a GeoTIFF of classes
xcit-mm raster MODEL RASTER --out objects.gpkg   # a detector; the same command resumes
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("raster", CALLS)
    add_options(parser, ("model", "--checkpoint"))
    add = parser.add_argument
    raster = "a GeoTIFF, a JPEG2000 or another format that GDAL reads"
    add("raster", metavar="RASTER", help=raster)
    add("--out", type=Path, required=True, metavar="FILE", help="the result")
    add("--overwrite", action="store_true", help="replace the result, and start again")
    whole = f"{WHOLE} (default: for a segmentor without tile and aoi)"
    add("--whole", action=argparse.BooleanOptionalAction, help=whole)
    add("--labels", metavar="FILE", help="score the result against polygons in a vector file")
    add_options(parser, (*RASTER, *VIEW))
    add_options(parser.add_argument_group("model"), (*PREDICTOR, "--verbose"))
    return parser.run(argv, predict, "run the same command again to continue")


def predict(
    model: str, checkpoint: str | None, raster: str, out: Path, labels: str | None, **options: Any
) -> None:
    """Predict a raster, and print the path and the score of the result."""
    columns = take(options, COLUMNS)
    if labels is not None:  # an error comes before the model is loaded
        check_output(out, [labels])
        LabelFile(labels, **columns).check(raster)
    for name, value in columns.items():
        if labels is None and value is not None:
            raise ArgumentError(name, f"{value} describes labels: give labels too")
    predictor = Predictor.from_pretrained(model, checkpoint, **take(options, PREDICTOR))
    predict_raster(predictor, raster, out, **options)
    if not is_first():
        return
    print(out, flush=True)
    if labels is not None:
        scores = score_raster(out, labels, options["aoi"], raster=raster, **columns)
        print(scores.to_string(float_format="%.3f", na_rep="-"), flush=True)
