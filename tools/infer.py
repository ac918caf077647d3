"""Run a trained detector or segmentor on images and videos, from one to millions.

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

Files that are neither image nor video, and files below DIR, are left out of a folder or glob. If a file cannot be read,
it is reported, the other files are predicted, and the exit code is 3. --retry-failed predicts such files again. Ctrl-C
keeps completed results; the exit code is 130. If the run itself fails, the exit code is 1.
"""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from xcit_mm.batch import Execution, RunOptions, predict_many
from xcit_mm.batch.shards import FORMATS
from xcit_mm.geo.scaling import PERCENTILES
from xcit_mm.prediction.drawing import COLOR_BY
from xcit_mm.prediction.predictor import DTYPES
from xcit_mm.utils.cli import cli_main


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="an image, a video, a URL, a folder, a quoted glob, a .txt or a COCO .json")
    parser.add_argument("config")
    parser.add_argument("checkpoint", help="a path, a URL or xcit://NAME")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--overwrite", action="store_true", help="first remove the results of an earlier run")
    parser.add_argument("--update", action="store_true", help="take new inputs, and drop those that vanished")
    parser.add_argument("--retry-failed", action="store_true", help="predict only inputs that failed before")
    parser.add_argument("--max-failures", type=int, metavar="N", help="end the run after N failures (default: never)")
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
    parser.add_argument("--dtype", choices=DTYPES, help="of the computation (default: %(default)s)")
    rasters = parser.add_argument_group("rasters: GeoTIFF, JPEG2000 and other formats that GDAL reads by windows")
    rasters.add_argument(
        "--bands", type=int, nargs="+", metavar="N", help="red, green, blue, or the bands for LoadRasterFromFile"
    )
    bounds = dict(type=float, nargs=2, metavar=("LOW", "HIGH"))
    rasters.add_argument("--bounds", **bounds, help="values that become 0 and 255")
    default = " ".join(f"{value:g}" for value in PERCENTILES)
    rasters.add_argument("--percentiles", **bounds, help=f"percentiles that become 0 and 255 (default: {default})")
    speed = parser.add_argument_group("speed: changes results only by rounding")
    speed.add_argument("--device", help="default: a GPU if there is one")
    speed.add_argument("--batch-size", type=int, metavar="N", help="images of one size, or tiles, per batch")
    speed.add_argument("--workers", type=int, metavar="N", help="processes that read images (default: 2, on a CPU 0)")
    speed.add_argument("--launcher", choices=("none", "pytorch"), help="pytorch if launched by torchrun")
    speed.add_argument("--ray", metavar="ADDRESS", help="address of a Ray cluster, auto, or local")
    drawing = parser.add_argument_group("visualizations")
    drawing.add_argument("--no-visualizations", dest="visualize", action="store_false", help="draw nothing")
    drawing.add_argument("--score-thr", type=float, help="minimum score to draw (default: %(default)s)")
    drawing.add_argument("--alpha", type=float, help="opacity of masks, 0 to 1 (default: %(default)s)")
    drawing.add_argument("--no-labels", dest="labels", action="store_false", help="draw no names, scores or legends")
    drawing.add_argument("--color-by", choices=COLOR_BY, help="a color per class or per instance")
    parser.set_defaults(**vars(RunOptions()), **vars(Execution()))
    return parser.parse_args()


def infer(args: argparse.Namespace) -> int:
    options, execution = (
        kind(**{field.name: getattr(args, field.name) for field in fields(kind)}) for kind in (RunOptions, Execution)
    )
    report = predict_many(args.input, args.config, args.checkpoint, args.out, options, execution, args.root)
    if report is None:  # rank 0 reports
        return 0
    print(report)
    for line in report.failures:
        print(f"skipped {line}", file=sys.stderr)
    if report.failed > len(report.failures):
        print(f"skipped {report.failed - len(report.failures)} more: see {args.out}/shards", file=sys.stderr)
    if report.pending and not report.interrupted:
        print(f"{report.pending} shards are pending: start again without --retry-failed to resume", file=sys.stderr)
    return 130 if report.interrupted else 3 * (report.failed > 0 or report.pending > 0)


def main() -> int:
    args = parse_args()
    errors = (ValueError, TypeError, OSError, ModuleNotFoundError, RuntimeError)
    return cli_main(lambda: infer(args), "nothing was predicted", *errors)


if __name__ == "__main__":
    sys.exit(main())
