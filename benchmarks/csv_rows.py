"""A csv of measurements, in which a new row replaces that of the same case."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_row(path: Path, row: dict[str, Any], case: Sequence[str], costs: Sequence[str]) -> None:
    """Add a row to a csv in place of that of the same case.

    Args:
        case: Columns that tell cases apart.
        costs: The other columns. What a row does not have stays empty.
    """
    rows = []
    if path.exists():
        with path.open() as file:
            rows = list(csv.DictReader(file))
    others = [old for old in rows if any(old[key] != str(row[key]) for key in case)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*case, *costs])
        writer.writeheader()
        writer.writerows([*others, row])
