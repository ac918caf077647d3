"""`xcit-mm raster`: detect or segment in a raster of any size, and score the result."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from .. import Predictor, predict_raster, score_raster
from ..rasters.labels import LabelFile
from ..rasters.settings import READING
from ..utils.cli import CommandParser, cli_main
from ..utils.errors import ArgumentError
from ..utils.folders import check_output
from ..utils.memory import keep_freed_memory
from ..utils.ranks import is_first
from .options import (
    LABEL_OPTIONS,
    WHOLE,
    add_model,
    add_predictor_options,
    add_raster_options,
    add_view_options,
    check_order,
    predictor_options,
)

CALLS = """
xcit-mm raster MODEL RASTER --out map.tif        # a segmentor: a GeoTIFF of classes
xcit-mm raster MODEL RASTER --out objects.gpkg   # a detector; the same command resumes
"""


def main(argv: Sequence[str] | None = None) -> int:
    keep_freed_memory()
    parser = CommandParser("raster", CALLS)
    add_model(parser)
    add = parser.add_argument
    raster = "a GeoTIFF, a JPEG2000 or another format that GDAL reads"
    add("raster", metavar="RASTER", help=raster)
    add("--out", type=Path, required=True, metavar="FILE", help="the result")
    add("--overwrite", action="store_true", help="replace the result, and start again")
    whole = f"{WHOLE} (default: of a segmentor)"
    add("--whole", action=argparse.BooleanOptionalAction, help=whole)
    add("--labels", metavar="FILE", help="score the result against polygons in a vector file")
    add_raster_options(parser)
    add_view_options(parser)
    add_predictor_options(parser)
    args = parser.parse_args(argv)
    interrupted = "run the same command again to continue"
    return cli_main(lambda: predict(args), interrupted, args.verbose, parser)


def predict(args: argparse.Namespace) -> None:
    """Predict a raster, and print the path and the score of the result."""
    check_order("raster", args.model, [args.raster])
    columns = {name: getattr(args, name) for name in LABEL_OPTIONS}
    if args.labels is not None:  # an error comes before the model is loaded
        check_output(args.out, [args.labels])
        LabelFile(args.labels, **columns).check(args.raster)
    for name, value in columns.items():
        if args.labels is None and value is not None:
            raise ArgumentError(name, f"{value} is for labels: give them too")
    predictor = Predictor.from_pretrained(args.model, args.checkpoint, **predictor_options(args))
    names = (*READING, "aoi", "whole", "scale", "window", "scratch", "overwrite")
    options = {name: getattr(args, name) for name in names}
    predict_raster(predictor, args.raster, args.out, **options)
    if not is_first():
        return
    print(args.out, flush=True)
    if args.labels is not None:
        scores = score_raster(args.out, args.labels, args.aoi, raster=args.raster, **columns)
        print(scores.to_string(float_format="%.3f", na_rep="-"), flush=True)
