"""`xcit-mm predict`: detect or segment in images, from one to millions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..prediction import Predictor, find_items, predict_many
from ..utils.cli import CommandParser
from ..utils.output import say
from .options import PREDICTOR, TILES, VIEW, WHOLE, add_options, score, take

CALLS = """
xcit-mm predict maskrcnn_xcit_tiny_12_p16 photos
xcit-mm predict MODEL INPUT [INPUT ...] [--out DIR] [OPTION ...]    # also resumes
"""

# Options of a `Predictor` for large images.
LARGE = (*TILES, "--whole", "--scale", "--window")


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("predict", CALLS)
    add_options(parser, ("model", "--checkpoint"))
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="images, folders of images, or a COCO .json")
    results = "folder of results (default: predictions)"
    add("--out", type=Path, default=Path("predictions"), metavar="DIR", help=results)
    add("--root", metavar="DIR", help="folder of the paths in a .json (default: its own)")
    large = parser.add_argument_group("large images (default: photos are resized as in a test)")
    large.add_argument("--whole", action="store_true", help=WHOLE)
    add_options(large, (*TILES, *VIEW))
    add_options(parser.add_argument_group("model"), (*PREDICTOR, "--verbose"))
    add = parser.add_argument_group("drawing").add_argument
    drawn = "minimum score of drawn objects (default: 0.3)"
    add("--draw-score", type=score, default=0.3, metavar="S", help=drawn)
    add("--font", metavar="FILE", help="font of the class names (default: DejaVu Sans)")
    add("--no-visualizations", dest="draws", action="store_false", help="draw nothing")
    add = parser.add_argument_group("long runs").add_argument
    workers = "processes that read images (default: 2 with a GPU, else 0)"
    add("--workers", type=int, metavar="N", help=workers)
    ray = "address of a Ray cluster, auto or local (default: no Ray)"
    add("--ray", metavar="ADDRESS", help=ray)
    add("--retry-failed", action="store_true", help="predict failed images again")
    add("--overwrite", action="store_true", help="replace earlier results")
    return parser.run(argv, predict, "run the same command again to continue")


def predict(
    model: str, checkpoint: str | None, inputs: list[str], root: str | None, **options: Any
) -> int:
    """Predict, print what failed, and return the exit code, 3 after failures."""
    listing = find_items(inputs, root)  # an error comes before the model is loaded
    own = take(options, (*PREDICTOR, *LARGE))
    report = predict_many(Predictor.from_pretrained(model, checkpoint, **own), listing, **options)
    if report is None:  # the first process reports
        return 0
    print(report)
    for line in report.failures[:20]:
        say(f"failed: {line}")
    return 3 if report.failures else 0
