"""`xcit-mm predict`: detect or segment in images, from one to millions."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..prediction import Predictor, find_items, predict_many
from ..utils.cli import CommandParser, cli_main, score
from ..utils.errors import preview
from ..utils.memory import keep_freed_memory
from ..utils.output import say
from ..utils.ranks import rank_and_size
from .options import (
    CHECKPOINT,
    MODEL,
    WHOLE,
    add_predictor_options,
    add_tile_options,
    add_view_options,
    predictor_options,
)

CALLS = """
xcit-mm predict photos --model maskrcnn_xcit_tiny_12_p16
xcit-mm predict INPUT [INPUT ...] --model MODEL [--out DIR] [OPTION ...]    # also resumes
"""


def main(argv: Sequence[str] | None = None) -> int:
    keep_freed_memory()
    parser = CommandParser("predict", CALLS)
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="images, folders of images, or a COCO .json")
    add("--model", required=True, help=MODEL)
    add("--checkpoint", metavar="FILE", help=CHECKPOINT)
    add("--out", type=Path, default=Path("predictions"), metavar="DIR", help="folder of results")
    add("--root", metavar="DIR", help="folder of the paths in a .json (default: its own)")
    large = parser.add_argument_group("large images (default: photos are resized as in a test)")
    large.add_argument("--whole", action="store_true", help=WHOLE)
    add_tile_options(large)
    add_view_options(large)
    add_predictor_options(parser)
    add = parser.add_argument_group("drawing").add_argument
    add("--score-thr", type=score, default=0.3, metavar="S", help="least score of drawn objects")
    add("--font", metavar="FILE", help="of the names (default: DejaVu Sans)")
    add("--no-visualizations", dest="draws", action="store_false", help="draw nothing")
    add = parser.add_argument_group("long runs").add_argument
    add("--workers", type=int, metavar="N", help="processes that read (default: 2, on a CPU 0)")
    add("--ray", metavar="ADDRESS", help="of a Ray cluster, or auto, or local (default: no Ray)")
    add("--retry-failed", action="store_true", help="predict failures again")
    add("--overwrite", action="store_true", help="replace earlier results")
    args = parser.parse_args(argv)
    return cli_main(lambda: predict(args), "start the same command again to go on", args.verbose)


def predict(args: argparse.Namespace) -> int:
    """Predict, print what failed, and return the exit code, 3 after failures."""
    listing = find_items(args.inputs, args.root)
    if listing.left_out and rank_and_size()[0] == 0:
        say(f"left out {len(listing.left_out)}: {preview(listing.left_out)}")
    names = ("tile", "overlap", "whole", "scale", "window")
    options = {name: getattr(args, name) for name in names}
    options |= predictor_options(args)
    if args.ray is not None:
        options["device"] = "cpu"  # the tasks use the GPUs
    predictor = Predictor.from_pretrained(args.model, args.checkpoint, **options)
    drawing = dict(min_score=args.score_thr, font=args.font)
    run = (args.workers, args.ray, args.overwrite, args.retry_failed, args.scratch)
    report = predict_many(listing, predictor, args.out, drawing if args.draws else None, *run)
    if report is None:  # rank 0 reports
        return 0
    print(report)
    for line in report.failures[:20]:
        say(f"failed: {line}")
    return 3 if report.failures else 0
