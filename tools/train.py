"""Train a config with the library it belongs to; takes every flag of that library's tools/train.py.

python tools/train.py CONFIG [FLAG ...]
"""

import sys

from xcit_mm.checks.launch import run_tool

if __name__ == "__main__":
    run_tool("train", sys.argv[1:])
