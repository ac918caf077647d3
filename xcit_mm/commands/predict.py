"""`xcit-mm predict`: detect or segment in images, from one to millions."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..prediction import Predictor, find_items, predict_many
from ..utils.cli import CommandParser, cli_main, score
from ..utils.memory import keep_freed_memory
from ..utils.output import say
from .options import (
    WHOLE,
    add_model,
    add_predictor_options,
    add_tile_options,
    add_view_options,
    check_order,
    predictor_options,
)

CALLS = """
xcit-mm predict maskrcnn_xcit_tiny_12_p16 photos
xcit-mm predict MODEL INPUT [INPUT ...] [--out DIR] [OPTION ...]    # also resumes
"""

# Arguments of a Predictor for large images, and of predict_many.
LARGE = ("tile", "overlap", "whole", "scale", "window")
RUN = ("draws", "draw_score", "font", "workers", "ray", "retry_failed", "overwrite", "scratch")


def main(argv: Sequence[str] | None = None) -> int:
    keep_freed_memory()
    parser = CommandParser("predict", CALLS)
    add_model(parser)
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="images, folders of images, or a COCO .json")
    add("--out", type=Path, default=Path("predictions"), metavar="DIR", help="folder of results")
    add("--root", metavar="DIR", help="folder of the paths in a .json (default: its own)")
    large = parser.add_argument_group("large images (default: photos are resized as in a test)")
    large.add_argument("--whole", action="store_true", help=WHOLE)
    add_tile_options(large)
    add_view_options(large)
    add_predictor_options(parser)
    add = parser.add_argument_group("drawing").add_argument
    add("--draw-score", type=score, default=0.3, metavar="S", help="least score of drawn objects")
    add("--font", metavar="FILE", help="font of the class names (default: DejaVu Sans)")
    add("--no-visualizations", dest="draws", action="store_false", help="draw nothing")
    add = parser.add_argument_group("long runs").add_argument
    add(
        "--workers",
        type=int,
        metavar="N",
        help="processes that read images (default: 2, on a CPU 0)",
    )
    add(
        "--ray", metavar="ADDRESS", help="address of a Ray cluster, auto or local (default: no Ray)"
    )
    add("--retry-failed", action="store_true", help="predict images again that failed")
    add("--overwrite", action="store_true", help="replace earlier results")
    args = parser.parse_args(argv)
    interrupted = "run the same command again to continue"
    return cli_main(lambda: predict(args), interrupted, args.verbose, parser)


def predict(args: argparse.Namespace) -> int:
    """Predict, print what failed, and return the exit code, 3 after failures."""
    check_order("predict", args.model, args.inputs)
    listing = find_items(args.inputs, args.root)  # an error comes before the model is loaded
    options = predictor_options(args) | {name: getattr(args, name) for name in LARGE}
    if args.ray is not None:
        options["device"] = "cpu"  # the tasks use the GPUs
    predictor = Predictor.from_pretrained(args.model, args.checkpoint, **options)
    options = {name: getattr(args, name) for name in RUN}
    report = predict_many(predictor, listing, args.out, **options)
    if report is None:  # the first process reports
        return 0
    print(report)
    for line in report.failures[:20]:
        say(f"failed: {line}")
    return 3 if report.failures else 0
