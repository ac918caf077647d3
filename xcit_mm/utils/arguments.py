"""Parsing of a command line: a help that begins with the commonest calls."""

import argparse
from functools import partial
from typing import Any


class CommandParser(argparse.ArgumentParser):
    """The parser of a command of `xcit-mm`, whose help begins with its commonest calls, or of a
    part of it, without them.
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


def score(text: str) -> float:
    """Parse a score, as the type of an option."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a score from 0 to 1")
    return value
