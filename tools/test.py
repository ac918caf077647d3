"""Test a config with the library it belongs to; takes every flag of that library's tools/test.py.

python tools/test.py CONFIG CHECKPOINT [FLAG ...]
"""

import sys

from xcit_mm.checks.launch import run_tool

if __name__ == "__main__":
    run_tool("test", sys.argv[1:])
