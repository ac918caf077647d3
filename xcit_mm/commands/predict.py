"""`xcit-mm predict`: detect or segment in images, from one to millions."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import cv2

from ..prediction import Predictor, find_items, predict_many
from ..prediction.cluster import rank_and_size
from ..utils.arguments import CommandParser, score
from ..utils.cli import cli_main, print_line
from ..utils.memory import keep_freed_memory
from .options import CHECKPOINT, WHOLE, add_predictor_options, predictor_options

CALLS = """
xcit-mm predict photos --model maskrcnn_xcit_tiny_12_p16
xcit-mm predict INPUT [INPUT ...] --model MODEL [--out DIR] [OPTION ...]
"""
DESCRIPTION = """
INPUT is an image, a folder of images, or a COCO .json. MODEL is the name of a published model, the
work folder of a training, or a config. The same command resumes: it predicts what has no result
yet.
"""
MAX_REPORTED = 20  # failures whose lines are printed


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser("predict", CALLS, description=DESCRIPTION)
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help=argparse.SUPPRESS)
    add("--model", required=True, help=argparse.SUPPRESS)
    add("--checkpoint", metavar="FILE", help=CHECKPOINT)
    out_help = "folder of results (default: %(default)s)"
    add("--out", type=Path, default=Path("predictions"), metavar="DIR", help=out_help)
    add("--root", metavar="DIR", help="folder of the paths in a .json (default: its own)")
    add("--tile", type=int, metavar="PIXELS", help="side of tiles (default: whole photos)")
    add("--overlap", type=int, metavar="PIXELS", help="of tiles (default: a quarter of the tile)")
    add("--whole", action="store_true", help=WHOLE)
    add_predictor_options(parser)
    add = parser.add_argument_group("drawing").add_argument
    score_help = "least score of drawn objects, 0 to 1 (default: %(default)s)"
    add("--score-thr", type=score, default=0.3, metavar="S", help=score_help)
    add("--no-labels", dest="labels", action="store_false", help="draw no names and scores")
    add("--font", metavar="FILE", help="of the names (default: DejaVu Sans)")
    add("--no-visualizations", dest="draws", action="store_false", help="draw nothing")
    add = parser.add_argument_group("long runs").add_argument
    add("--workers", type=int, metavar="N", help="processes that read (default: 2, on a CPU 0)")
    add("--ray", metavar="ADDRESS", help="of a Ray cluster, or auto, or local (default: no Ray)")
    add("--retry-failed", action="store_true", help="predict failures again")
    add("--overwrite", action="store_true", help="remove earlier results first")
    return parser.parse_args(argv)


def predict(args: argparse.Namespace) -> int:
    listing = find_items(args.inputs, args.root)
    if listing.left_out and rank_and_size()[0] == 0:
        counts = [f"{count} {reason}" for reason, count in listing.left_out.items()]
        print_line(f"left out: {', '.join(counts)}")
    options = predictor_options(args)
    if args.ray is not None:
        options["device"] = "cpu"  # the tasks use the GPUs
    options |= dict(tile=args.tile, overlap=args.overlap, whole=args.whole)
    predictor = Predictor.from_pretrained(args.model, args.checkpoint, **options)
    drawing = dict(min_score=args.score_thr, labels=args.labels, font=args.font)
    run = (args.workers, args.ray, args.overwrite, args.retry_failed)
    report = predict_many(listing, predictor, args.out, drawing if args.draws else None, *run)
    if report is None:  # rank 0 reports
        return 0
    print(report)
    for line in report.failures[:MAX_REPORTED]:
        print_line(f"failed: {line}")
    if len(report.failures) > MAX_REPORTED:
        print_line(f"and more, in the records of {args.out}/journal")
    return 3 if report.failures else 0


def main(argv: Sequence[str] | None = None) -> int:
    keep_freed_memory()
    args = parse_args(argv)
    # OpenCV prints lines of its own about broken files. Until 4.12, its level is set in cv2 itself.
    set_log_level = getattr(cv2, "setLogLevel", None) or cv2.utils.logging.setLogLevel
    set_log_level(0)
    return cli_main(lambda: predict(args), "start the same command again to go on", args.verbose)
