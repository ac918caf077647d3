"""Run the iteration again that NonFiniteHook stopped at, and say where the first NaN or infinite value is.

    python tools/replay.py work_dirs/NAME/NAME.py work_dirs/NAME/non_finite_iter_N.pth

The config is the one that training has written to its work directory.
"""

import argparse
import sys

import xcit_mm  # noqa: F401  registers the backbone
from xcit_mm.training import replay
from xcit_mm.utils.cli import cli_main


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("snapshot")
    args = parser.parse_args()
    return cli_main(lambda: print(replay(args.config, args.snapshot)), "nothing is told", ValueError, OSError)


if __name__ == "__main__":
    sys.exit(main())
