"""`xcit-mm doctor`: check the installation, or a training run before it starts."""

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout

from ..checks.doctor import diagnose
from ..utils.arguments import CommandParser
from ..utils.cli import ignore_broken_pipe
from .stack import check_stack

CALLS = """
xcit-mm doctor                                          # the installation
xcit-mm doctor CONFIG [--cfg-options KEY=VALUE ...]     # and a training, before it starts
WORLD_SIZE=8 xcit-mm doctor CONFIG                      # in eight processes (default: 1)
"""
DESCRIPTION = """
A line for each part of the stack; with a config also for data, model, weights and batch size.
Lines begin with ok, note or FAIL, which alone stops a run. docs/doctor.md explains their codes.
After a failure the exit code is 1.
"""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser("doctor", CALLS, description=DESCRIPTION)
    config_help = "a config, a model's name or a work folder (default: the installation alone)"
    parser.add_argument("config", nargs="?", help=config_help)
    options_help = "changes of the config"
    parser.add_argument("--cfg-options", nargs="+", metavar="KEY=VALUE", help=options_help)
    return parser.parse_args(argv)


def find_lines(args: argparse.Namespace) -> Iterator[str]:
    """Yield lines about the stack, then lines about the config."""
    yield from check_stack()
    if args.config:
        options = ["--cfg-options", *args.cfg_options] if args.cfg_options else []
        yield from map(str, diagnose(args.config, options))


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    warnings.simplefilter("ignore")  # the findings include what matters
    lines = sys.stdout
    has_failed = False
    # The output of libraries while they are imported must not mix with the findings.
    with ignore_broken_pipe(), redirect_stdout(sys.stderr):
        for line in find_lines(args):
            print(line, file=lines, flush=True)
            has_failed |= line.startswith("FAIL")
    return 1 if has_failed else 0
