"""Records of a run, as JSON lines in part files that are complete or absent, and the items in flight."""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from ..utils.atomic import atomic_write
from .listing import Item

MAX_RECORDS, MAX_SECONDS = 256, 60.0  # of a part file
PARTS = "parts"


class Place(NamedTuple):
    """Where a record is stored, with the fields that every record has."""

    part: Path
    offset: int
    item: Item
    frame: int | None
    error: str | None

    def read(self) -> dict[str, Any]:
        """Read the record: the item, `frame` of a video, and `error`, or `height`, `width` and a detector's `objects`.

        The objects are COCO results. The map of a segmentor is a file of its own.
        """
        with self.part.open("rb") as file:
            file.seek(self.offset)
            return json.loads(file.readline())


Places = dict[tuple[str, int | None], Place]  # by path and frame


def read_places(out: Path) -> Places:
    """Find the records in a folder. A result replaces an error, and a later record an earlier one.

    Raises:
        ValueError: If a part file is damaged.
    """
    places: Places = {}
    for part in sorted((out / PARTS).glob("*.jsonl")):
        offset = 0
        with part.open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                    item, frame = Item(record["path"], record["name"], record["id"]), record.get("frame")
                except (ValueError, KeyError, TypeError):
                    raise ValueError(f"{part} is damaged: remove it to predict its images again") from None
                if frame == 0:  # of a video that failed before
                    places.pop((item.path, None), None)
                place = Place(part, offset, item, frame, record.get("error"))
                before = places.get((item.path, frame), place)
                if place.error is None or before.error is not None:
                    places[item.path, frame] = place
                offset += len(line)
    return places


def record_line(item: Item, **fields: Any) -> bytes:
    return json.dumps(item._asdict() | fields).encode() + b"\n"


class PartWriter:
    """Writes records to part files: when `MAX_RECORDS` are collected, after `MAX_SECONDS`, and at the end."""

    def __init__(self, out: Path, name: str) -> None:
        self._path, self._count, self._lines = out / PARTS / name, 0, list[bytes]()
        self._since = time.monotonic()

    def add(self, item: Item, **fields: Any) -> None:
        self._lines.append(record_line(item, **fields))
        if len(self._lines) >= MAX_RECORDS or time.monotonic() - self._since > MAX_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self._lines:
            with atomic_write(Path(f"{self._path}-{self._count:05}.jsonl")) as file:
                file.writelines(self._lines)
            self._count += 1
        self._lines, self._since = [], time.monotonic()


class InFlight:
    """A file that names the items in flight, for the next start. `close` removes it.

    A line has the path of an item and the number of processes that died with it, this one included if it dies. A second
    line ends the flight.
    """

    def __init__(self, out: Path, name: str, deaths: dict[str, int]) -> None:
        self._path, self._deaths = out / PARTS / f"{name}.in-flight", deaths
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("wb", buffering=0)

    def mark(self, item: Item) -> None:
        """Note the start or the end of an item's flight."""
        self._file.write(json.dumps([item.path, self._deaths.get(item.path, 0) + 1]).encode() + b"\n")

    def close(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


def read_deaths(files: list[Path]) -> dict[str, int]:
    """Return how many processes died with an item in flight, by the item's path, from the files they left."""
    deaths: dict[str, int] = {}
    for file in files:
        flying: dict[str, int] = {}
        for line in file.read_bytes().split(b"\n")[:-1]:  # the last line may be incomplete
            path, count = json.loads(line)
            if flying.pop(path, None) is None:
                flying[path] = count
        for path, count in flying.items():
            deaths[path] = max(deaths.get(path, 0), count)
    return deaths
