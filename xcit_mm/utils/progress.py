"""The progress bar of the package."""

import sys
from typing import Any

from tqdm import tqdm

__all__ = ["progress_bar"]


def progress_bar(total: int | None, unit: str, **options: Any) -> tqdm:
    """Return tqdm's bar on stderr. In a log file it prints a line at most every 30 seconds."""
    interval = 0.1 if sys.stderr.isatty() else 30
    return tqdm(total=total, unit=unit, dynamic_ncols=True, mininterval=interval, **options)
