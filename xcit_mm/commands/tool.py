"""`xcit-mm tool`: a script of the libraries, which gets this package's classes and operators."""

import argparse
import runpy
import sys
from collections.abc import Sequence
from importlib.resources import files

from ..utils.cli import CommandParser, cli_main
from ..utils.compat import find_bases_by_package, load_files_by
from ..weights.lookup import load_checkpoint

CALLS = """
xcit-mm tool mmdet/test.py CONFIG CHECKPOINT            # a script and its arguments
xcit-mm tool mmdet/analysis_tools/get_flops.py CONFIG
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("tool", CALLS)
    parser.add_argument("path", help="mmdet, mmseg or mmpretrain, and a path in its .mim/tools")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    args = parser.parse_args(argv)

    def work() -> None:
        library, _, path = args.path.partition("/")
        sys.argv = [str(files(library) / ".mim" / "tools" / path), *args.arguments]
        with find_bases_by_package(), load_files_by(load_checkpoint):
            runpy.run_path(sys.argv[0], run_name="__main__")

    return cli_main(work, "the script is stopped")
