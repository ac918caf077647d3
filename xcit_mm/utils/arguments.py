"""Parsing of a command line: a help that begins with the commonest calls, errors of one line."""

import argparse
import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from difflib import get_close_matches
from functools import partial
from typing import Any, NoReturn

_NUMBER = re.compile(r"-(\d+\.?\d*|\.\d+)e[-+]?\d+", re.IGNORECASE)
_OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")


class CommandParser(argparse.ArgumentParser):
    """An `ArgumentParser` whose help begins with calls, and whose errors name a similar option."""

    def __init__(self, command: str = "", calls: str = "", **options: Any) -> None:
        """Make the parser of a command.

        Args:
            command: Name of the command of `xcit-mm`.
            calls: The commonest calls, a line each.
        """
        if command:
            options["prog"] = f"xcit-mm {command}"
        if calls:
            lines = [line.strip() for line in calls.strip().splitlines()]
            options["usage"] = "\n       ".join(lines)
        if "description" in options:
            options["description"] = options["description"].strip()
        # Most options fit a line.
        formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=30)
        super().__init__(formatter_class=formatter, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments as `ArgumentParser` does, where -3.4e38 is a number and not an option."""
        arguments = sys.argv[1:] if args is None else args
        # argparse takes what has a space for a value, and numbers may have one.
        spaced = [f" {value}" if _NUMBER.fullmatch(value) else value for value in arguments]
        return super().parse_known_args(spaced, namespace)

    def error(self, message: str) -> NoReturn:
        """End the program with the exit code 2 and a line that names the most similar option."""
        _exit_with_hint(self.prog, message, self.format_help())


def score(text: str) -> float:
    """Parse a score, as the type of an option."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a score from 0 to 1")
    return value


@contextmanager
def errors_of_one_line(command: str, own_help: str) -> Iterator[None]:
    """End as the command's own parser does if another parser rejects arguments in this block.

    Args:
        own_help: Help of the command, which names options that the other parser does not have.
    """
    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            yield
    except SystemExit:
        usage, separator, message = printed.getvalue().partition(": error: ")
        if not separator:
            raise
        _exit_with_hint(f"xcit-mm {command}", message.strip(), own_help + usage)


def _exit_with_hint(program: str, message: str, helps: str) -> NoReturn:
    """Print an error with the most similar option of the help texts, and exit with the code 2."""
    options = sorted(set(_OPTION.findall(helps)))
    hint = f"{program} --help lists the arguments"
    for wrong in _OPTION.findall(message):
        similar = get_close_matches(wrong, options, n=1)
        if wrong not in options and similar:
            hint = f"did you mean {similar[0]}?"
            break
    print(f"{program}: {message}: {hint}", file=sys.stderr)
    sys.exit(2)
