"""Run a trained detector or segmentor on images and videos, ten or a million: pictures, and predictions in files.

    python tools/infer.py INPUT CONFIG CHECKPOINT --out DIR

INPUT is an image, a video, a URL, a folder, a quoted glob, a .txt of paths and URLs, one a line, or a COCO .json,
whose file names and ids the results then have. DIR gets

    pictures/            what was found, drawn over each image (.jpg) or video (.mp4)
    predictions.json     of a detector: a list of results, for pycocotools' COCO.loadRes
    labels/              of a segmentor: the class of every pixel (.png)
    images.json          names, sizes and ids of the images, ids and names of the classes
    parts/               what was found in each 256 inputs, of which the json files are made; with --format parquet
                         the result itself, segmentation maps included
    run.json             what was run: config, checkpoint, options, versions; inputs.jsonl beside it lists the inputs

named as the inputs are below the folder, or below the part of the glob before its first wildcard; only inputs that
differ in nothing but the suffix keep it (a.jpg.jpg and a.png.jpg). Ids count from 1 in the order of the inputs.

A run that was stopped, or killed, is gone on with by the same command: parts that are done are not done again. Another
run in the same DIR is refused. Several processes share a run:

    torchrun --nproc_per_node 4 tools/infer.py ... --launcher pytorch    # one a GPU
    python tools/infer.py ... --ray auto                                 # the cluster that this machine is in

Where the config loads rasters (LoadRasterFromFile), every input is a scene whose bands the model gets unscaled.

In a folder or glob, what is neither image nor video is left out, as is all below DIR. A file that cannot be read is
reported, the others are done, and the exit code is 1; --retry-failed does these again. Ctrl-C keeps what was done; the
exit code is 130.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from mmengine.device import get_device

from xcit_mm.batch.inputs import find_inputs, read_categories
from xcit_mm.batch.manifest import Run, describe, start_run
from xcit_mm.batch.merging import Summary, merge
from xcit_mm.batch.rasters import scene_options, with_scenes
from xcit_mm.batch.shards import FORMATS, DamagedPart, check_format
from xcit_mm.batch.workers import Job, here, in_rank, on_ray
from xcit_mm.checks.preflight import check_checkpoint, check_device
from xcit_mm.geo.scaling import PERCENTILES
from xcit_mm.prediction.drawing import COLOR_BY
from xcit_mm.prediction.predictor import DTYPES
from xcit_mm.prediction.tiles import check_tile
from xcit_mm.utils.configs import read_config, tested_metainfo
from xcit_mm.weights.published import REMOTE_PREFIXES


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="an image, a video, a URL, a folder, a quoted glob, a .txt or a COCO .json")
    parser.add_argument("config")
    parser.add_argument("checkpoint", help="a path, a URL or xcit://NAME")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--overwrite", action="store_true", help="first remove the results of a run from --out")
    parser.add_argument("--retry-failed", action="store_true", help="predict what has failed again, and nothing else")
    parser.add_argument("--root", help="folder where the paths of a list begin (default: this one, or the .json's)")
    parser.add_argument("--format", choices=FORMATS, default="coco", help="of the predictions (default: %(default)s)")
    parser.add_argument(
        "--part-size", type=int, default=256, metavar="N", help="inputs of a part (default: %(default)s)"
    )
    parser.add_argument(
        "--tile",
        type=int,
        metavar="PIXELS",
        help="predict large images in tiles of this side; for scenes the default is that of the config's images",
    )
    parser.add_argument("--overlap", type=int, metavar="PIXELS", help="least overlap of tiles (default: tile / 4)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="to compute in (default: %(default)s)")
    scenes = parser.add_argument_group("scenes: GeoTIFF, JPEG2000 and others that GDAL reads by windows")
    scenes.add_argument(
        "--bands", type=int, nargs="+", metavar="N", help="red, green, blue, or what LoadRasterFromFile has to load"
    )
    scenes.add_argument("--bounds", type=float, nargs=2, metavar=("LOW", "HIGH"), help="what becomes 0 and 255")
    least, most = PERCENTILES
    scenes.add_argument(
        "--percentiles",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help=f"or these, estimated (default: {least:g} {most:g})",
    )
    speed = parser.add_argument_group("speed, which changes no result but by rounding")
    speed.add_argument("--device", help="default: a GPU if there is one")
    speed.add_argument("--batch-size", type=int, default=1, metavar="N", help="images of one size, or tiles, at a time")
    speed.add_argument(
        "--workers", type=int, metavar="N", help="processes that read images (default: 2, or 0 where the CPU predicts)"
    )
    speed.add_argument("--launcher", choices=("none", "pytorch"), default="none", help="pytorch: one of torchrun's")
    speed.add_argument("--ray", metavar="ADDRESS", help="a Ray cluster: its address, auto, or local")
    drawing = parser.add_argument_group("pictures")
    drawing.add_argument("--no-pictures", action="store_true", help="draw none")
    drawing.add_argument("--score-thr", type=float, default=0.3, help="least score drawn (default: %(default)s)")
    drawing.add_argument("--alpha", type=float, default=0.5, help="opacity of masks, 0 to 1 (default: %(default)s)")
    drawing.add_argument("--no-labels", action="store_true", help="without names and scores, or a segmentor's legend")
    drawing.add_argument("--color-by", choices=COLOR_BY, default=COLOR_BY[0], help="a colour a class or an instance")
    return parser.parse_args()


def check(args: argparse.Namespace) -> None:
    """Raise an error for what can be told from the command line alone."""
    if not 0 <= args.alpha <= 1:
        raise ValueError(f"--alpha {args.alpha}: must be from 0 to 1")
    for name, least in (("part_size", 1), ("batch_size", 1), ("workers", 0)):
        if (getattr(args, name) or 0) < least:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: must be at least {least}")
    if args.overwrite and args.retry_failed:
        raise ValueError("--overwrite and --retry-failed: one starts anew, the other goes on; give one of them")
    if args.ray and args.launcher != "none":
        raise ValueError("--ray and --launcher: give one of them")
    if args.tile is not None:
        check_tile(args.tile, args.tile // 4 if args.overlap is None else args.overlap)
    elif args.overlap is not None:
        raise ValueError(f"--overlap {args.overlap} without --tile: give the tile's side too")
    check_format(args.format)
    check_device(args.device)
    check_checkpoint(args.checkpoint)


def start(args: argparse.Namespace) -> Run:
    """The run of a command line, new or gone on with."""
    cfg = read_config(args.config, [])
    inputs, notes = find_inputs(args.input, args.out, args.root)
    for line in notes:
        print(line, file=sys.stderr)
    if args.format == "parquet" and any(not isinstance(one.image_id, int | None) for one in inputs):
        raise ValueError(f"{args.input} has ids that are no whole numbers, which --format parquet cannot hold")
    category_ids = None
    if cfg.get("default_scope") == "mmdet" and args.input.lower().endswith(".json"):
        category_ids = read_categories(Path(args.input), tested_metainfo(cfg)["classes"])
    options = dict(
        format=args.format,
        part_size=args.part_size,
        tile=args.tile,
        overlap=args.overlap,
        dtype=args.dtype,
        **scene_options(cfg, args.bands, args.bounds, args.percentiles),
        pictures=not args.no_pictures,
        score_thr=args.score_thr,
        alpha=args.alpha,
        labels=not args.no_labels,
        color_by=args.color_by,
    )
    inputs = with_scenes(inputs, options)
    identity = describe(cfg, args.checkpoint, args.input, inputs, options, category_ids)
    run = start_run(args.out, identity, inputs, args.overwrite)
    done = len(run.parts) - len(run.missing())
    if done and not args.retry_failed:
        print(f"going on: {done} of {len(run.parts)} parts are done", file=sys.stderr)
    return run


def finish(run: Run, again: Callable[[], None]) -> Summary:
    """Merge the parts, of which those that turn out to be damaged are predicted again."""
    while True:
        try:
            return merge(run)
        except DamagedPart as error:
            print(f"{error}: predicting it again", file=sys.stderr)
            error.path.unlink()
            again()


def main() -> int:
    args = parse_args()
    run: Run | None = None
    interrupted = False

    def begin() -> Run:
        nonlocal run
        run = start(args)
        return run

    try:
        check(args)
        paths = [
            one if one.startswith(REMOTE_PREFIXES) else os.path.abspath(one) for one in (args.config, args.checkpoint)
        ]
        if args.workers is None:  # beside a model that has all cores they would only take some of them
            args.workers = 0 if not args.ray and (args.device or get_device()) == "cpu" else 2
        job = Job(os.path.abspath(args.out), *paths, args.device, args.batch_size, args.workers, args.retry_failed)
        if args.launcher == "pytorch":
            if not in_rank(job, begin):  # what remains is rank 0's
                return 0
        else:
            begin()
            on_ray(job, run, args.ray) if args.ray else here(job, run)
        summary = finish(run, lambda: here(job._replace(retry=False), run))
    except KeyboardInterrupt:
        if run is None:
            another = args.launcher == "pytorch"  # rank 0 tells what is done
            print(f"interrupted{': nothing was predicted' * (not another)}", file=sys.stderr)
            return 130
        interrupted = True
        try:
            summary = merge(run)
        except (DamagedPart, OSError, KeyboardInterrupt) as error:
            why = str(error) or "a second time"
            print(f"interrupted: {why}: the results are not merged; start again to go on: {args.out}", file=sys.stderr)
            return 130
    except (ValueError, TypeError, OSError, ModuleNotFoundError, RuntimeError) as error:
        line = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if run is not None:
            line += f" ({len(run.parts) - len(run.missing())} of {len(run.parts)} parts are done: start again to go on)"
        sys.exit(line)
    print(f"{'interrupted: ' * interrupted}{summary.done} of {len(run.inputs)} files done: {args.out}")
    for line in summary.reasons:
        print(f"skipped {line}", file=sys.stderr)
    if summary.failed > len(summary.reasons):
        print(
            f"skipped {summary.failed - len(summary.reasons)} more: see the errors in {run.out}/parts", file=sys.stderr
        )
    missing = 0 if interrupted else len(run.missing())
    if missing:
        print(f"{missing} parts are not done: start again without --retry-failed to go on", file=sys.stderr)
    return 130 if interrupted else 1 if summary.failed or missing else 0


if __name__ == "__main__":
    sys.exit(main())
