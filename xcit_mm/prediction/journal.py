"""The journals of a folder of predictions: what its processes started and finished.

Each process appends lines of JSON to a file of its own, and nothing is ever removed:

- `{"start": PATH, "name": NAME}` before an item is read,
- a record with `"path"` after the item is predicted, its drawing and map written before it,
- `{"frame": NUMBER, ...}` for each frame of a video, between its start and its record,
- `{"drawn": PATH, ...}` after an item is drawn again,
- `{"end": true}` if the process ends by an error that is no item's fault.

Journals are read in the order in which they were begun. An item is done if it has a record, and its
last record counts. A process that died leaves starts without records, and perhaps a last line that
is incomplete.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from .listing import Item, make_unique

JOURNAL = "journal"


def file_stamp(path: str) -> list[int] | None:
    """Return size and time of modification in nanoseconds, by which a file is recognised, or None
    for a URL or a missing file.
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
        begin, offset: Positions in the journal, in bytes, of the item's start and of the record.
    """

    item: Item
    stamp: list[int] | None
    error: str | None
    drawing: dict[str, Any] | None
    journal: Path
    begin: int
    offset: int

    def has_changed(self) -> bool:
        """Return whether the file is another than the predicted one. A missing file is not."""
        stamp = file_stamp(self.item.path)
        return stamp is not None and stamp != self.stamp

    def iter_results(self) -> Iterator[dict[str, Any]]:
        """Yield the record of an image, or a record for each frame of a video."""
        with self.journal.open("rb") as file:
            if not self.item.is_video:
                file.seek(self.offset)
                yield json.loads(file.readline())
                return
            file.seek(self.begin)
            while file.tell() < self.offset:
                line = json.loads(file.readline())
                if "frame" in line:
                    yield line


@dataclass
class Progress:
    """What the journals of a folder say.

    Attributes:
        entries: Items with a record, by path, in the order of their first records.
        deaths: Paths of items in flight when a process died, since their last record, with the
            number of deaths with no other item in flight, so that this one may be the cause.
        names: Names of all items that were started.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    deaths: dict[str, int] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def list_pending(self, items: Sequence[Item], retry_failed: bool) -> list[Item]:
        """Return the items to predict, under the names of their results.

        Raises:
            ValueError: If the id of a COCO json differs from that of earlier results, or belongs
                to another image.
        """
        self._check_ids(items)
        unknown = [item for item in items if item.path not in self.entries]
        taken = [entry.item.name for entry in self.entries.values()]
        pending = make_unique(unknown, taken)
        for item in items:
            entry = self.entries.get(item.path)
            if entry and (entry.has_changed() or (entry.error and retry_failed)):
                pending.append(entry.item)
        return pending

    def _check_ids(self, items: Sequence[Item]) -> None:
        ids = self.ids()
        owners = {id_: path for path, id_ in ids.items()}
        for item in items:
            if item.id is None:
                continue
            earlier_id = ids.get(item.path, item.id)
            if earlier_id != item.id or owners.setdefault(item.id, item.path) != item.path:
                raise ValueError(
                    f"{item.path} has the id {item.id} in its json, and another image or id in the "
                    "results: give another --out"
                )

    def ids(self) -> dict[str, int | str]:
        """Return the id of each item: that of its COCO json, else from 1 on, which more records
        leave as it is.
        """
        ids = {path: entry.item.id for path, entry in self.entries.items()}
        json_ids = set(ids.values())
        free_ids = (number for number in count(1) if number not in json_ids)
        return {path: next(free_ids) if id_ is None else id_ for path, id_ in ids.items()}

    def _read(self, journal: Path) -> None:
        starts: dict[str, int] = {}
        offset = 0
        with journal.open("rb") as file:
            for number, line in enumerate(file, start=1):
                begin = offset
                offset += len(line)
                if not line.endswith(b"\n"):  # the process died while it wrote
                    break
                if line.startswith(b'{"frame"'):
                    continue
                try:
                    content = json.loads(line)
                except ValueError:
                    place = f"{journal}, line {number}"
                    fix = "remove the file to predict its images again"
                    raise ValueError(f"{place} is damaged: {fix}") from None
                if "start" in content:
                    starts[content["start"]] = begin
                    self.names.add(content["name"])
                elif "path" in content:
                    start = starts.pop(content["path"], begin)
                    self._add_record(content, journal, start, begin)
                elif "drawn" in content and content["drawn"] in self.entries:
                    self.entries[content["drawn"]].drawing = content["drawing"]
                elif "end" in content:
                    return
        for path in starts:
            deaths = self.deaths.setdefault(path, 0)
            if len(starts) == 1:
                self.deaths[path] = deaths + 1

    def _add_record(self, record: dict[str, Any], journal: Path, begin: int, offset: int) -> None:
        item = Item(record["path"], record["name"], record["id"])
        error = record.get("error")
        entry = Entry(item, record["stamp"], error, record["drawing"], journal, begin, offset)
        self.entries[item.path] = entry
        self.deaths.pop(item.path, None)


def read_journals(folder: Path) -> Progress:
    """Read all journals of a folder of predictions.

    Raises:
        ValueError: If a line other than the last is damaged.
    """
    progress = Progress()
    for journal in sorted((folder / JOURNAL).glob("*.jsonl")):
        progress._read(journal)
    return progress


class Journal:
    """The journal of this process. Its file exists from the first line on."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL / f"{time.time_ns():020}-{uuid4().hex[:8]}.jsonl"

    def start(self, item: Item) -> None:
        """Note that an item is about to be read."""
        self._append(dict(start=item.path, name=item.name))

    def add(
        self,
        item: Item,
        stamp: list[int] | None,
        drawing: dict[str, Any] | None = None,
        **result: Any,
    ) -> None:
        """Add the record of an item. The result is `height`, `width` and a detector's `objects`,
        or `frames`, their number, or `error`.
        """
        self._append(item._asdict() | dict(stamp=stamp, drawing=drawing) | result)

    def add_frame(self, number: int, **result: Any) -> None:
        self._append(dict(frame=number) | result)

    def note_drawn(self, item: Item, drawing: dict[str, Any]) -> None:
        self._append(dict(drawn=item.path, drawing=drawing))

    def end(self) -> None:
        """Note that no item is to blame for the end of this process."""
        self._append(dict(end=True))

    def unfinished(self, suffix: str) -> Path:
        """Return the path of a file that this process is writing, which a kill may leave."""
        return self.path.with_suffix(f".unfinished{suffix}")

    def _append(self, content: dict[str, Any]) -> None:
        line = json.dumps(content).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            while line:
                line = line[file.write(line) :]
