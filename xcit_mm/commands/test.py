"""`xcit-mm test`: score a model on the data set of its config."""

from collections.abc import Sequence
from typing import Any

from .. import evaluate
from ..utils.cli import CommandParser
from ..utils.output import without_shared_prefix
from ..utils.ranks import is_first
from .options import RUN, add_options, choose_checkpoint

CALLS = """
xcit-mm test work_dirs/nuts                  # its best or last checkpoint
xcit-mm test CONFIG CHECKPOINT [OPTION ...]
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("test", CALLS)
    add_options(parser, ("model", "following", "--checkpoint", *RUN, "--launcher"))
    return parser.run(argv, print_scores, "the test has no scores yet")


def print_scores(checkpoint: str | None, following: str | None, **options: Any) -> None:
    """Score a model, and print its scores."""
    scores = evaluate(checkpoint=choose_checkpoint(checkpoint, following), **options)
    if is_first():
        for name, score in zip(without_shared_prefix(scores), scores.values(), strict=True):
            print(f"{name}  {score:.4g}")
