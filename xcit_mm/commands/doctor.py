"""`xcit-mm doctor`: check the installation, or a training run before it starts."""

from collections.abc import Iterator, Sequence

from ..checks.doctor import diagnose
from ..utils.arguments import CommandParser
from ..utils.cli import exit_on_broken_pipe
from .options import CONFIG
from .stack import check_stack, print_lines

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

    def find_lines() -> Iterator[str]:
        yield from check_stack()
        if args.config:
            yield from map(str, diagnose(args.config, args.cfg_options))

    with exit_on_broken_pipe():
        return print_lines(find_lines())
