"""`xcit-mm tool`: a script of the libraries, which gets this package's classes and operators."""

import argparse
import runpy
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ..utils.arguments import CommandParser
from ..utils.cli import cli_main, exit_on_broken_pipe
from ..utils.compat import find_bases_by_package, load_files_by
from ..utils.scripts import LIBRARIES
from ..weights.zoo import load_checkpoint

CALLS = """
xcit-mm tool                                            # lists the scripts
xcit-mm tool mmdet/analysis_tools/get_flops.py CONFIG   # a script and its arguments
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("tool", CALLS)
    parser.add_argument("path", nargs="?", help="a script of mmdet, mmseg or mmpretrain")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="those of the script")
    args = parser.parse_args(argv)
    scripts: dict[str, Path] = {}  # of the installed libraries by names such as mmdet/test.py
    for library in LIBRARIES:
        package = find_spec(library)
        if package is not None and package.origin is not None:
            folder = Path(package.origin).parent / ".mim" / "tools"
            scripts |= {
                f"{library}/{path.relative_to(folder)}": path for path in folder.rglob("*.py")
            }
    if args.path is None:
        with exit_on_broken_pipe():
            print("\n".join(sorted(scripts)))
        return 0
    if args.path not in scripts:
        parser.error(f"no script {args.path} is installed: xcit-mm tool lists them")

    def work() -> None:
        sys.argv = [str(scripts[args.path]), *args.arguments]
        with find_bases_by_package(), load_files_by(load_checkpoint):
            runpy.run_path(sys.argv[0], run_name="__main__")

    return cli_main(work, "the script is stopped")
