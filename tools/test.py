"""Test with the library that a config belongs to, with all flags of its tools/test.py.

python tools/test.py CONFIG CHECKPOINT [FLAG ...]
"""

import sys

from xcit_mm.launch import run_tool


def main() -> int:
    return run_tool("test", sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
