"""Repeat the iteration at which NonFiniteHook stopped, and print where the first NaN or infinite value comes from.

    python tools/replay.py work_dirs/NAME/NAME.py work_dirs/NAME/non_finite_iter_N.pth

Training writes the config to its work directory.
"""

import argparse
import sys

import xcit_mm  # noqa: F401  registers the backbone
from xcit_mm.training import replay
from xcit_mm.utils.cli import cli_main


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="config in the work directory of the run")
    parser.add_argument("snapshot", help="snapshot that NonFiniteHook wrote")
    args = parser.parse_args()
    return cli_main(
        lambda: print(replay(args.config, args.snapshot)), "the iteration is not repeated", ValueError, OSError
    )


if __name__ == "__main__":
    sys.exit(main())
