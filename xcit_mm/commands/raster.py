"""`xcit-mm raster`: detect or segment in a raster of any size, and score the result."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from .. import Predictor, predict_raster, score_raster
from ..rasters.labels import LabelFile
from ..rasters.settings import READING
from ..utils.cli import CommandParser, cli_main
from ..utils.folders import check_output
from ..utils.memory import keep_freed_memory
from ..utils.ranks import rank_and_size
from ..weights.zoo import find_model
from .options import (
    CHECKPOINT,
    LABEL_OPTIONS,
    MODEL,
    WHOLE,
    add_predictor_options,
    add_raster_options,
    add_view_options,
    predictor_options,
)

CALLS = """
xcit-mm raster RASTER MODEL --out map.tif        # a segmentor: a GeoTIFF of classes
xcit-mm raster RASTER MODEL --out objects.gpkg   # a detector; the same command resumes
"""


def main(argv: Sequence[str] | None = None) -> int:
    keep_freed_memory()
    parser = CommandParser("raster", CALLS)
    add = parser.add_argument
    add("raster", help="a GeoTIFF, a JPEG2000 or another format that GDAL reads")
    add("config", metavar="MODEL", help=MODEL)
    add("checkpoint", nargs="?", help=CHECKPOINT)
    add("--out", type=Path, required=True, metavar="FILE", help="the result")
    add("--overwrite", action="store_true", help="replace the result, and start again")
    whole = f"{WHOLE} (default: of a segmentor)"
    add("--whole", action=argparse.BooleanOptionalAction, help=whole)
    add("--labels", metavar="FILE", help="score the result against polygons of a vector file")
    add_raster_options(parser)
    add_view_options(parser)
    add_predictor_options(parser)
    args = parser.parse_args(argv)
    return cli_main(lambda: predict(args), "the same command resumes", args.verbose)


def predict(args: argparse.Namespace) -> None:
    """Predict a raster, and print the path and the score of the result."""
    columns = {name: getattr(args, name) for name in LABEL_OPTIONS}
    if args.labels is None and any(columns.values()):
        raise ValueError("--class-column, --class and --layer are for --labels: give it too")
    config, checkpoint = find_model(args.config, args.checkpoint)
    predictor = Predictor.from_pretrained(config, checkpoint, **predictor_options(args))
    if args.labels is not None:
        check_output(args.out, [args.labels])
        LabelFile(args.labels, **columns).check(args.raster)
    names = (*READING, "aoi", "whole", "scale", "window", "scratch", "overwrite")
    options = {name: getattr(args, name) for name in names}
    predict_raster(args.raster, predictor, args.out, **options)
    if rank_and_size()[0] > 0:
        return
    print(args.out, flush=True)
    if args.labels is not None:
        scores = score_raster(args.out, args.labels, args.aoi, raster=args.raster, **columns)
        print(scores.to_string(float_format="%.3f", na_rep="-"), flush=True)
