"""What this package prints while it works, and silence for other libraries.

Lines and progress bars go to stderr. The level of the logger `xcit_mm` silences both:

    logging.getLogger("xcit_mm").setLevel("ERROR")
"""

import io
import logging
import sys
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from mmengine.logging import MMLogger
from tqdm import tqdm

from .ranks import is_first

_LOGGER = logging.getLogger("xcit_mm")


def say(line: str) -> None:
    """Write a line to stderr, above a progress bar. Only the first process of a run writes."""
    if _is_heard() and is_first():
        tqdm.write(line, file=sys.stderr)


def log_line(line: str) -> None:
    """Write a line into the log of a run, which shows it on the screen, as `say` would.

    Outside a run, the line goes to stderr directly.
    """
    logger = MMLogger.get_current_instance()
    if logger.instance_name == "mmengine":  # outside of a run
        say(line)
    else:
        logger.info(line, extra=dict(on_screen=True) if _is_heard() else None)


def without_shared_prefix(names: Collection[str]) -> list[str]:
    """Return the names of scores without the part up to a slash that all have, such as `coco/`."""
    prefixes = {f"{name.partition('/')[0]}/" for name in names}
    shared = prefixes.pop() if len(prefixes) == 1 else ""
    return [name.removeprefix(shared) for name in names]


def progress_bar(total: int | None, unit: str, disable: bool = False, **options: Any) -> tqdm:
    """Return tqdm's bar on stderr. In a log file it prints a line at most every 30 seconds.

    Args:
        options: More arguments of tqdm.
    """
    interval = 0.1 if sys.stderr.isatty() else 30
    disable = disable or not _is_heard()
    options = dict(options, unit=unit, dynamic_ncols=True, mininterval=interval)
    return tqdm(total=total, disable=disable, **options)


def _is_heard() -> bool:
    return _LOGGER.level <= logging.INFO


@contextmanager
def quiet() -> Iterator[None]:
    """Silence logs up to errors, warnings and stdout of libraries. `say` and stderr still work."""
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.ERROR))
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
