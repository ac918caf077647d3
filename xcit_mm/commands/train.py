"""`xcit-mm train`: train a config."""

from collections.abc import Sequence

from .. import train
from ..utils.cli import CommandParser
from .options import CONFIG, TRAINING, add_options

CALLS = """
xcit-mm train CONFIG [OPTION ...]
xcit-mm train CONFIG --resume           # continues from the last checkpoint
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("train", CALLS)
    parser.add_argument("config", metavar="CONFIG", help=CONFIG)
    resume = "continue from a checkpoint (default: the last one)"
    parser.add_argument(
        "--resume", nargs="?", const=True, default=False, metavar="FILE", help=resume
    )
    add_options(parser, (*TRAINING, "--launcher"))
    return parser.run(argv, train, "--resume continues from the last checkpoint")
