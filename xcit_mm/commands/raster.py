"""`xcit-mm raster`: detect or segment in a raster of any size, and score the result."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from .. import Predictor, predict_raster, score_raster
from ..prediction.cluster import rank_and_size
from ..rasters.labels import LabelFile
from ..utils.arguments import CommandParser
from ..utils.cli import cli_main
from ..utils.folders import check_output
from ..utils.memory import keep_freed_memory
from ..weights.zoo import find_model
from .options import (
    CHECKPOINT,
    ERRORS,
    READING_OPTIONS,
    add_predictor_options,
    add_raster_options,
    predictor_options,
)

CALLS = """
xcit-mm raster RASTER MODEL --out map.tif        # a segmentor: a GeoTIFF of classes
xcit-mm raster RASTER MODEL --out objects.gpkg   # a detector
"""
DESCRIPTION = """
RASTER is a GeoTIFF, a JPEG2000 or another format that GDAL reads. MODEL is the name of a published
model, the work folder of a training, or a config and its checkpoint. The same command resumes:
OUT.parts holds the rows of tiles that are done. One process per GPU shares them:
torchrun --nproc_per_node 4 -m xcit_mm raster RASTER MODEL --out map.tif
"""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser("raster", CALLS, description=DESCRIPTION)
    add = parser.add_argument
    add("raster", help=argparse.SUPPRESS)
    add("config", metavar="MODEL", help=argparse.SUPPRESS)
    add("checkpoint", nargs="?", help=CHECKPOINT)
    add("--out", type=Path, required=True, metavar="FILE", help="the result")
    add("--overwrite", action="store_true", help="replace the result, and start again")
    labels_help = "score the result against polygons, or a map against a raster"
    whole_help = "the trunk sees the whole raster, and only the heads see tiles"
    add("--whole", action="store_true", help=whole_help)
    add("--labels", metavar="FILE", help=labels_help)
    add_raster_options(parser)
    add_predictor_options(parser)
    return parser.parse_args(argv)


def predict(args: argparse.Namespace) -> None:
    """Predict a raster, and print the path and the score of the result."""
    of_labels = {"--class-column": args.class_column, "--class": args.class_name}
    for option, value in (of_labels | {"--layer": args.layer}).items():
        if value is not None and args.labels is None:
            raise ValueError(f"{option} {value} is for --labels: give both")
    config, checkpoint = find_model(args.config, args.checkpoint)
    inputs = args.raster, args.aoi, args.labels, config, checkpoint
    check_output(args.out, filter(None, inputs))
    predictor = Predictor.from_config(config, checkpoint, **predictor_options(args))
    if args.labels is not None:
        labels = LabelFile(args.labels, args.class_column, args.class_name, args.layer)
        labels.check(args.raster, predictor.is_detector)
    names = (*READING_OPTIONS, "aoi", "whole", "overwrite")
    predict_raster(
        args.raster, predictor, args.out, **{name: getattr(args, name) for name in names}
    )
    rank, _ = rank_and_size()
    if rank > 0:
        return
    print(args.out, flush=True)
    if args.labels is not None:
        columns = {name: getattr(args, name) for name in ("class_column", "class_name", "layer")}
        scores = score_raster(args.out, args.labels, args.aoi, raster=args.raster, **columns)
        print(scores.to_string(float_format="%.3f", na_rep="-"), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    keep_freed_memory()
    args = parse_args(argv)
    return cli_main(lambda: predict(args), "the same command resumes", *ERRORS)
