"""The journals of a folder of predictions: what its processes started and finished.

Each process appends lines of JSON to a file of its own, and nothing is ever removed:

- `{"start": PATH, ...}` before an item is read,
- a record with `"path"` after the item is predicted, its drawing and map written before it,
- `{"frame": NUMBER, ...}` for each frame of a video, between its start and its record,
- `{"drawn": PATH, ...}` after an item is drawn again,
- `{"end": true}` if the process ends by an error that is no item's fault.

An item is done if it has a record, and its last record counts. A process that died leaves starts
without records, and perhaps a last line that is incomplete.
"""

import json
import os
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from .listing import Item, make_unique

JOURNAL = "journal"


class Stamp(NamedTuple):
    """Size in bytes and time of modification in nanoseconds, by which a file is recognised."""

    size: int
    time: int


def file_stamp(path: str) -> Stamp | None:
    """Return the stamp of a file, or None for a URL or a file that does not exist.

    Raises:
        ValueError: If the path leads to something else than a file, such as a pipe.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # the latter for a name that no file can have
        return None
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is not a regular file")
    return Stamp(status.st_size, status.st_mtime_ns)


@dataclass
class Entry:
    """The last record of an item, without its objects.

    Attributes:
        stamp: Of the file that was predicted.
        error: Why the item failed, or None.
        drawing: Options of the drawing, or None if nothing was drawn.
        first_time: When the first record was written, in seconds. It orders the ids.
        time: When this record was written.
        journal: File of the record.
        begin, offset: Positions in bytes of the item's start and of the record.
    """

    item: Item
    stamp: Stamp | None
    error: str | None
    drawing: dict[str, Any] | None
    first_time: float
    time: float
    journal: Path
    begin: int
    offset: int

    def has_changed(self) -> bool:
        """Return whether the file is another than the predicted one. A missing file is not."""
        try:
            stamp = file_stamp(self.item.path)
        except ValueError:  # no regular file, as its reader will find
            return False
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
        entries: Items with a record, by path.
        deaths: Number of processes that died with an item in flight since its last record, by path.
        lone_deaths: Number of these that had no other item in flight, so that it may be the cause.
        names: Names of all items that were started, also of those without a record.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)
    lone_deaths: Counter[str] = field(default_factory=Counter)
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
        new_items = {item.path: item for item in make_unique(unknown, taken)}
        pending = []
        for item in items:
            entry = self.entries.get(item.path)
            if entry is None:
                pending.append(new_items[item.path])
            elif entry.has_changed() or (entry.error is not None and retry_failed):
                pending.append(entry.item)
        return pending

    def _check_ids(self, items: Sequence[Item]) -> None:
        """Check the ids of COCO jsons against those of earlier results."""
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
        """Return the id of each item: that of its COCO json, else from 1 on by its first record.

        More records leave earlier ids as they are.
        """
        given = {entry.item.id for entry in self.entries.values() if entry.item.id is not None}
        free_ids = (number for number in count(1) if number not in given)
        ids: dict[str, int | str] = {}
        by_time = sorted(self.entries.values(), key=lambda entry: (entry.first_time, entry.item))
        for entry in by_time:
            ids[entry.item.path] = next(free_ids) if entry.item.id is None else entry.item.id
        return ids


def read_journals(folder: Path) -> Progress:
    """Read all journals of a folder of predictions.

    Raises:
        ValueError: If a line other than the last is damaged.
    """
    progress = Progress()
    journals = sorted((folder / JOURNAL).glob("*.jsonl"))
    for in_flight in [_read_journal(path, progress) for path in journals]:
        for path, start_time in in_flight:
            entry = progress.entries.get(path)
            if entry is None or entry.time < start_time:
                progress.deaths[path] += 1
                if len(in_flight) == 1:
                    progress.lone_deaths[path] += 1
    return progress


def _read_journal(path: Path, progress: Progress) -> list[tuple[str, float]]:
    """Add a journal to the progress. Return path and time of each start without a record."""
    starts: dict[str, tuple[int, float]] = {}
    offset = 0
    with path.open("rb") as file:
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
                raise ValueError(
                    f"{path}, line {number} is damaged: remove the file to predict its images again"
                ) from None
            if "start" in content:
                starts[content["start"]] = begin, content["time"]
                progress.names.add(content["name"])
            elif "path" in content:
                start, _ = starts.pop(content["path"], (begin, 0))
                _add_record(progress.entries, content, path, start, begin)
            elif "drawn" in content and content["drawn"] in progress.entries:
                progress.entries[content["drawn"]].drawing = content["drawing"]
            elif "end" in content:
                return []
    return [(item_path, start_time) for item_path, (_, start_time) in starts.items()]


def _add_record(
    entries: dict[str, Entry], record: dict[str, Any], journal: Path, begin: int, offset: int
) -> None:
    """Add a record, unless there is a later record of its item."""
    item = Item(record["path"], record["name"], record["id"])
    stamp = Stamp(*record["stamp"]) if record["stamp"] else None
    entry = Entry(
        item=item,
        stamp=stamp,
        error=record.get("error"),
        drawing=record["drawing"],
        first_time=record["time"],
        time=record["time"],
        journal=journal,
        begin=begin,
        offset=offset,
    )
    other = entries.get(item.path)
    if other is not None:
        first_time = min(entry.first_time, other.first_time)
        entry = max(entry, other, key=lambda either: either.time)
        entry.first_time = first_time
    entries[item.path] = entry


class Journal:
    """The journal of this process. Its file exists from the first line on."""

    def __init__(self, folder: Path) -> None:
        """Name a new journal in a folder of predictions."""
        self.path = folder / JOURNAL / f"{time.time_ns():020}-{uuid4().hex[:8]}.jsonl"

    def start(self, item: Item) -> None:
        """Note that an item is about to be read. Whoever finds the line alone knows the culprit."""
        self._append(dict(start=item.path, name=item.name, time=time.time()))

    def add(
        self, item: Item, stamp: Stamp | None, drawing: dict[str, Any] | None, **result: Any
    ) -> None:
        """Add the record of an item.

        Args:
            result: `height`, `width` and a detector's `objects`, or of a video
                `frames`, or `error`.
        """
        described = dict(item._asdict(), time=time.time(), stamp=stamp, drawing=drawing)
        self._append(described | result)

    def add_frame(self, number: int, **result: Any) -> None:
        """Add the record of a frame of the video that was started last."""
        self._append(dict(frame=number) | result)

    def note_drawn(self, item: Item, drawing: dict[str, Any]) -> None:
        """Note the options with which an item was drawn again."""
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
