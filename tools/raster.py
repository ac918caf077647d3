"""Predict rasters with a detector or segmentor: GeoTIFF, JPEG2000 and other formats that GDAL
reads, of any size.

    python tools/raster.py RASTER MODEL --out map.tif        # a segmentor: a GeoTIFF of classes
    python tools/raster.py RASTER MODEL --out objects.gpkg   # a detector: also .geojson, .parquet
    python tools/raster.py FOLDER MODEL --out DIR            # DIR/NAME.tif or .gpkg of each raster

--labels LABELS scores each result against polygons.

MODEL is the name of a published model, the folder of a training run, or a config and its
checkpoint. The same command resumes: OUT.parts holds the rows of tiles that are done. To share them
between processes, one per GPU:

    torchrun --nproc_per_node 4 tools/raster.py RASTER MODEL --out map.tif

A raster of a folder that cannot be read is reported, and the exit code is 3.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from xcit_mm import Predictor, predict_raster, score_raster
from xcit_mm.models.precision import DTYPES
from xcit_mm.prediction.cluster import rank_and_size, rank_device
from xcit_mm.rasters.files import WriteError
from xcit_mm.rasters.gdal import list_rasters
from xcit_mm.rasters.labels import is_raster
from xcit_mm.rasters.options import LOADING, TILING, add_raster_options
from xcit_mm.utils.cli import cli_main, print_line
from xcit_mm.utils.errors import reason
from xcit_mm.utils.folders import check_output
from xcit_mm.weights.zoo import find_model

ERRORS = ValueError, TypeError, OSError, ModuleNotFoundError, RuntimeError


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("raster", help="a file, a URL that GDAL reads, or a folder")
    parser.add_argument(
        "config", metavar="MODEL", help="a model's name, a work folder, a checkpoint or a config"
    )
    parser.add_argument(
        "checkpoint", nargs="?", help="a path, a URL or xcit://NAME (default: the model's own)"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="the result, or the folder of the results"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the result, and start again"
    )
    parser.add_argument(
        "--labels",
        metavar="FILE",
        help="score the result against polygons of any vector file, or a map against a raster",
    )
    parser.add_argument(
        "--crs", help="coordinate system of objects, such as EPSG:4326 (default: the raster's)"
    )
    add_raster_options(parser)
    parser.add_argument(
        "--batch-size", type=int, default=1, metavar="N", help="tiles per batch (default: 1)"
    )
    parser.add_argument(
        "--dtype", choices=(*DTYPES, "auto"), default="float32", help="default: %(default)s"
    )
    parser.add_argument(
        "--min-score", type=float, help="minimum score of objects (default: the config's)"
    )
    parser.add_argument("--device", help="default: a GPU if there is one")
    return parser.parse_args()


def predict(args: argparse.Namespace) -> int:
    if args.class_column is not None and args.labels is None:
        raise ValueError(f"--class-column {args.class_column} is for --labels: give both")
    config, checkpoint = find_model(args.config, args.checkpoint)
    inputs = args.raster, args.aoi, args.labels, config, checkpoint
    check_output(args.out, filter(None, inputs))
    if args.labels is not None:
        is_raster(args.labels, args.class_column)  # raises an error before anything is predicted
    device = args.device or rank_device()
    speed = dict(device=device, batch_size=args.batch_size, dtype=args.dtype)
    predictor = Predictor.from_config(config, checkpoint, min_score=args.min_score, **speed)
    names = *LOADING, *TILING, "aoi", "crs", "overwrite"
    options = {name: getattr(args, name) for name in names}
    if not Path(args.raster).is_dir():
        predict_one(args.raster, predictor, args.out, options, args)
        return 0
    failed = 0
    for path in list_rasters(Path(args.raster)):
        out = args.out / f"{path.stem}{'.gpkg' if predictor.is_detector else '.tif'}"
        try:
            predict_one(path, predictor, out, options, args)
        except WriteError:
            raise
        except ERRORS as error:
            print_line(f"skipped {path}: {reason(error)}")
            failed += 1
    return 3 if failed else 0


def predict_one(
    raster: str | Path,
    predictor: Predictor,
    out: Path,
    options: dict[str, Any],
    args: argparse.Namespace,
) -> None:
    """Predict a raster, and print the path and the score of the result."""
    predict_raster(raster, predictor, out, **options)
    rank, _ = rank_and_size()
    if rank > 0:
        return
    print(out, flush=True)
    if args.labels is not None:
        place = dict(raster=raster, class_column=args.class_column)
        scores = score_raster(out, args.labels, args.aoi, **place)
        print(scores.to_string(float_format="%.3f", na_rep="-"), flush=True)


def main() -> int:
    args = parse_args()
    return cli_main(lambda: predict(args), "the same command resumes", *ERRORS)


if __name__ == "__main__":
    sys.exit(main())
