"""A command in a terminal: its parser, its exit code, and one line after an error."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mmengine.config import DictAction

from .errors import ArgumentError, reason


class CommandParser(argparse.ArgumentParser):
    """The parser of a command of `xcit-mm`.

    The help of a command begins with its commonest calls. A part of a command has none.
    """

    def __init__(self, command: str = "", calls: str = "", **options: Any) -> None:
        if command:
            options["prog"] = f"xcit-mm {command}"
            options["usage"] = calls.strip().replace("\n", "\n       ")
        if "description" in options:
            options["description"] = options["description"].strip()
        # Most options fit a line.
        formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=30)
        super().__init__(formatter_class=formatter, **options)

    def name_on_command_line(self, argument: str) -> str:
        """Return how a user gives an argument of a function: as `--option`, or as `PLACE`."""
        actions = [action for action in self._actions if action.dest == argument]
        names = [action.option_strings[-1] for action in actions if action.option_strings]
        names += [str(action.metavar or argument.upper()) for action in actions]
        return next(iter(names), argument)


def score(text: str) -> float:
    """Parse an option that must be a score from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a score from 0 to 1")
    return value


class Terminated(KeyboardInterrupt):
    """The process is stopped by SIGTERM, as by a scheduler."""


def cli_main(
    work: Callable[[], int | None],
    interrupted: str,
    verbose: bool = False,
    parser: CommandParser | None = None,
) -> int:
    """Run a command in the main thread and return its exit code.

    Args:
        interrupted: Message after Ctrl-C, for which the exit code is 130, and after SIGTERM, 143.
        verbose: Whether an error ends the program with its traceback, not with one line.
        parser: Of the command. It knows the options of arguments that an error names.
    """

    def terminate(number: int, frame: object) -> None:
        raise Terminated

    former = signal.signal(signal.SIGTERM, terminate)
    try:
        return work() or 0
    except Exception as error:  # a command calls every library
        if verbose:
            raise
        if isinstance(error, ArgumentError) and parser is not None:
            name = parser.name_on_command_line(error.name)
            sys.exit(f"{name}: {' '.join(error.problem.split())}")
        sys.exit(reason(error))
    except KeyboardInterrupt as stop:
        print(f"\ninterrupted: {str(stop) or interrupted}", file=sys.stderr)
        return 143 if isinstance(stop, Terminated) else 130
    finally:
        signal.signal(signal.SIGTERM, former)


def parse_cfg_options(options: Sequence[str]) -> dict[str, Any]:
    """Return the values of `--cfg-options KEY=VALUE ...` by dotted key."""
    parsed: Any = argparse.Namespace()
    try:
        DictAction([], "cfg_options")(None, parsed, options)
    except (ValueError, AssertionError):
        fix = "write KEY=VALUE and close each bracket"
        raise ArgumentError("cfg_options", f"{' '.join(options)}: {fix}") from None
    return parsed.cfg_options
