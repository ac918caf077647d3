"""The journals of a folder of predictions: what its processes started and finished.

Each process appends lines of JSON to a file of its own, and nothing is ever removed:

- `{"start": PATH}` before an item is read,
- a record with `"path"` after the item is predicted, its drawing and map written before it,
- `{"end": true}` if the process ends by a stop or an error that no item has caused.

Journals are read in the order in which they were begun, and the last record of an item counts. A
process that died leaves starts without records, and perhaps an incomplete last line.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from ..utils.atomic import named_in_errors
from ..utils.errors import ArgumentError
from .listing import Item

JOURNAL = "journal"
"""Folder of the journals in a folder of predictions."""
KEYS = ("name", "id")
"""Fields of a record that differ from those of all other images."""


class Progress(NamedTuple):
    """What journals say.

    Attributes:
        records: The last record of each item, by path, without its objects.
        deaths: For each item that was in flight when a process died, by path: the number of these
            deaths in which it alone was in flight. The item's next record removes it.
    """

    records: dict[str, dict[str, Any]]
    deaths: dict[str, int]


def read_journals(folder: Path) -> Progress:
    """Read all journals of a folder of predictions."""
    records = {}
    deaths: dict[str, int] = {}
    for lines in _iter_journals(folder):
        started: set[str] = set()
        for line in lines:
            if "start" in line:
                started.add(line["start"])
            elif "path" in line:
                path = line["path"]
                line.pop("objects", None)
                records[path] = line
                started.discard(path)
                deaths.pop(path, None)
            elif "end" in line:
                started.clear()
        is_alone = len(started) == 1  # else any may be the cause
        for path in started:
            deaths[path] = deaths.get(path, 0) + (1 if is_alone else 0)
    return Progress(records, deaths)


def iter_objects(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of all items of a folder of predictions.

    An item has one record with objects, because only failures are predicted again. If processes
    without a lock have predicted an item twice, its first objects count.
    """
    done = set()
    for lines in _iter_journals(folder):
        for line in lines:
            if "objects" in line and line["path"] not in done:
                done.add(line["path"])
                yield from line["objects"]


def _iter_journals(folder: Path) -> Iterator[Iterator[dict[str, Any]]]:
    """Yield the lines of each journal, in the order in which the journals were begun."""
    for journal in sorted((folder / JOURNAL).glob("*.jsonl")):
        with journal.open("rb") as file:  # the last line may be incomplete: its process died
            yield (json.loads(line) for line in file if line.endswith(b"\n"))


def list_pending(
    items: Sequence[Item], records: dict[str, dict[str, Any]], retry_failed: bool
) -> list[Item]:
    """Return the items without a record, and with `retry_failed` the failed ones.

    Items without an id get the next free numbers from 1, whoever is recorded first.

    Raises:
        ArgumentError: If an item has the name or id of another one with a record, or another id.
    """
    _check_names(items, records)
    taken = {record["id"] for record in records.values()} | {item.id for item in items}
    free_ids = (number for number in count(1) if number not in taken)
    new = []
    failed = []
    for item in items:
        record = records.get(item.path)
        if record is None:
            new.append(item if item.id is not None else item._replace(id=next(free_ids)))
        elif "error" in record and retry_failed:
            failed.append(item._replace(id=record["id"]))
    return new + failed


def _check_names(items: Sequence[Item], records: Mapping[str, dict[str, Any]]) -> None:
    """Raise ArgumentError if a name or id is another image's in the records, or has changed."""
    owners = {(key, record[key]): path for path, record in records.items() for key in KEYS}
    for item in items:
        problems = [
            f"the {key} {value} is that of {owners[key, value]}"
            for key, value in zip(KEYS, (item.name, item.id), strict=True)
            if owners.get((key, value), item.path) != item.path
        ]
        former_id = records.get(item.path, {}).get("id", item.id)
        if item.id not in (None, former_id):
            problems.append(f"the id {item.id} was {former_id}")
        if problems:
            problem = f"{item.path}: {problems[0]} in earlier results"
            raise ArgumentError("out", f"{problem}: give another folder")


class Journal:
    """The journal of this process, a new file from the first line on.

    Args:
        folder: Folder of predictions.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL / f"{time.time_ns():020}-{uuid4().hex[:8]}.jsonl"

    def start(self, item: Item) -> None:
        self._append(dict(start=item.path))

    def add(self, item: Item, **result: Any) -> None:
        """Add a record: `height`, `width` and a detector's `objects`, or `error`."""
        self._append(item._asdict() | result)

    def end(self) -> None:
        self._append(dict(end=True))

    def _append(self, fields: dict[str, Any]) -> None:
        line = json.dumps(fields).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        length = self.path.stat().st_size if self.path.exists() else 0
        try:
            with named_in_errors(self.path), self.path.open("ab") as file:
                file.write(line)
        except OSError:
            # The disk is full. The end of this process must not follow a part of a line.
            with suppress(OSError):
                os.truncate(self.path, length)
            raise
