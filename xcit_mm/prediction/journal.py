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
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from .items import Item, make_unique
from .listing import JOURNAL


def file_stamp(path: str) -> list[int] | None:
    """Return size and time of modification in nanoseconds of a file, or None if it is missing.
    Another stamp means another file.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # the latter for a name that no file can have
        return None
    return [status.st_size, status.st_mtime_ns]


@dataclass
class Entry:
    """The last record of an item, without its objects.

    Attributes:
        error: Why the item failed, or None.
        drawing: Options of the drawing, or None if nothing was drawn.
        offset: Position of the record in the journal, in bytes.
    """

    item: Item
    stamp: list[int] | None
    error: str | None
    drawing: dict[str, Any] | None
    journal: Path
    offset: int

    def has_changed(self) -> bool:
        """Return whether the file exists and is another than the predicted one."""
        stamp = file_stamp(self.item.path)
        return stamp is not None and stamp != self.stamp

    def read_record(self) -> dict[str, Any]:
        """Return the record with its objects."""
        with self.journal.open("rb") as file:
            file.seek(self.offset)
            return json.loads(file.readline())


@dataclass
class Progress:
    """What the journals of a folder say.

    Attributes:
        entries: Items with a record, by path, in the order of their first records.
        deaths: By path of each item that was in flight when a process died: the number of deaths
            in which no other item was in flight. The item's next record removes it.
        names: Names of all items that were started.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    deaths: dict[str, int] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def list_pending(self, items: Sequence[Item], retry_failed: bool) -> list[Item]:
        """Return the items without a record, changed or to retry, by the names of their results.

        Items without an id get the next free numbers from 1, whoever is recorded first.

        Raises:
            ValueError: If the id of a COCO json differs from that of earlier results, or belongs
                to another image.
        """
        ids = {path: entry.item.id for path, entry in self.entries.items()}
        owners = {id_: path for path, id_ in ids.items()}
        for item in items:
            if item.id is None:
                continue
            stated = f"{item.path} has the id {item.id!r} in its json"
            recorded = ids.get(item.path, item.id)
            owner = owners.setdefault(item.id, item.path)
            if recorded != item.id:
                raise ValueError(f"{stated} and {recorded!r} in the results: give another --out")
            if owner != item.path:
                raise ValueError(f"{stated}, as has {owner}: give another --out")
        free_ids = (number for number in count(1) if number not in owners)
        unknown = []
        for item in items:
            if item.path in self.entries:
                continue
            unknown.append(item._replace(id=next(free_ids)) if item.id is None else item)
        pending = make_unique(unknown, [entry.item.name for entry in self.entries.values()])
        for item in items:
            entry = self.entries.get(item.path)
            if entry and (entry.has_changed() or (entry.error and retry_failed)):
                pending.append(entry.item)
        return pending

    def read(self, journal: Path) -> None:
        """Add the records of a journal, and the deaths of items that its process left in flight.

        Raises:
            ValueError: If a line other than the last is damaged.
        """
        started: set[str] = set()
        offset = 0
        with journal.open("rb") as file:
            for number, encoded in enumerate(file, start=1):
                if not encoded.endswith(b"\n"):  # the process died while it wrote
                    break
                try:
                    line = json.loads(encoded)
                except ValueError:
                    problem = f"{journal}, line {number} is damaged"
                    fix = "remove the file to predict its images again"
                    raise ValueError(f"{problem}: {fix}") from None
                if "start" in line:
                    started.add(line["start"])
                    self.names.add(line["name"])
                elif "path" in line:
                    path = line["path"]
                    item = Item(path, line["name"], line["id"])
                    started.discard(path)
                    self.entries[path] = Entry(
                        item,
                        line["stamp"],
                        line.get("error"),
                        line["drawing"],
                        journal,
                        offset,
                    )
                    self.deaths.pop(path, None)
                elif "end" in line:
                    started.clear()
                offset += len(encoded)
        is_alone = len(started) == 1  # else any may be the cause
        for path in started:
            self.deaths.setdefault(path, 0)
            if is_alone:
                self.deaths[path] += 1


def read_journals(folder: Path) -> Progress:
    """Read all journals of a folder of predictions."""
    progress = Progress()
    for journal in sorted((folder / JOURNAL).glob("*.jsonl")):
        progress.read(journal)
    return progress


class Journal:
    """The journal of this process, of whose lines the module tells. Its file exists from the first
    line on.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL / f"{time.time_ns():020}-{uuid4().hex[:8]}.jsonl"

    def start(self, item: Item) -> None:
        self._append(dict(start=item.path, name=item.name))

    def add(
        self,
        item: Item,
        stamp: list[int] | None,
        drawing: dict[str, Any] | None = None,
        **result: Any,
    ) -> None:
        """Add the record of an item.

        Args:
            result: `height`, `width` and a detector's `objects`, or `error`.
        """
        self._append(item._asdict() | dict(stamp=stamp, drawing=drawing) | result)

    def end(self) -> None:
        self._append(dict(end=True))

    @property
    def unfinished(self) -> Path:
        """Path of an incomplete map of this process. A kill may leave the file."""
        return self.path.with_suffix(".unfinished")

    def _append(self, fields: dict[str, Any]) -> None:
        line = json.dumps(fields).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            while line:
                line = line[file.write(line) :]  # a write may be partial
