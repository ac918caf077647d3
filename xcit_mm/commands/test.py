"""`xcit-mm test`: score a model on the data set of its config."""

from collections.abc import Sequence

from .. import launch
from ..utils.cli import CommandParser
from ..utils.memory import keep_freed_memory
from .options import CHECKPOINT, CONFIG, add_run_options

CALLS = """
xcit-mm test work_dirs/nuts                  # its best or last checkpoint
xcit-mm test CONFIG CHECKPOINT [OPTION ...]
"""


def main(argv: Sequence[str] | None = None) -> int:
    keep_freed_memory()
    parser = CommandParser("test", CALLS)
    add = parser.add_argument
    add("config", help=CONFIG)
    add("checkpoint", nargs="?", help=CHECKPOINT)
    add_run_options(parser)
    return launch.test(parser.parse_intermixed_args(argv))
