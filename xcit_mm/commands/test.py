"""`xcit-mm test`: score a model on the data set of its config."""

import argparse
from collections.abc import Sequence

from ..launch import run_tool
from ..utils.arguments import CommandParser
from .runs import add_run_options

CALLS = """
xcit-mm test work_dirs/nuts                  # its best or last checkpoint
xcit-mm test CONFIG CHECKPOINT [--show-dir DIR] [OPTION ...]
"""
DESCRIPTION = """
Other options are those of tools/test.py of the config's library: mmdet, mmseg or mmpretrain.
"""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser("test", CALLS, description=DESCRIPTION)
    add = parser.add_argument
    add("config", help="a config of mmdet, mmseg or mmpretrain, a model's name or a work folder")
    checkpoint_help = "path, URL or xcit://NAME (default: the model's own)"
    add("checkpoint", nargs="?", help=checkpoint_help)
    show_help = "draw predictions beside ground truth (default: draw nothing)"
    add("--show-dir", metavar="DIR", help=show_help)
    tta_help = "predict several views of each image (default: one)"
    add("--tta", action="store_true", help=tta_help)
    add_run_options(parser)
    options, flags = parser.parse_known_intermixed_args(argv)
    options.flags = flags
    options.help = parser.format_help()
    return options


def main(argv: Sequence[str] | None = None) -> int:
    return run_tool("test", parse_args(argv))
