"""The journals of a folder of predictions: what its processes started and finished.

Each process appends lines of JSON to a file of its own, and nothing is ever removed:

- `{"start": PATH, "name": NAME}` before an item is read,
- a record with `"path"` after the item is predicted, its drawing and map written before it,
- `{"end": true}` if the process ends by a stop or an error that no item has caused.

Journals are read in the order in which they were begun. An item is done if it has a record, and its
last record counts. A process that died leaves starts without records, and perhaps an incomplete
last line.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from .listing import Item

JOURNAL = "journal"
"""Folder of the journals in a folder of predictions."""


@dataclass
class Progress:
    """What journals say.

    Attributes:
        records: The last record of each item, by path, without its objects.
        deaths: By path of each item that was in flight when a process died: the number of deaths
            in which no other item was in flight. The item's next record removes it.
    """

    journals: list[Path]
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    deaths: dict[str, int] = field(default_factory=dict)

    def list_pending(self, items: Sequence[Item], retry_failed: bool) -> list[Item]:
        """Return the items without a record, and with `retry_failed` the failed ones.

        Items without an id get the next free numbers from 1, whoever is recorded first.

        Raises:
            ValueError: If an item has the name or id of another one with a record, or another id.
        """
        owners = {}  # paths by name and by id
        for path, record in self.records.items():
            owners[record["name"]] = path
            owners[record["id"]] = path
        new = []
        failed = []
        for item in items:
            record = self.records.get(item.path, {})
            is_same_id = not record or item.id in (None, record["id"])
            if not is_same_id or {owners.get(key, item.path) for key in item[1:]} != {item.path}:
                problem = f"{item.path}, its name {item.name} or its id {item.id}"
                raise ValueError(f"earlier results know {problem} otherwise: give another --out")
            if not record:
                new.append(item)
            elif "error" in record and retry_failed:
                failed.append(item._replace(id=record["id"]))
        taken = {*owners, *(item.id for item in new)}
        free_ids = (number for number in count(1) if number not in taken)
        numbered = [
            item if item.id is not None else item._replace(id=next(free_ids)) for item in new
        ]
        return numbered + failed

    def iter_objects(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of all items."""
        done = set()
        for journal in self.journals:
            for line in _iter_lines(journal):
                if "objects" in line and line["path"] not in done:
                    done.add(line["path"])
                    yield from line["objects"]

    def read(self, journal: Path) -> None:
        """Add the records of a journal, and the deaths of items that its process left in flight."""
        started: set[str] = set()
        for line in _iter_lines(journal):
            if "start" in line:
                started.add(line["start"])
            elif "path" in line:
                line.pop("objects", None)
                path = line["path"]
                self.records[path] = line
                started.discard(path)
                self.deaths.pop(path, None)
            elif "end" in line:
                started.clear()
        is_alone = len(started) == 1  # else any may be the cause
        for path in started:
            self.deaths.setdefault(path, 0)
            if is_alone:
                self.deaths[path] += 1


def _iter_lines(journal: Path) -> Iterator[dict[str, Any]]:
    """Yield the content of each line. A damaged one before the last is a ValueError."""
    with journal.open("rb") as file:
        for number, encoded in enumerate(file, start=1):
            if not encoded.endswith(b"\n"):  # the process died while it wrote
                return
            try:
                line = json.loads(encoded)
            except ValueError:
                fix = "remove the file to predict its images again"
                raise ValueError(f"{journal}, line {number} is damaged: {fix}") from None
            yield line


def read_journals(folder: Path, prefix: str = "") -> Progress:
    """Read all journals of a folder of predictions, or those whose file names have a prefix."""
    progress = Progress(sorted((folder / JOURNAL).glob(f"{prefix}*.jsonl")))
    for journal in progress.journals:
        progress.read(journal)
    return progress


class Journal:
    """The journal of this process, of whose lines the module tells. Its file exists from the first
    line on.

    Args:
        folder: Folder of predictions.
        prefix: First part of the file name, by which journals are sorted.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self.path = folder / JOURNAL / f"{prefix}{time.time_ns():020}-{uuid4().hex[:8]}.jsonl"

    def start(self, item: Item) -> None:
        self._append(dict(start=item.path, name=item.name))

    def add(self, item: Item, **result: Any) -> None:
        """Add a record: `height`, `width` and a detector's `objects`, or `error`."""
        self._append(item._asdict() | result)

    def end(self) -> None:
        self._append(dict(end=True))

    def _append(self, fields: dict[str, Any]) -> None:
        line = json.dumps(fields).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            while line:
                line = line[file.write(line) :]  # a write may be partial
