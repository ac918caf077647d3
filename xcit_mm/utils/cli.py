"""A command in a terminal: its progress, its exit code, and one line after an error."""

import argparse
import io
import logging
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from mmengine.config import DictAction
from mmengine.logging import MMLogger
from tqdm import tqdm

from .errors import reason


class Terminated(KeyboardInterrupt):
    """The process is stopped by SIGTERM, as by a scheduler."""


def cli_main(work: Callable[[], int | None], interrupted: str, verbose: bool = False) -> int:
    """Run a command in the main thread and return its exit code.

    Args:
        interrupted: Message after Ctrl-C, for which the exit code is 130, and after SIGTERM, 143.
        verbose: Whether an error ends the program with its traceback, not with one line.
    """

    def terminate(number: int, frame: object) -> None:
        raise Terminated

    former = signal.signal(signal.SIGTERM, terminate)
    try:
        return work() or 0
    except Exception as error:  # a command calls every library
        if verbose:
            raise
        sys.exit(reason(error))
    except KeyboardInterrupt as stop:
        print(f"\ninterrupted: {str(stop) or interrupted}", file=sys.stderr)
        return 143 if isinstance(stop, Terminated) else 130
    finally:
        signal.signal(signal.SIGTERM, former)


def parse_cfg_options(options: Sequence[str]) -> dict[str, Any]:
    """Return the values of `--cfg-options KEY=VALUE ...` by dotted key, or raise ValueError."""
    parsed: Any = argparse.Namespace()
    try:
        DictAction([], "cfg_options")(None, parsed, options)
    except (ValueError, AssertionError):
        fix = "write KEY=VALUE and close each bracket"
        raise ValueError(f"--cfg-options {' '.join(options)}: {fix}") from None
    return parsed.cfg_options


def print_line(line: str) -> None:
    """Print a line on stderr, above a progress bar. A path may have bytes that are not UTF-8."""
    tqdm.write(line.encode(errors="backslashreplace").decode(), file=sys.stderr)


def log_line(line: str) -> None:
    """Log a line of this package, which the console of a run shows beside the library's log."""
    MMLogger.get_current_instance().info(line, extra=dict(on_screen=True))


def progress_bar(total: int | None, unit: str, **options: Any) -> tqdm:
    """Return tqdm's bar on stderr. In a log file it prints a line at most every 30 seconds."""
    interval = 0.1 if sys.stderr.isatty() else 30
    return tqdm(total=total, unit=unit, dynamic_ncols=True, mininterval=interval, **options)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the logs, warnings and stdout of libraries. stderr stays open."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
