"""`xcit-mm raster`: detect or segment in rasters of any size, and score the results."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from .. import Predictor, predict_raster, score_raster
from ..prediction.cluster import rank_and_size
from ..rasters.files import WriteError
from ..rasters.gdal import list_rasters
from ..rasters.labels import LabelFile
from ..utils.arguments import CommandParser
from ..utils.cli import cli_main, print_line
from ..utils.errors import reason
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
xcit-mm raster RASTER MODEL --out objects.gpkg   # a detector: also .geojson, .parquet
xcit-mm raster FOLDER MODEL --out DIR            # DIR/NAME.tif or .gpkg of each raster
"""
DESCRIPTION = """
RASTER is a GeoTIFF, a JPEG2000 or another format that GDAL reads. MODEL is the name of a published
model, the work folder of a training, or a config and its checkpoint. The same command resumes:
OUT.parts holds the rows of tiles that are done. One process per GPU shares them:
torchrun --nproc_per_node 4 -m xcit_mm raster RASTER MODEL --out map.tif
If a raster of a folder cannot be read, it is reported, and the exit code is 3.
"""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser("raster", CALLS, description=DESCRIPTION)
    add = parser.add_argument
    add("raster", help=argparse.SUPPRESS)
    add("config", metavar="MODEL", help=argparse.SUPPRESS)
    add("checkpoint", nargs="?", help=CHECKPOINT)
    out_help = "the result, or the folder of the results"
    add("--out", type=Path, required=True, metavar="FILE", help=out_help)
    add("--overwrite", action="store_true", help="replace the result, and start again")
    labels_help = "score the result against polygons, or a map against a raster"
    add("--labels", metavar="FILE", help=labels_help)
    add("--crs", help="coordinate system of objects, such as EPSG:4326 (default: the raster's)")
    add_raster_options(parser)
    add_predictor_options(parser)
    return parser.parse_args(argv)


def predict(args: argparse.Namespace) -> int:
    options = {"--class-column": args.class_column, "--class": args.class_name}
    for option, value in (options | {"--layer": args.layer}).items():
        if value is not None and args.labels is None:
            raise ValueError(f"{option} {value} is for --labels: give both")
    config, checkpoint = find_model(args.config, args.checkpoint)
    inputs = args.raster, args.aoi, args.labels, config, checkpoint
    check_output(args.out, filter(None, inputs))
    predictor = Predictor.from_config(config, checkpoint, **predictor_options(args))
    if args.labels is not None:
        labels = LabelFile(args.labels, args.class_column, args.class_name, args.layer)
        labels.check(args.raster, predictor.is_detector)
    if not Path(args.raster).is_dir():
        predict_one(args.raster, predictor, args.out, args)
        return 0
    failed = 0
    for path in list_rasters(Path(args.raster)):
        out = args.out / f"{path.stem}{'.gpkg' if predictor.is_detector else '.tif'}"
        try:
            predict_one(path, predictor, out, args)
        except WriteError:
            raise
        except ERRORS as error:
            print_line(f"{path} failed: {reason(error)}")
            failed += 1
    return 3 if failed else 0


def predict_one(
    raster: str | Path, predictor: Predictor, out: Path, args: argparse.Namespace
) -> None:
    """Predict a raster, and print the path and the score of the result."""
    names = (*READING_OPTIONS, "aoi", "crs", "overwrite")
    predict_raster(raster, predictor, out, **{name: getattr(args, name) for name in names})
    rank, _ = rank_and_size()
    if rank > 0:
        return
    print(out, flush=True)
    if args.labels is not None:
        options = {name: getattr(args, name) for name in ("class_column", "class_name", "layer")}
        scores = score_raster(out, args.labels, args.aoi, raster=raster, **options)
        print(scores.to_string(float_format="%.3f", na_rep="-"), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    keep_freed_memory()
    args = parse_args(argv)
    return cli_main(lambda: predict(args), "the same command resumes", *ERRORS)
