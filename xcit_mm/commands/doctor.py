"""`xcit-mm doctor`: check the installation, or a training run before it starts."""

from collections.abc import Sequence
from itertools import chain

from ..checks.doctor import diagnose
from ..checks.stack import check_stack
from ..utils.cli import CommandParser, cli_main, parse_cfg_options
from .options import CONFIG

CALLS = """
xcit-mm doctor                                          # the installation
xcit-mm doctor CONFIG [--cfg-options KEY=VALUE ...]     # and a training, before it starts
xcit-mm doctor CONFIG --processes 8                     # by torchrun in eight processes
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("doctor", CALLS)
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG", help=f"{CONFIG} (default: the installation alone)")
    add(
        "--cfg-options",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="values that replace those in the config",
    )
    add(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="number of processes that will train (default: 1)",
    )
    args = parser.parse_args(argv)

    def work() -> int:
        changes = parse_cfg_options(args.cfg_options)
        findings = check_stack()
        if args.config:
            run = diagnose(args.config, cfg_options=changes, processes=args.processes)
            findings = chain(findings, run)
        has_failed = False
        for finding in findings:
            print(finding, flush=True)
            has_failed |= finding.level == "FAIL"
        return 1 if has_failed else 0

    return cli_main(work, "the checks are not complete", parser=parser)
