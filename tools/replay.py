"""Run the iteration again that NonFiniteHook stopped at, and say where the first NaN or infinite value is.

python tools/replay.py work_dirs/NAME/non_finite_iter_N.pth
"""

import sys

import xcit_mm  # noqa: F401  registers the backbone
from xcit_mm.training.nonfinite import replay

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} SNAPSHOT")
    try:
        print(replay(sys.argv[1]))
    except FileNotFoundError as error:
        sys.exit(f"FileNotFoundError: {error}")
