"""`xcit-mm doctor`: check the installation, or a training run before it starts."""

from collections.abc import Sequence
from itertools import chain

from ..checks.doctor import diagnose
from ..utils.cli import CommandParser, cli_main
from .options import CONFIG
from .stack import check_stack

CALLS = """
xcit-mm doctor                                          # the installation
xcit-mm doctor CONFIG [--cfg-options KEY=VALUE ...]     # and a training, before it starts
WORLD_SIZE=8 xcit-mm doctor CONFIG                      # in eight processes (default: 1)
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("doctor", CALLS)
    add = parser.add_argument
    add("config", nargs="?", help=f"{CONFIG} (default: the installation alone)")
    add("--cfg-options", nargs="+", default=[], metavar="KEY=VALUE", help="changes of the config")
    args = parser.parse_args(argv)

    def work() -> int:
        findings = diagnose(args.config, args.cfg_options) if args.config else ()
        has_failed = False
        for finding in chain(check_stack(), findings):
            print(finding, flush=True)
            has_failed |= finding.level == "FAIL"
        return 1 if has_failed else 0

    return cli_main(work, "the checks are not complete")
