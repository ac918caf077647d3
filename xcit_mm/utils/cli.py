"""A command in a terminal: its parser, its exit code, and one line after an error."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .errors import ArgumentError, reason
from .memory import keep_freed_memory


class CommandParser(argparse.ArgumentParser):
    """The parser of a command of `xcit-mm`, whose help begins with its most common calls."""

    def __init__(self, command: str, calls: str) -> None:
        usage = calls.strip().replace("\n", "\n       ")
        # Most options fit a line.
        formatter: Any = partial(argparse.HelpFormatter, max_help_position=30)
        super().__init__(f"xcit-mm {command}", usage, formatter_class=formatter)

    def run(self, argv: Sequence[str] | None, work: Callable[..., Any], interrupted: str) -> int:
        """Call a function with the options of a command line, and return the exit code.

        Args:
            work: As in `cli_main`. It takes each option, except for `verbose`, by its name.
            interrupted: As in `cli_main`.
        """
        options = vars(self.parse_intermixed_args(argv))
        verbose = options.pop("verbose", False)
        keep_freed_memory()
        return cli_main(partial(work, **options), interrupted, verbose, self)

    def name_on_command_line(self, argument: str) -> str:
        """Return how a user gives an argument of a function: as `--option`, or as `PLACE`."""
        for action in self._actions:
            if action.dest == argument:
                return [*action.option_strings, str(action.metavar)][0]
        return argument


class Terminated(KeyboardInterrupt):
    """The process is stopped by SIGTERM, as by a scheduler."""


def cli_main(
    work: Callable[[], Any],
    interrupted: str,
    verbose: bool = False,
    parser: CommandParser | None = None,
) -> int:
    """Run a command in the main thread and return its exit code.

    Bytes of a path that are not UTF-8 are printed as escapes.

    Args:
        work: Does the work of the command. If its result is an int, it is the exit code.
        interrupted: Message after Ctrl-C (exit code 130) and after SIGTERM (exit code 143).
        verbose: Whether an error ends the program with its traceback, not with one line.
        parser: The command's parser, which has the options for the arguments that errors name.
    """

    def terminate(number: int, frame: object) -> None:
        raise Terminated

    stdout: Any = sys.stdout
    stdout.reconfigure(errors="backslashreplace")
    former = signal.signal(signal.SIGTERM, terminate)
    try:
        result = work()
        stdout.flush()
        return result if isinstance(result, int) else 0
    except Exception as error:  # a command calls every library
        if isinstance(error, BrokenPipeError) and not _is_stdout_read():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left
            return 141  # as after SIGPIPE
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


def _is_stdout_read() -> bool:
    """Print an empty line, and return whether a reader takes it: `head` may have ended."""
    try:
        print(flush=True)
    except BrokenPipeError:
        return False
    return True
