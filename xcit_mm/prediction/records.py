"""Records of a run, as JSON lines in part files that are complete or absent, and the items in
flight.
"""

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..utils.atomic import atomic_write
from .listing import Item

MAX_RECORDS, MAX_SECONDS = 256, 60.0  # of a part file
PARTS = "parts"


def iter_records(out: Path, parts: str = "*") -> Iterator[dict[str, Any]]:
    """Yield the records in the part files of a folder; `parts` is a pattern of their names.

    A record has the fields of its `Item`, `frame` of a video, and `error`, or `height`, `width` and
    a detector's `objects`, which are COCO results. The map of a segmentor is a file of its own.
    Records of a video follow each other.

    Raises:
        ValueError: If a part file is damaged.
    """
    for part in sorted((out / PARTS).glob(f"{parts}.jsonl")):
        with part.open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:
                    raise ValueError(
                        f"{part} is damaged: remove it to predict its images again"
                    ) from None
                yield record


def item_of(record: dict[str, Any]) -> Item:
    """Return the item of a record."""
    return Item(record["path"], record["name"], record["id"])


def record_line(item: Item, **fields: Any) -> bytes:
    return json.dumps(item._asdict() | fields).encode() + b"\n"


def drop_failures(out: Path) -> None:
    """Remove the records of images and videos that failed."""
    for part in (out / PARTS).glob("*.jsonl"):
        failed = {record["path"] for record in iter_records(out, part.stem) if "error" in record}
        if failed:
            kept = [
                record for record in iter_records(out, part.stem) if record["path"] not in failed
            ]
            with atomic_write(part) as file:
                file.writelines(json.dumps(record).encode() + b"\n" for record in kept)


class Writer:
    """Writes records to part files: when `MAX_RECORDS` are collected, after `MAX_SECONDS`, and at
    the end.

    Another file names the items in flight, for the next start. Each of its lines has the path of an
    item and the number of processes that died with it, this one included if it dies. A second line
    ends the flight.

    Args:
        out: Folder of the run.
        name: Beginning of the names of its files.
        deaths: Number of processes that died with an item, by the item's path.
    """

    def __init__(self, out: Path, name: str, deaths: dict[str, int]) -> None:
        self._path, self._deaths, self._lines, self._since = (
            out / PARTS / name,
            deaths,
            list[bytes](),
            time.monotonic(),
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._flight = self._path.with_name(f"{name}.in-flight").open("wb", buffering=0)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._flush()
        self._flight.close()
        if error is None:
            Path(self._flight.name).unlink()

    def mark(self, item: Item) -> None:
        """Note the start or the end of an item's flight."""
        self._flight.write(
            json.dumps([item.path, self._deaths.get(item.path, 0) + 1]).encode() + b"\n"
        )

    def add(self, item: Item, **fields: Any) -> None:
        """Add a record, perhaps to a part file that is not complete yet."""
        self._lines.append(record_line(item, **fields))
        if len(self._lines) >= MAX_RECORDS or time.monotonic() - self._since > MAX_SECONDS:
            self._flush()

    def new_part(self) -> Path:
        """Return the path of a part file that does not exist. Paths ascend."""
        return self._path.with_name(f"{self._path.name}-{time.time_ns():020}.jsonl")

    def _flush(self) -> None:
        if self._lines:
            with atomic_write(self.new_part()) as file:
                file.writelines(self._lines)
        self._lines, self._since = [], time.monotonic()


def read_deaths(files: Iterable[Path]) -> dict[str, int]:
    """Return how many processes died with an item in flight, by the item's path, from the files
    they left.
    """
    deaths: dict[str, int] = {}
    for file in files:
        flying: dict[str, int] = {}
        for line in file.read_bytes().split(b"\n")[:-1]:  # the last line may be incomplete
            path, count = json.loads(line)
            if flying.pop(path, None) is None:
                flying[path] = count
        deaths |= flying
    return deaths
