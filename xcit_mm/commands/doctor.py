"""`xcit-mm doctor`: check the installation, or a training run before it starts."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from ..checks.doctor import diagnose
from ..checks.stack import check_stack
from ..utils.cli import CommandParser
from ..utils.errors import ArgumentError
from .options import CONFIG, add_options

CALLS = """
xcit-mm doctor                                          # the installation
xcit-mm doctor CONFIG [--cfg-options KEY=VALUE ...]     # and a training, before it starts
xcit-mm doctor CONFIG --processes 8                     # by torchrun in eight processes
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("doctor", CALLS)
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG", help=f"{CONFIG} (default: the installation alone)")
    add_options(parser, ["--cfg-options"])
    processes = "number of processes that will train (default: 1)"
    add("--processes", type=int, default=1, metavar="N", help=processes)
    return parser.run(argv, check, "the checks are not complete")


def check(config: str | None, **options: Any) -> int:
    """Print what is found, and return the exit code, 1 after a failure."""
    if config is None and options != dict(cfg_options=None, processes=1):
        raise ArgumentError("config", "the options are for a config: give it too")
    has_failed = False
    for finding in chain(check_stack(), diagnose(config, **options) if config else ()):
        print(finding, flush=True)
        has_failed |= finding.level == "FAIL"
    return 1 if has_failed else 0
