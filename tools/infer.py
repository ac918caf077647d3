"""Run a trained detector or segmentor on images and videos, from one to millions: the command
`xcit-mm predict`.
"""

import argparse
import sys
from pathlib import Path

from xcit_mm.models.precision import DTYPES
from xcit_mm.prediction import Predictor, find_items, predict_many
from xcit_mm.prediction.cluster import rank_and_size, rank_device
from xcit_mm.prediction.fonts import class_labels
from xcit_mm.utils.cli import cli_main, print_line

DESCRIPTION = """Detect or segment in images and videos. INPUT is a file, a folder, a glob, a URL, a
.txt of paths, or a COCO .json. MODEL is the name of a published model, the work folder of a
training run, or a config."""
REPORTED = 20  # failures


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=DESCRIPTION,
        usage="%(prog)s INPUT [INPUT ...] --model MODEL [--checkpoint FILE] [--out DIR] ...",
    )
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help=argparse.SUPPRESS)
    add("--model", required=True, metavar="MODEL", help=argparse.SUPPRESS)
    add("--checkpoint", metavar="FILE", help="path, URL or xcit://NAME, instead of the model's own")
    add(
        "--out",
        type=Path,
        default=Path("predictions"),
        metavar="DIR",
        help="folder of results (%(default)s)",
    )
    add("--root", metavar="DIR", help="folder of the paths in a .txt or .json")
    result = parser.add_argument_group("result")
    result.add_argument(
        "--tile", type=int, metavar="PIXELS", help="predict large photos in tiles of this side"
    )
    result.add_argument(
        "--overlap", type=int, metavar="PIXELS", help="of tiles (a quarter of the tile)"
    )
    result.add_argument(
        "--min-score", type=float, metavar="S", help="of stored objects (the config's)"
    )
    result.add_argument(
        "--dtype",
        choices=(*DTYPES, "auto"),
        default="float32",
        metavar="TYPE",
        help="or bfloat16, auto",
    )
    drawing = parser.add_argument_group("drawing")
    drawing.add_argument(
        "--score-thr", type=float, default=0.3, metavar="S", help="of drawn objects (%(default)s)"
    )
    drawing.add_argument(
        "--no-labels", dest="labels", action="store_false", help="draw no names, scores or legends"
    )
    drawing.add_argument("--font", metavar="FILE", help="of the names (one with their letters)")
    drawing.add_argument(
        "--no-visualizations", dest="draws", action="store_false", help="draw nothing"
    )
    long = parser.add_argument_group("long runs: the same command resumes with what has no result")
    long.add_argument("--device", help="cpu, cuda:1 ... (a GPU if there is one)")
    long.add_argument(
        "--batch-size",
        type=int,
        default=1,
        metavar="N",
        help="images of one size, or tiles, together",
    )
    long.add_argument(
        "--workers", type=int, metavar="N", help="processes that read images (2, on a CPU 0)"
    )
    long.add_argument("--ray", metavar="ADDRESS", help="of a Ray cluster, or auto, or local")
    long.add_argument("--retry-failed", action="store_true", help="predict failures again")
    long.add_argument("--overwrite", action="store_true", help="remove earlier results first")
    return parser.parse_args()


def infer(args: argparse.Namespace) -> int:
    listing = find_items(args.inputs, args.root, args.out)
    rank, _ = rank_and_size()
    if rank == 0:
        for note in listing.notes:
            print_line(note)
    names = ("tile", "overlap", "batch_size", "dtype", "min_score")
    options = {name: getattr(args, name) for name in names}
    if args.ray is None:
        options["device"] = args.device or rank_device()
    else:
        options["device"] = "cpu"  # the actors use the GPUs
    predictor = Predictor.from_pretrained(args.model, args.checkpoint, **options)
    drawing = None
    if args.draws:
        drawing = dict(min_score=args.score_thr, labels=args.labels, font=args.font)
        class_labels(tuple(predictor.names), args.font)  # a wrong font raises before the work
    report = predict_many(
        listing,
        predictor,
        args.out,
        drawing,
        args.workers,
        args.ray,
        args.overwrite,
        args.retry_failed,
    )
    if report is None:  # rank 0 reports
        return 0
    print(report)
    for line in report.failures[:REPORTED]:
        print_line(f"failed: {line}")
    if len(report.failures) > REPORTED:
        print_line(
            f"and {len(report.failures) - REPORTED} more, in the records of {args.out}/journal"
        )
    return 3 if report.failures else 0


def main() -> int:
    args = parse_args()
    errors = (ValueError, TypeError, OSError, ModuleNotFoundError, RuntimeError)
    return cli_main(lambda: infer(args), "start the same command again to go on", *errors)


if __name__ == "__main__":
    sys.exit(main())
