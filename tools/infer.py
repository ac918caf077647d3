"""Run a trained detector or segmentor on images and videos, from one to millions.

    python tools/infer.py INPUT MODEL --out DIR                # a published model or the folder of a training run
    python tools/infer.py INPUT CONFIG CHECKPOINT --out DIR

INPUT is an image, a video, a URL, a folder, a quoted glob, a .txt with a path or URL per line, or a COCO .json, whose
file names and ids the results then have. Results are named as the inputs, relative to their folder or to the part of
the glob before its first wildcard. The command writes

    DIR/visualizations/     results drawn over each image (.jpg) and video (.mp4)
    DIR/predictions.json    of a detector: the results, for pycocotools' COCO.loadRes
    DIR/labels/             of a segmentor: the class of every pixel (.png)
    DIR/images.json         names, sizes and ids of the images, ids and names of the classes
    DIR/shards/             records of up to 256 inputs per file, which the json files are made of; with --format
                            parquet the result itself, segmentation maps included
    DIR/run.json            the manifest: config, checkpoint, options, versions; DIR/inputs.jsonl lists the inputs

The same command resumes a run that was stopped or killed. Another run in the same DIR is rejected. Several processes
can share a run:

    torchrun --nproc_per_node 4 tools/infer.py ... --launcher pytorch    # one process per GPU
    python tools/infer.py ... --ray auto                                 # the Ray cluster of this machine

If the config loads rasters (LoadRasterFromFile), every input is a raster, and the model gets its bands unscaled.

Hidden files, files that are neither image nor video, and files below DIR are left out of a folder or glob. If a file
cannot be read, it is reported, the other files are predicted, and the exit code is 3. --retry-failed predicts such
files again. If the run itself fails, the exit code is 1. Ctrl-C keeps completed results; the exit code is 130.
"""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from xcit_mm.batch import Drawing, Execution, RunOptions, predict_many
from xcit_mm.batch.shards import FORMATS
from xcit_mm.geo.scaling import PERCENTILES
from xcit_mm.models.precision import DTYPES
from xcit_mm.prediction.drawing import COLOR_BY
from xcit_mm.utils.cli import cli_main
from xcit_mm.weights.models import add_model_arguments, find_model

KINDS = RunOptions, Execution, Drawing


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="an image, a video, a URL, a folder, a quoted glob, a .txt or a COCO .json")
    add_model_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--overwrite", action="store_true", help="first remove the results of an earlier run")
    parser.add_argument("--update", action="store_true", help="take new inputs, and drop those that vanished")
    parser.add_argument("--retry-failed", action="store_true", help="predict only inputs that failed before")
    parser.add_argument("--max-failures", type=int, metavar="N", help="end the run after N failures (default: never)")
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="limit for an image, a frame or a tile (default: none)"
    )
    parser.add_argument("--root", help="base folder of the paths in a list (default: this folder, or the .json's)")
    parser.add_argument("--format", choices=FORMATS, help="format of results (default: %(default)s)")
    parser.add_argument("--shard-size", type=int, metavar="N", help="maximum images per shard (default: %(default)s)")
    parser.add_argument(
        "--tile",
        type=int,
        metavar="PIXELS",
        help="split images into tiles of this side (default: no tiles; for rasters the side of the config's images)",
    )
    parser.add_argument("--overlap", type=int, metavar="PIXELS", help="minimum overlap of tiles (default: tile / 4)")
    parser.add_argument(
        "--dtype", choices=(*DTYPES, "auto"), help="of the computation; auto: the fastest (default: %(default)s)"
    )
    parser.add_argument(
        "--tta", action="store_true", help="merge several views of each image, by the config's tta_model"
    )
    parser.add_argument("--min-score", type=float, help="minimum score of stored objects (default: the config's)")
    rasters = parser.add_argument_group("rasters: GeoTIFF, JPEG2000 and other formats that GDAL reads by windows")
    rasters.add_argument(
        "--bands", type=int, nargs="+", metavar="N", help="red, green, blue, or the bands for LoadRasterFromFile"
    )
    rasters.add_argument(
        "--bounds",
        type=float,
        nargs="+",
        metavar="VALUE",
        help="LOW HIGH of all bands, or of each, that become 0 and 255",
    )
    default = " ".join(f"{value:g}" for value in PERCENTILES)
    rasters.add_argument(
        "--percentiles",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help=f"percentiles that become 0 and 255 (default: {default})",
    )
    rasters.add_argument(
        "--gsd", type=float, metavar="METRES", help="read at this size of pixels (default: the config's)"
    )
    rasters.add_argument("--aoi", metavar="GEOJSON", help="predict only within these polygons")
    rasters.add_argument("--crs", help="coordinate system of polygons, such as EPSG:4326 (default: the raster's)")
    speed = parser.add_argument_group("speed: changes results only by rounding")
    speed.add_argument("--device", help="default: a GPU if there is one")
    speed.add_argument("--batch-size", type=int, metavar="N", help="images of one size, or tiles, per batch")
    speed.add_argument("--workers", type=int, metavar="N", help="processes that read images (default: 2, on a CPU 0)")
    speed.add_argument("--launcher", choices=("none", "pytorch"), help="pytorch if launched by torchrun")
    speed.add_argument("--ray", metavar="ADDRESS", help="address of a Ray cluster, auto, or local")
    drawing = parser.add_argument_group("visualizations")
    drawing.add_argument("--no-visualizations", dest="visualize", action="store_false", help="draw nothing")
    drawing.add_argument("--redraw", action="store_true", help="draw what is stored, without predicting")
    drawing.add_argument("--score-thr", type=float, help="minimum score to draw (default: %(default)s)")
    drawing.add_argument("--alpha", type=float, help="opacity of masks, 0 to 1 (default: %(default)s)")
    drawing.add_argument("--no-labels", dest="labels", action="store_false", help="draw no names, scores or legends")
    drawing.add_argument("--color-by", choices=COLOR_BY, help="a color per class or per instance")
    parser.set_defaults(**{name: value for kind in KINDS for name, value in vars(kind()).items()})
    return parser.parse_args()


def infer(args: argparse.Namespace) -> int:
    options, execution, drawing = (
        kind(**{field.name: getattr(args, field.name) for field in fields(kind)}) for kind in KINDS
    )
    model = find_model(args.config, args.checkpoint)
    report = predict_many(args.input, model.config, model.checkpoint, args.out, options, execution, args.root, drawing)
    if report is None:  # rank 0 reports
        return 0
    print(report)
    for line in report.failures:
        print(f"skipped {line}", file=sys.stderr)
    if report.failed > len(report.failures):
        print(f"skipped {report.failed - len(report.failures)} more: see {args.out}/shards", file=sys.stderr)
    if report.pending and not report.interrupted:
        print(
            f"{report.pending} shards are pending: start again without --retry-failed and --redraw to resume",
            file=sys.stderr,
        )
    return 130 if report.interrupted else 3 * (report.failed > 0 or report.pending > 0)


def main() -> int:
    args = parse_args()
    errors = (ValueError, TypeError, OSError, ModuleNotFoundError, RuntimeError)
    return cli_main(lambda: infer(args), "nothing was predicted", *errors)


if __name__ == "__main__":
    sys.exit(main())
